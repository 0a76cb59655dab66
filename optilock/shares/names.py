"""A name and its open handles, locked by one transaction.

A transaction that opens, closes or deletes a name locks its row first. The row is made when it is
missing, and is never deleted, so there is always a row to lock. Then the handles are read, also
with a lock, which shows the newest ones at every level of isolation. Handles whose time is over
are closed by that read.

A row can stand in for a name: ``(Page, 7)``, or the stored object, instead of ``"pages/7"``::

    handle = shares.open(session, page, "RW", share="R")

The name is that of the table and the key, as they are stored. Opening a row locks it first, and so
waits for the COMMIT of another session that is writing it.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Mapper, Session

from optilock._columns.identities import identity_given
from optilock._mapped import Identity, facts, identity_of
from optilock._watched.session.connections import connection_to_write, given_session, own_connection
from optilock.dialects import database_of
from optilock.dialects.rows import ask_with_hint, execute_unguarded
from optilock.errors import ConfigurationError, NotFound, describe
from optilock.preconditions.client_values import refuse_impossible_key
from optilock.shares.errors import HandleLost, Open
from optilock.shares.values import Mode, Shares, check_name, is_compatible, letters

Row = tuple[Mapper[Any], Identity]


@dataclass(frozen=True)
class StoredHandle:
    """A stored open handle."""

    id: uuid.UUID = field(repr=False)
    owner: str | None
    access: Mode
    share: Mode
    delete_on_close: bool
    since: datetime.datetime
    until: datetime.datetime
    alive: bool

    def shown(self) -> Open:
        return Open(self.owner, letters(self.access), letters(self.share), self.since, self.until)


@dataclass
class LockedName:
    """A name whose row is locked until the transaction is over."""

    within: Shares
    connection: sa.Connection
    name: str
    there: bool
    delete_pending: bool
    read_only: bool
    open: list[StoredHandle]

    def in_the_way(self, access: Mode, share: Mode) -> list[StoredHandle]:
        """Return the handles with which this access and share do not fit."""
        return [one for one in self.open if not is_compatible(one.access, one.share, access, share)]

    def handle(self, mine: uuid.UUID) -> StoredHandle:
        """Return the open handle of this id.

        Raises:
            HandleLost: there is none.
        """
        for one in self.open:
            if one.id == mine:
                return one
        raise HandleLost(self.name)

    def close(self, some: Iterable[StoredHandle]) -> None:
        """Close these handles; the name goes with the last one if it is to be deleted."""
        ids = [one.id for one in some]
        gone = [one for one in self.open if one.id in ids]
        if not gone:
            return
        table = self.within.handles
        named = table.c.name == self.name
        execute_unguarded(self.connection, sa.delete(table).where(named, table.c.id.in_(ids)))
        self.open = [one for one in self.open if one.id not in ids]
        self.delete_pending = self.delete_pending or any(one.delete_on_close for one in gone)
        self.settle()

    def settle(self) -> None:
        """Delete the name if that is pending, and no handle is open any more."""
        if self.delete_pending and not self.open:
            self.there = self.delete_pending = self.read_only = False

    def store(self) -> None:
        """Store the state of the name."""
        table = self.within.names
        values = {
            "there": self.there,
            "delete_pending": self.delete_pending,
            "read_only": self.read_only,
            "moved": table.c.moved + 1,
        }
        execute_unguarded(
            self.connection, sa.update(table).where(table.c.name == self.name).values(values)
        )

    def add(self, values: Mapping[str, Any]) -> None:
        execute_unguarded(
            self.connection, sa.insert(self.within.handles).values(name=self.name, **values)
        )


def connection_of(session: Session, call: str, within: Shares) -> sa.Connection:
    """Return the session's connection to the tables.

    Raises:
        ConfigurationError: it is not a session.
    """
    session = given_session(session, call, f"await optilock.asyncio.shares.{call}(...)")
    return own_connection(session, {"clause": within.names.update()})


def lock_name(connection: sa.Connection, within: Shares, name: str) -> LockedName:
    """Lock the name for ourselves, and close the handles whose time is over."""
    return _looked_at(connection, within, name, exclusive=True)


def lock_name_shared(connection: sa.Connection, within: Shares, name: str) -> LockedName:
    """Lock the name against opening and closing, but not against other such locks.

    Expired handles are left out here. The next exclusive lock of the name closes them.
    """
    return _looked_at(connection, within, name, exclusive=False)


def read_name(connection: sa.Connection, within: Shares, name: str) -> LockedName | None:
    """Return the name as it is now, without a lock; ``None`` if it was never opened."""
    row = execute_unguarded(connection, _name_query(within, name)).mappings().first()
    if row is None:
        return None
    found = _read_handles(connection, _handles_query(within, name))
    return _without_expired(_name_of(connection, within, row, found))


def _looked_at(
    connection: sa.Connection, within: Shares, name: str, *, exclusive: bool
) -> LockedName:
    database_of(connection.dialect).locks.begin_writing(connection, within.names)
    query = _name_query(within, name).with_for_update(read=not exclusive)
    row = execute_unguarded(connection, query).mappings().first()
    if row is None:
        _make(connection, within, name)
        row = execute_unguarded(connection, query).mappings().one()
    # others' heartbeats go on under a shared lock (PostgreSQL: FOR KEY SHARE)
    options = {} if exclusive else {"read": True, "key_share": True}
    handles = _handles_query(within, name).with_for_update(**options)
    found = _read_handles(connection, handles)
    name_found = _name_of(connection, within, row, found)
    if not exclusive:
        return _without_expired(name_found)
    over = [one for one in name_found.open if not one.alive]
    if over:
        name_found.close(over)
        name_found.store()
    return name_found


def _name_query(within: Shares, name: str) -> Any:
    return sa.select(within.names).where(within.names.c.name == name)


def _handles_query(within: Shares, name: str) -> Any:
    table = within.handles
    query = sa.select(table, (table.c.until > within.clock).label("alive"))
    return query.where(table.c.name == name).order_by(table.c.id)


def _read_handles(connection: sa.Connection, query: Any) -> list[StoredHandle]:
    rows = execute_unguarded(connection, query).mappings()
    return [
        StoredHandle(**{name: row[name] for name in StoredHandle.__match_args__}) for row in rows
    ]


def _name_of(
    connection: sa.Connection, within: Shares, row: Any, found: list[StoredHandle]
) -> LockedName:
    flags = {name: row[name] for name in ("name", "there", "delete_pending", "read_only")}
    return LockedName(within, connection, open=found, **flags)


def _without_expired(name: LockedName) -> LockedName:
    """Return the name without its expired handles."""
    over = [one for one in name.open if not one.alive]
    name.open = [one for one in name.open if one.alive]
    if over:
        name.delete_pending = name.delete_pending or any(one.delete_on_close for one in over)
        name.settle()
    return name


def _make(connection: sa.Connection, within: Shares, name: str) -> None:
    """Make the row of a name; another program may be making it at the same time."""
    table = within.names
    changes = {"moved": table.c.moved}
    made = database_of(connection.dialect).one_row.upsert(table, lambda new: changes)
    values = {"there": False, "delete_pending": False, "read_only": False, "moved": 0}
    execute_unguarded(connection, made.values(name=name, **values))


def handle_clause(within: Shares, mine: uuid.UUID, name: str) -> sa.ColumnElement[bool]:
    """Return the SQL condition for this handle."""
    table = within.handles
    return sa.and_(table.c.name == name, table.c.id == mine)


# -- rows as names ---------------------------------------------------------------------------------


def shares_of(mapper: Mapper[Any]) -> Shares | None:
    """Return the ``Shares`` of a class with the mixin."""
    found: Shares | None = getattr(mapper.class_, "__shares__", None)
    return found


def name_in_sql(mapper: Mapper[Any]) -> sa.ColumnElement[str]:
    """Return the SQL expression for the name of a row."""
    table: Any = facts(mapper).root.local_table
    name: sa.ColumnElement[Any] = sa.literal(f"{table.name}/", sa.String)
    for number, column in enumerate(facts(mapper).root.primary_key):
        if number:
            name = name + sa.literal(",", sa.String)
        name = name + (column if isinstance(column.type, sa.String) else sa.cast(column, sa.String))
    return name


def name_and_row(
    session: Session, given: Any, call: str, *, lock: bool = False
) -> tuple[str, Row | None]:
    """Return the given name, and its row, if it is the name of one.

    Raises:
        ConfigurationError: it is neither a name nor a row of a class with the mixin.
        NotFound: there is no such row.
    """
    if isinstance(given, str):
        return check_name(given), None
    mapper, identity = _row_given(given, call)
    session = given_session(session, call, f"await optilock.asyncio.shares.{call}(...)")
    refuse_impossible_key(session, mapper, identity)
    connection = connection_to_write(session, mapper)
    keys = facts(mapper).root.primary_key
    query = sa.select(name_in_sql(mapper), *keys).where(
        *(key == value for key, value in zip(keys, identity, strict=True))
    )
    if lock:
        database, table = database_of(connection.dialect), facts(mapper).root.local_table
        assert isinstance(table, sa.Table)
        database.locks.begin_writing(connection, table)
        lock_row = partial(database.locks.lock, query, table, deleting=False)
        found = ask_with_hint(
            database, table, lambda: execute_unguarded(connection, lock_row()).first()
        )
    else:
        found = execute_unguarded(connection, query).first()
    if found is None:
        raise NotFound(mapper.class_, identity)
    return check_name(found[0]), (mapper, tuple(found[1:]))


def _row_given(given: Any, call: str) -> Row:
    if isinstance(given, tuple) and len(given) == 2:
        mapper = sa.inspect(given[0], raiseerr=False)
        if isinstance(mapper, Mapper) and shares_of(mapper):
            return mapper, tuple(identity_given(f"shares.{call}", mapper, given[1]))
    state = sa.inspect(given, raiseerr=False)
    if isinstance(state, InstanceState) and state.key and shares_of(state.mapper):
        return state.mapper, identity_of(state)
    raise ConfigurationError(
        f"shares.{call}() takes a name, a stored object of a class with the mixin Shared, or"
        f" (Model, key), not {describe(given)}. A name is a text of 1 to 200 characters. Nothing"
        " was sent."
    )
