"""Names and modules under their old import paths, for one minor version.

A name that has left the top level, and a module that has moved, still load, with a
``DeprecationWarning`` that shows the new import. ``optilock.http.etags`` is such a module::

    from optilock.preconditions.entity_tags import ETags

So does an error or an entry that was pickled under an old path; loading a pickle warns as well.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_HOMES: Final = {
    "optilock.conditions": "Condition Demand",
    "optilock.errors": (
        "AlreadyExists BadEntity BadPrecondition BatchFailed CannotMerge CommitOutcomeUnknown"
        " ConditionNotCompared LinkGone NotFound NotWritten PreconditionRequired"
        " SeparateUnitWarning UnguardedStatement UnguardedStatementWarning"
    ),
    "optilock.leases": "LeaseHeld LeaseLost",
    "optilock.preconditions": (
        "EditForm FilledForm conflict_form merge_changes overwrite sign_seen"
    ),
    "optilock.resolvers": (
        "OnDelete Resolution add_delta merge_json merge_set merge_text per_field"
    ),
    "optilock.shares": "DeletePending SharingViolation",
    "optilock.statements": "BulkResult demand guard_statements no_bump unchanged",
    "optilock.tokens": "CompareValues Counter Manual RowVersion Timestamp Unique",
    "optilock.unit": "Adaptive Part attempt_number",
}
#: Names that were at the top level, and the module that has each of them now.
NAMES: Final = {name: home for home, names in _HOMES.items() for name in names.split()}
#: Modules that have moved, and the modules in which to look for their names, in this order.
MODULES: Final[dict[str, tuple[str, ...]]] = {
    "optilock.conflicts": ("optilock.resolvers",),
    "optilock.conflicts.merge": ("optilock.resolvers.merge",),
    "optilock.conflicts.resolution": ("optilock.resolvers.resolution",),
    "optilock.conflicts.resolvers": ("optilock.resolvers.rules",),
    "optilock.http": ("optilock.preconditions",),
    "optilock.http.errors": ("optilock.errors",),
    "optilock.http.etags": ("optilock.preconditions.entity_tags",),
    "optilock.http.fields": ("optilock.conditions.request",),
    "optilock.http.preconditions": ("optilock.preconditions.rfc9110",),
    "optilock.http.request": ("optilock.conditions.request",),
    "optilock._mapping": ("optilock._mapping",),
    "optilock._mapping.triggers": ("optilock.statements",),
    "optilock.plain": ("optilock.serialize",),
    "optilock.queue.holding": ("optilock.queue.worker_state",),
    "optilock.renewal": ("optilock.leases.renewal",),
    "optilock.tables.leases": ("optilock.tables.names",),
    "optilock.tables.shares": ("optilock.tables.names",),
    "optilock.testing.fixtures": ("optilock.pytest_plugin",),
    "optilock.testing.round_trips": ("optilock.testing.counting",),
    "optilock.testing.servers": ("optilock_apps.servers",),
    "optilock.testing.steps": ("optilock.testing.interleave",),
    "optilock.web.cors": ("optilock.web.conditions",),
    "optilock.wiki": ("optilock_apps.wiki",),
    "optilock.wiki.conflict": ("optilock_apps.wiki.conflict",),
    "optilock.wiki.pages": ("optilock_apps.wiki.pages",),
}

#: Names that are others in the module that replaces theirs.
_RENAMED: Final = {
    ("optilock.tables.leases", "SET"): "LEASES",
    ("optilock.tables.shares", "SET"): "SHARES",
    ("optilock.unit", "RetriedUnitOptions"): "UnitOptions",
}


def load_name(name: str) -> Any:
    """Return the object that ``optilock.<name>`` was, and warn of its new home.

    Raises:
        AttributeError: the top level never had such a name.
    """
    home = NAMES.get(name)
    if home is None:
        raise AttributeError(f"module 'optilock' has no attribute {name!r}")
    _warn(f"optilock.{name} has moved", f"from {home} import {name}", stacklevel=4)
    return getattr(importlib.import_module(home), name)


def load_renamed(module: str, name: str) -> Any:
    """Return what the module has under another name now, and warn of it.

    Raises:
        AttributeError: the module never had such a name.
    """
    now = _RENAMED.get((module, name))
    if now is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _warn(f"{module}.{name} has another name", f"from {module} import {now}", stacklevel=4)
    return getattr(importlib.import_module(module), now)


def install() -> None:
    """Let Python's import find the modules of :data:`MODULES` under their old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(MetaPathFinder):
    """Finds a module that has moved; it comes last, so an existing module wins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        return ModuleSpec(fullname, _Loader(), is_package=fullname + "." in _PARENTS)


_PARENTS: Final = frozenset(name[: name.rindex(".") + 1] for name in MODULES)


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _View(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: each name is looked up where it is now."""


class _View(ModuleType):
    """A module under its old name: its names are those of the modules that replace it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        now = _RENAMED.get((self.__name__, name), name)
        for home in MODULES[self.__name__]:
            module = importlib.import_module(home)
            if hasattr(module, now):
                _warn(f"{self.__name__} has moved", f"from {home} import {now}", stacklevel=3)
                return getattr(module, now)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _warn(what: str, instead: str, *, stacklevel: int) -> None:
    warnings.warn(
        f"{what}: write `{instead}`. The old path works until optilock 0.3.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
