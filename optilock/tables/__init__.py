"""optilock's own tables, in named sets.

A set begins at revision 0 without tables, and each of its steps leads one revision further, and
back. A migration names the revision, so its result never changes::

    op.create_optilock_tables("commit_tokens")              # to revision 1
    op.upgrade_optilock_tables("commit_tokens", to=2)       # one step

:mod:`names` has four sets with a row for each name: ``commit_tokens`` of units that must be
applied once, ``leases`` of leased names, ``shares`` of open names, and ``scopes`` of predicates.
:mod:`queue` has the set of messages, and :mod:`conflicts` the conflict log. A new set is a
module of this package with ``SETS``, which needs no registration. Autogenerate ignores its tables;
otherwise it would drop tables without a model.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import VARCHAR, MetaData, String, Uuid

from optilock.errors import ConfigurationError

__all__ = [
    "ANY_UUID",
    "VERSION_TABLE",
    "Step",
    "TableSet",
    "exact_text",
    "table_set",
    "table_sets",
]

#: The version table of the migrations that come with optilock.
VERSION_TABLE = "optilock_alembic_version"
#: A UUID of 128 bits; MariaDB's own type takes only UUIDs of some versions.
ANY_UUID = Uuid().with_variant(Uuid(native_uuid=False), "mysql", "mariadb")


#: ``do(op, schema)``, with Alembic's operations.
Do = Callable[[Any, str | None], None]


@dataclass(frozen=True)
class Step:
    """One revision further, and back."""

    upgrade: Do
    downgrade: Do


@dataclass(frozen=True)
class TableSet:
    """Tables of one feature.

    Released ``steps`` never change; later changes are further steps. ``tables`` are as after the
    last step.
    """

    name: str
    tables: MetaData
    steps: tuple[Step, ...]
    #: Returns the same set with tables of another name, if they can be named.
    named: Callable[[str], TableSet] | None = None

    @property
    def revision(self) -> int:
        """The newest revision."""
        return len(self.steps)

    def table_names(self) -> tuple[str, ...]:
        return tuple(table.name for table in self.tables.sorted_tables)


class _ExactText(VARCHAR):
    """A text that MariaDB compares byte by byte; its own type would import its dialect."""

    __visit_name__ = "VARCHAR"
    charset = "utf8mb4"

    def __init__(self, length: int | None = None) -> None:
        super().__init__(length, collation="utf8mb4_nopad_bin")


def exact_text(length: int = 200) -> String:
    """Return the type of a name. MariaDB's usual collations treat 'a', 'A' and 'a ' as equal."""
    return String(length).with_variant(_ExactText(length), "mysql", "mariadb")


def table_sets() -> dict[str, TableSet]:
    """Return all sets by their names."""
    modules = (
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    )
    return {one.name: one for module in modules for one in getattr(module, "SETS", ())}


def table_set(name: str, table: str | None = None) -> TableSet:
    """Return one set; ``table`` is its tables' name, or their names' prefix.

    Raises:
        ConfigurationError: there is no set of that name, or it does not let its tables be named.
    """
    sets = table_sets()
    if name not in sets:
        raise ConfigurationError(
            f"There is no set of optilock's tables named {name!r}: there are"
            f" {', '.join(sorted(sets))}."
        )
    if table is None:
        return sets[name]
    named = sets[name].named
    if named is None or not isinstance(table, str) or not table:
        raise ConfigurationError(
            f"The tables of {name} cannot be called {table!r}: leave table= out, or give a set that"
            " lets its tables be named (queue) a text."
        )
    return named(table)
