"""Leases of names, such as a nightly import or a whole class; and the places of leases.

::

    lease = acquire(session, Name("nightly-import"), 30)

Its row is in the table ``optilock_leases``, which a migration creates
(``op.create_optilock_tables("leases", revision=2)``). The row is made when the name is first
leased, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.orm import InstanceState, Mapper, Session

from optilock import events
from optilock._columns.identities import has_one_spelling, identity_given
from optilock._mapped import Identity, facts, identity_of
from optilock._watched.rows.entries import Attempt, entry_of
from optilock._watched.rows.stored import read_stored, stored_key
from optilock._watched.session.connections import (
    connection_to_write,
    given_session,
    is_autocommit,
    own_connection,
)
from optilock.conditions.request import mark_not_met
from optilock.dialects import database_of
from optilock.dialects.rows import execute_unguarded
from optilock.entities.tags import demanded_versions
from optilock.errors import ConfigurationError, NotFound, PreconditionFailed, describe, row_name
from optilock.leases.columns import LeaseColumns, columns_of, register_columns
from optilock.leases.values import Lease, LeasePolicy
from optilock.preconditions.client_values import refuse_impossible_key
from optilock.preconditions.entity_tags import PLAIN
from optilock.tables.names import leases


@dataclass(frozen=True, eq=False)
class Names:
    """A table of names, and the policy of their leases."""

    schema: str | None = None
    table: str = leases.name
    policy: LeasePolicy = field(default_factory=LeasePolicy)
    columns: LeaseColumns = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schema: Any = self.schema
        copied: sa.Table = leases.to_metadata(sa.MetaData(), schema=schema, name=self.table)
        object.__setattr__(self, "columns", register_columns(copied, self.policy))


_USUAL = Names()


@dataclass(frozen=True)
class Name:
    """A name that can be leased.

    Raises:
        ConfigurationError: it is not a text of 1 to 200 characters.
    """

    name: str
    within: Names = field(default=_USUAL, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 200:
            raise ConfigurationError(
                "Name() takes a text of 1 to 200 characters: the name to lease."
            )


# -- places: the table, key and version of the row that has a lease's columns ----------------------

KEY = "optilock_key_"


@dataclass(frozen=True)
class Place:
    """The row that has the columns of one lease."""

    #: As in :class:`~optilock.leases.values.Lease`.
    of: Any
    #: For messages.
    what: str
    columns: LeaseColumns
    keys: tuple[sa.Column[Any], ...]
    identity: Identity
    mapper: Mapper[Any] | None = None

    @property
    def params(self) -> dict[str, Any]:
        return {f"{KEY}{i}": value for i, value in enumerate(self.identity)}

    @cached_property
    def here(self) -> list[sa.ColumnElement[bool]]:
        """SQL: the row has this key."""
        return [key == value for key, value in self.key_values().items()]

    def key_values(self) -> dict[sa.Column[Any], sa.ColumnElement[Any]]:
        """The columns of the key, and the parameters that they are equal to."""
        return {key: sa.bindparam(f"{KEY}{i}", type_=key.type) for i, key in enumerate(self.keys)}

    def lock(self) -> sa.Select[Any]:
        """Return a query of the row with its key as values, to be locked."""
        found: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(self.columns.table)
        keys = zip(self.keys, self.identity, strict=True)
        return found.where(*(key == value for key, value in keys))

    def connection(self, session: Session) -> sa.Connection:
        if self.mapper is not None:
            refuse_impossible_key(session, self.mapper, self.identity)
        return connection_to_write(session, self._mapper())

    def _mapper(self) -> Mapper[Any]:
        assert self.mapper is not None
        return self.mapper

    def versions(
        self, call: str, if_match: Any, connection: sa.Connection
    ) -> tuple[Any, ...] | None:
        """Return the versions that the caller demands; ``None``: any.

        Raises:
            ConfigurationError: rows of the class have no version, or a name has none.
            BadPrecondition: it is not a tag.
        """
        if if_match is None:
            return None
        if self.mapper is None or not facts(self.mapper).token:
            raise ConfigurationError(
                f"leases.{call}(if_match=...) needs a versioned row, and {self.what} has no"
                " version. Omit if_match. Nothing was sent."
            )
        call = f"leases.{call}"
        found = demanded_versions(call, PLAIN.of_row(self.mapper, self.identity), if_match)
        if found == () and not has_one_spelling(self.mapper):  # a tag has the key as it is stored
            stored = stored_key(connection, self.mapper, self.identity)
            row = PLAIN.of_row(self.mapper, stored or self.identity)
            found = demanded_versions(call, row, if_match)
        return found

    @property
    def tells_writes(self) -> bool:
        """Whether the holder sees a write of the row after its lease has ended."""
        guards = self.columns.policy.guards
        return self.mapper is None or bool(facts(self.mapper).token) or "update" not in guards

    def make(self, connection: sa.Connection) -> bool:
        """Make the row of a name; return ``False`` for a mapped row."""
        return False

    def require(self, connection: sa.Connection, versions: tuple[Any, ...] | None) -> None:
        """Raise if the row is gone, or in another version.

        Raises:
            NotFound: it is gone.
            PreconditionFailed: it is in none of the versions.
        """
        mapper = self._mapper()
        database = database_of(connection.dialect)
        share = database.isolation.locks_show_newer and not is_autocommit(connection)
        found = read_stored(connection, mapper, [self.identity], lock=False, share=share)
        stored = next(iter(found.values()), None)
        if stored is None:
            raise NotFound(mapper.class_, self.identity)
        if versions is None or stored[facts(mapper).token] in versions:
            return
        seen = dict(zip(facts(mapper).keys, self.identity, strict=True))
        if len(versions) == 1:
            seen[facts(mapper).token] = versions[0]
        mark_not_met()
        attempt = Attempt(mapper, self.identity, "verify", seen, seen, {})
        entry = entry_of(attempt, stored, demanded=True)
        raise events.report(PreconditionFailed([entry]))

    def read(self, connection: sa.Connection, *, newest: bool = True) -> Mapping[str, Any] | None:
        """Return the columns of the lease and the time; ``None`` if there is no row.

        The ``newest`` row may have to be locked: a plain read may show that of the snapshot.
        """
        columns = self.columns
        query: sa.Select[Any] | None = columns.known.get("look")
        if query is None:
            made: sa.Select[Any] = sa.select(*columns.lease).where(*self.here)
            query = columns.known["look"] = made
        database = database_of(connection.dialect)
        if newest and database.isolation.locks_show_newer and not is_autocommit(connection):
            # Not shared: two that look, and then write, would wait for each other.
            query = query.with_for_update(of=columns.table)
        row = execute_on_lease(connection, columns, query, self.params).mappings().first()
        return None if row is None else dict(row)


def execute_on_lease(
    connection: sa.Connection, columns: LeaseColumns, statement: Any, params: Any
) -> Any:
    """Send a statement of the columns of a lease.

    Raises:
        ConfigurationError: the table has no column for the holder's label.
    """
    try:
        return execute_unguarded(connection, statement, params)
    except DBAPIError as error:
        said = str(error.orig).strip().splitlines()
        names_it = bool(said) and columns.holder.name in said[0]
        if isinstance(error, DataError) or not names_it:
            raise
        raise ConfigurationError(_NO_HOLDER.format(columns.table.fullname)) from error


_NO_HOLDER = (
    "The database does not take the column lease_holder of the table {0}. The table is probably"
    " older than that column, which every operation on its leases reads or sets. Nothing was stored"
    " by this call. Add it in a migration: for leases of names run those of optilock up to 0006, or"
    ' op.upgrade_optilock_tables("leases", to=2); for rows,'
    ' op.add_column("{0}", sa.Column("lease_holder", sa.String(200))), which autogenerate writes.'
)


def place_of_row(given: Any, call: str) -> Place:
    """Return the place of an object of the session, of ``(Page, 7)``, or of a lease.

    Raises:
        ConfigurationError: it is none of these, or rows of the class have no leases.
    """
    if isinstance(given, Lease):
        given = given.of
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], type):
        mapper: Any = sa.inspect(given[0], raiseerr=False)
        if isinstance(mapper, Mapper):
            return _place(mapper, identity_given(f"leases.{call}", mapper, given[1]))
    state = None if isinstance(given, (type, tuple)) else sa.inspect(given, raiseerr=False)
    if not isinstance(state, InstanceState) or state.key is None:
        raise ConfigurationError(
            f"leases.{call}() got {describe(given)}: give it a stored object, a class and a key as"
            " (Page, 7), a Name, or a lease. Nothing was sent."
        )
    return _place(state.mapper, identity_of(state))


def _place(mapper: Mapper[Any], identity: Identity) -> Place:
    columns = columns_of(mapper)
    cls = mapper.class_
    if columns is None:
        raise ConfigurationError(
            f"Rows of {cls.__name__} have no leases: put the mixin optilock.leases.Leasable in"
            " front of its bases, and add the columns by a migration. Nothing was sent."
        )
    own = tuple(_in(columns, mapper, one) for one in mapper.primary_key)
    return Place((cls, identity), row_name(cls, identity), columns, own, identity, mapper)


def _in(columns: LeaseColumns, mapper: Mapper[Any], key: Any) -> sa.Column[Any]:
    same: Any = mapper.get_property_by_column(key).columns
    return next(one for one in same if one.table is columns.table)


@dataclass(frozen=True)
class _NamedPlace(Place):
    def connection(self, session: Session) -> sa.Connection:
        return own_connection(session, {"clause": self.columns.table.update()})

    def make(self, connection: sa.Connection) -> bool:
        table = self.columns.table
        insert = database_of(connection.dialect).one_row.insert_if_absent(table)
        if insert is None:
            raise ConfigurationError(
                f"Names cannot be leased on {connection.dialect.name}: optilock does not know how"
                " it inserts a row that may be there. Nothing was sent."
            )
        execute_unguarded(connection, insert, {"name": self.identity[0]})
        return True

    def require(self, connection: sa.Connection, versions: tuple[Any, ...] | None) -> None:
        """A name is always there."""


def name_of(cls: type[Any]) -> Name | None:
    """Return the name whose lease guards all rows of the class."""
    policy = getattr(cls, "__lease_policy__", None)
    found = policy.all_rows if isinstance(policy, LeasePolicy) else None
    return found if isinstance(found, Name) else None


def is_same_name(name: Name, other: Name) -> bool:
    """Return whether both are the same row of the same table, with any limits of leases."""
    tables = {one.within.columns.table.fullname for one in (name, other)}
    return name.name == other.name and len(tables) == 1


def prepare(session: Session, of: type[Any] | Name) -> None:
    """Make the row of a name whose lease guards all rows of a class: once, as in a migration.

    Until then no row of the class can be written: without the row of the name there is nothing to
    lock, and a lease could be acquired between a write and its COMMIT. ``acquire`` of the name also
    makes the row. If the row is there, it stays as it is.

    Raises:
        ConfigurationError: it is neither a name nor a class that has one.
    """
    session = given_session(
        session, "leases.prepare", "await session.run_sync(leases.prepare, ...)"
    )
    name = name_of(of) if isinstance(of, type) else of
    if not isinstance(name, Name):
        raise ConfigurationError(
            f"leases.prepare() got {describe(of)}: give it a Name, or a class with"
            " __lease_policy__ = LeasePolicy(all_rows=Name(...)). Nothing was sent."
        )
    place = place_of(name, "prepare")
    place.make(place.connection(session))


def place_of(given: Any, call: str) -> Place:
    """Return the place of the lease of a name, of all rows of a class, or of a row.

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
