"""Leases of names: of what is no row, such as a nightly import, or a whole class.

::

    lease = acquire(session, Name("nightly-import"), 30)

Its row is in the table ``optilock_leases``, which a migration creates
(``op.create_optilock_tables("leases")``). The row is made when the name is first leased, and stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.orm import Session

from optilock.dialects import database_of
from optilock.dialects.rows import native
from optilock.errors import ConfigurationError, described
from optilock.leases.columns import LeaseColumns, take
from optilock.leases.places import Place, place_of_row
from optilock.leases.policy import LeasePolicy
from optilock.leases.values import Lease
from optilock.session.connections import own_connection, session_given
from optilock.tables.leases import leases

__all__ = ["Name", "Names", "are_one", "name_of", "place_of", "prepare"]


@dataclass(frozen=True, eq=False)
class Names:
    """A table of names, and what their leases are like."""

    schema: str | None = None
    table: str = leases.name
    policy: LeasePolicy = field(default_factory=LeasePolicy)
    columns: LeaseColumns = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schema: Any = self.schema
        copied: Table = leases.to_metadata(MetaData(), schema=schema, name=self.table)
        object.__setattr__(self, "columns", take(copied, self.policy))


_USUAL = Names()


@dataclass(frozen=True)
class Name:
    """A name that can be leased.

    Raises:
        ConfigurationError: it is no text of 1 to 200 characters.
    """

    name: str
    within: Names = field(default=_USUAL, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 200:
            raise ConfigurationError(
                "Name() takes a text of 1 to 200 characters: the name of what is leased."
            )


@dataclass(frozen=True)
class _NamedPlace(Place):
    def connection(self, session: Session) -> Connection:
        return own_connection(session, {"clause": self.columns.table.update()})

    def make(self, connection: Connection) -> bool:
        table = self.columns.table
        insert = database_of(connection.dialect).insert_if_absent(table)
        if insert is None:
            raise ConfigurationError(
                f"Names cannot be leased on {connection.dialect.name}: optilock does not know how"
                " it inserts a row that may be there. Nothing was sent."
            )
        native(connection, insert, {"name": self.identity[0]})
        return True

    def require(self, connection: Connection, versions: tuple[Any, ...] | None) -> None:
        """A name is always there."""


def name_of(cls: type[Any]) -> Name | None:
    """The name whose lease guards all rows of the class."""
    policy = getattr(cls, "__lease_policy__", None)
    found = policy.all_rows if isinstance(policy, LeasePolicy) else None
    return found if isinstance(found, Name) else None


def are_one(name: Name, other: Name) -> bool:
    """Is it the same row of the same table, whichever ``Names`` say how long its leases last?"""
    tables = {one.within.columns.table.fullname for one in (name, other)}
    return name.name == other.name and len(tables) == 1


def prepare(session: Session, of: type[Any] | Name) -> None:
    """Make the row of a name whose lease guards all rows of a class: once, as in a migration.

    Until then no row of the class can be written: without the row of the name there is nothing to
    lock, and somebody could become the holder between a write and its COMMIT. ``acquire`` of the
    name makes it, too; where the row is there, it stays as it is.

    Raises:
        ConfigurationError: it is no name, and no class that has one.
    """
    session = session_given(
        session, "leases.prepare", "await session.run_sync(leases.prepare, ...)"
    )
    name = name_of(of) if isinstance(of, type) else of
    if not isinstance(name, Name):
        raise ConfigurationError(
            f"leases.prepare() got {described(of)}: give it a Name, or a class with"
            " __lease_policy__ = LeasePolicy(all_rows=Name(...)). Nothing was sent."
        )
    place = place_of(name, "prepare")
    place.make(place.connection(session))


def place_of(given: Any, call: str) -> Place:
    """Where the lease of a name, of all rows of a class, or of a row, is kept.

    Raises:
        ConfigurationError: it is neither, or rows of the class have no leases.
    """
    if isinstance(given, Lease):
        given = given.of
    if isinstance(given, type):
        given = name_of(given) or given
    if not isinstance(given, Name):
        return place_of_row(given, call)
    columns = given.within.columns
    key = columns.table.c.name
    return _NamedPlace(given, f"the name {given.name!r}", columns, (key,), (given.name,))
