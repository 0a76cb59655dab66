"""optilock's own tables, in named sets: a file a set.

A set begins at revision 0, where there is nothing, and each of its steps leads one revision
further, and back. A migration names the revision, so it does the same for ever::

    op.create_optilock_tables("commit_tokens")              # to revision 1
    op.upgrade_optilock_tables("commit_tokens", to=2)       # one step

:mod:`commit_tokens` are of units that must be applied once, :mod:`leases` of leased names,
:mod:`shares` of names that are open, :mod:`queue` of messages. A new set is a module of this
package with a ``SET``; nothing else has to know of it. Its tables are left alone by autogenerate,
which otherwise would drop what a project's models do not mention.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import MetaData

from optilock.errors import ConfigurationError

__all__ = ["VERSION_TABLE", "Step", "TableSet", "table_set", "table_sets"]

#: Where the migrations that come with optilock note how far they are.
VERSION_TABLE = "optilock_alembic_version"


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

    ``steps`` are never changed once they are released: what comes later is another step. ``tables``
    are as they stand after the last one.
    """

    name: str
    tables: MetaData
    steps: tuple[Step, ...]
    #: The same set with tables of another name, where it has one to choose.
    named: Callable[[str], TableSet] | None = None

    @property
    def revision(self) -> int:
        """The newest revision."""
        return len(self.steps)

    def table_names(self) -> tuple[str, ...]:
        return tuple(table.name for table in self.tables.sorted_tables)


def table_sets() -> dict[str, TableSet]:
    """All sets by their names."""
    modules = (
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    )
    sets = [module.SET for module in modules if hasattr(module, "SET")]
    return {one.name: one for one in sets}


def table_set(name: str, table: str | None = None) -> TableSet:
    """One set; its tables are called ``table``, and names that begin so.

    Raises:
        ConfigurationError: there is no set of that name, or it does not let its tables be named.
    """
    known = table_sets()
    if name not in known:
        raise ConfigurationError(
            f"There is no set of optilock's tables named {name!r}: there are"
            f" {', '.join(sorted(known))}."
        )
    if table is None:
        return known[name]
    named = known[name].named
    if named is None or not isinstance(table, str) or not table:
        raise ConfigurationError(
            f"The tables of {name} cannot be called {table!r}: leave table= out, or give a set that"
            " lets its tables be named (queue) a text."
        )
    return named(table)
