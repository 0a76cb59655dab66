"""Where the lease of a row, or of a name, is kept: which table, which key, in which version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Select, bindparam, inspect, select
from sqlalchemy.orm import InstanceState, Mapper, Session

from optilock import events
from optilock.dialects import database_of
from optilock.dialects.rows import native
from optilock.entities.tags import versions
from optilock.errors import ConfigurationError, PreconditionFailed, described
from optilock.http.errors import NotFound
from optilock.http.etags import PLAIN
from optilock.http.identities import has_one_spelling, identity_given
from optilock.http.request import not_met
from optilock.leases.columns import LeaseColumns, columns_of
from optilock.leases.values import Lease
from optilock.mapped import Identity, facts, identity_of
from optilock.preconditions.values import refuse_impossible_key
from optilock.rows.sides import Attempt, entry_of
from optilock.rows.stored import read_stored
from optilock.session.connections import autocommits, connection_to_write
from optilock.statements.one_row import stored_key

__all__ = ["Place", "place_of_row"]

KEY = "optilock_key_"


@dataclass(frozen=True)
class Place:
    """The row that has the columns of one lease."""

    #: As :class:`~optilock.leases.values.Lease` says it.
    of: Any
    #: For messages.
    what: str
    columns: LeaseColumns
    keys: tuple[Column[Any], ...]
    identity: Identity
    mapper: Mapper[Any] | None = None

    @property
    def params(self) -> dict[str, Any]:
        return {f"{KEY}{i}": value for i, value in enumerate(self.identity)}

    @cached_property
    def here(self) -> list[ColumnElement[bool]]:
        """SQL: it is this row."""
        return [key == bindparam(f"{KEY}{i}", type_=key.type) for i, key in enumerate(self.keys)]

    def connection(self, session: Session) -> Connection:
        if self.mapper is not None:
            refuse_impossible_key(session, self.mapper, self.identity)
        return connection_to_write(session, self._mapper())

    def _mapper(self) -> Mapper[Any]:
        assert self.mapper is not None
        return self.mapper

    def versions(self, call: str, if_match: Any, connection: Connection) -> tuple[Any, ...] | None:
        """The versions that the caller demands; ``None``: any.

        Raises:
            ConfigurationError: rows of the class have no version, or a name has none.
            BadPrecondition: it is no tag.
        """
        if if_match is None:
            return None
        if self.mapper is None or not facts(self.mapper).token:
            raise ConfigurationError(
                f"{call}() got if_match, and {self.what} has no version: leave it out. Nothing was"
                " sent."
            )
        call = f"leases.{call}"
        found = versions(self.mapper, self.identity, call, if_match, PLAIN)
        if found == () and not has_one_spelling(self.mapper):  # a tag has the key as it is stored
            stored = stored_key(connection, self.mapper, self.identity)
            found = versions(self.mapper, stored or self.identity, call, if_match, PLAIN)
        return found

    @property
    def tells_writes(self) -> bool:
        """Would a write of the row, after its lease has ended, be seen by its holder?"""
        guards = self.columns.policy.guards
        return self.mapper is None or bool(facts(self.mapper).token) or "update" not in guards

    def make(self, connection: Connection) -> bool:
        """Make the row, if that is how it comes to be."""
        return False

    def require(self, connection: Connection, versions: tuple[Any, ...] | None) -> None:
        """Raise where the row is gone, or in another version.

        Raises:
            NotFound: it is gone.
            PreconditionFailed: it is in none of the versions.
        """
        mapper = self._mapper()
        database = database_of(connection.dialect)
        share = database.locks_show_newer and not autocommits(connection)
        found = read_stored(connection, mapper, [self.identity], lock=False, share=share)
        stored = next(iter(found.values()), None)
        if stored is None:
            raise NotFound(mapper.class_, self.identity)
        if versions is None or stored[facts(mapper).token] in versions:
            return
        seen = dict(zip(facts(mapper).keys, self.identity, strict=True))
        if len(versions) == 1:
            seen[facts(mapper).token] = versions[0]
        not_met()
        attempt = Attempt(mapper, self.identity, "verify", seen, seen, {})
        entry = entry_of(attempt, stored, demanded=True)
        events.emit(lambda: events.Conflict((entry,)))
        raise PreconditionFailed([entry])

    def read(self, connection: Connection, *, newest: bool = True) -> Mapping[str, Any] | None:
        """The columns of the lease and the time, as they are now; ``None``: there is no row.

        The ``newest`` row may have to be locked: a plain read may show the one of the snapshot.
        """
        columns = self.columns
        query: Select[Any] | None = columns.known.get("look")
        if query is None:
            made: Select[Any] = select(
                columns.id,
                columns.since,
                columns.until,
                columns.length,
                columns.fence,
                columns.clock.label("now"),
            ).where(*self.here)
            query = columns.known["look"] = made
        database = database_of(connection.dialect)
        if newest and database.locks_show_newer and not autocommits(connection):
            # Not shared: two that look, and then write, would wait for each other.
            query = query.with_for_update(of=columns.table)
        row = native(connection, query, self.params).mappings().first()
        return None if row is None else dict(row)


def place_of_row(given: Any, call: str) -> Place:
    """The place of an object of the session, of ``(Page, 7)``, or of what a lease is of.

    Raises:
        ConfigurationError: it is none of these, or rows of the class have no leases.
    """
    if isinstance(given, Lease):
        given = given.of
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], type):
        mapper: Any = inspect(given[0], raiseerr=False)
        if isinstance(mapper, Mapper):
            return _place(mapper, identity_given(f"leases.{call}", mapper, given[1]))
    state = None if isinstance(given, (type, tuple)) else inspect(given, raiseerr=False)
    if not isinstance(state, InstanceState) or state.key is None:
        raise ConfigurationError(
            f"leases.{call}() got {described(given)}: give it a stored object, a class and a key as"
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
    key = identity[0] if len(identity) == 1 else identity
    own = tuple(_in(columns, mapper, one) for one in mapper.primary_key)
    return Place((cls, identity), f"{cls.__name__} {key!r}", columns, own, identity, mapper)


def _in(columns: LeaseColumns, mapper: Mapper[Any], key: Any) -> Column[Any]:
    same: Any = mapper.get_property_by_column(key).columns
    return next(one for one in same if one.table is columns.table)
