"""Checks of a transaction's promises, before each flush and before COMMIT.

Before a flush: an object that was read again since, and now holds a newer version, must not be
written, because the promise was made for the older one. Before COMMIT: rows that were promised and
not written are read with a shared lock, one statement a table, in the order of their keys, so that
the answer stays true until the transaction is over. Rows that a unit locked when it read them
are as they were, unless another statement may have ended those locks.

A lock does not reach all writers on a Galera cluster, whose nodes compare what transactions have
*written*: a row that is locked on one node is free on the others
(:meth:`optilock.dialects.base.Database.locks_are_local`). There the version of a promised row is
moved, and moved back: two statements a table. A transaction of another node that writes the row, or
promises the same of it, then conflicts with ours, and one of the two fails at COMMIT. The stored
version is the one from before, so ETags that clients hold stay valid. A version that a trigger
makes cannot be moved back: it moves by one step (``RowVersion``).
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from sqlalchemy import Column, Connection, DateTime, Table, and_, case, literal, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock import events
from optilock.conditions.write import first_expected
from optilock.dialects import database_of
from optilock.dialects.keys import key_in
from optilock.dialects.transient import ended_by_conflict
from optilock.errors import Action, ConfigurationError, Entry
from optilock.mapped import Place, State, facts, place_of
from optilock.undocumented.flushes import marked_deleted, opened_by, stored_to_flush
from optilock.watched.guard.ended import conflict_before_commit, promised_side
from optilock.watched.guard.records import Flush
from optilock.watched.rows.entries import Attempt, attempt_of, entry_of
from optilock.watched.rows.stored import read_stored
from optilock.watched.session.connections import connection_to_write
from optilock.watched.session.order import at_step
from optilock.watched.session.records import Promise, Promises, conflict_of
from optilock.watched.session.watched import Watched, known_of, watched
from optilock.watched.writes.send import expected_version

__all__ = ["write_as_they_are"]

#: An attribute of a session that has made promises, which are in its record, too.
_PROMISED = "_optilock_promised"


def promise(session: Session, state: State, version: Any, *, demanded: bool) -> None:
    """From here to the end of the transaction the row of ``state`` must be in ``version``."""
    promises, place = promises_of(session), place_of(state)
    if not known_of(session).is_ours(place):
        promises.add(place, Promise(state.mapper, place[1], version, demanded))


def promises_of(session: Session) -> Promises:
    """The promises of the session's transaction; from here on they are checked."""
    known = watched(session)
    if known.promises is None:
        known.promises = session.__dict__[_PROMISED] = Promises()
        at_step("promises", _PROMISED, before_commit=_before_commit)
    _now(session, known.promises)
    return known.promises


def _now(session: Session, promises: Promises) -> None:
    """Forget an earlier transaction, also where the running one has not asked the database yet."""
    known, running = watched(session), session.get_transaction()
    if running is not None:
        if running is known.root and promises.is_of(running):
            return
        known.in_transaction(running)
    promises.in_transaction(running)


def _before_commit(session: Session) -> None:
    """COMMIT of the transaction, or the release of a savepoint, which promises nothing.

    A COMMIT while a savepoint is open looks like its release, and then that follows at once.
    """
    known = watched(session)
    if session.in_nested_transaction() and not known.releasing:
        known.releasing = True
        return
    if known.promises:
        session.flush()
        check_before_commit(session)


def check_pending(flush: Flush, objects: Any) -> None:
    """Refuse to write a row in another version than the one that was promised.

    Raises:
        ConcurrencyError: with an entry for each such row; nothing was sent.
    """
    session, known = flush.session, flush.known
    promises = known.promises
    if not promises:
        return
    _now(session, promises)
    moved: dict[State, Promise] = {}
    for state in stored_to_flush(session) if promises else ():
        place = place_of(state)
        promised = promises.get(place)
        if promised is None or known.is_ours(place):
            continue
        if objects and not _among(state.obj(), objects):
            continue
        if not _is(state.mapper, _held(state), promised.version):
            moved[state] = promised
    if moved:
        _raise(known, list(_entries_of(session, moved)))


def check_before_commit(session: Session) -> None:
    """Look at the promised rows that were not written; they then stay as they are.

    Raises:
        ConcurrencyError: (``PreconditionFailed`` when a client had named the version) with an
            entry for each row that is in another version or gone.
    """
    known = watched(session)
    if not known.promises:
        return
    _now(session, known.promises)
    waiting = {**known.promises}
    for kept in (_locked, _kept):
        if waiting:
            for place in kept(session, known):
                waiting.pop(place, None)
    try:
        moved = list(_moved(session, waiting.values())) if waiting else []
    except DBAPIError as error:
        if not ended_by_conflict(error):
            raise
        raise conflict_before_commit(session) from error
    if moved:
        _raise(known, moved)
    known.promises.looked_at()


def _kept(session: Session, known: Watched) -> Iterator[Place]:
    """Promised rows that the transaction has written, and in the promised version."""
    for stated in known.stated:
        yield from stated.rows
    expected = first_expected(known.as_read())
    for place, promised in (known.promises or {}).items():
        if place in expected and _is(promised.mapper, expected[place], promised.version):
            yield place


def hold_by_locks(session: Session) -> bool:
    """Is there no promise for which a row has to be looked at, whatever is written until then?"""
    known = known_of(session)
    if not known.promises:
        return True
    _now(session, known.promises)
    return len(known.promises) == sum(1 for _ in _locked(session, known))


def _locked(session: Session, known: Watched) -> Iterator[Place]:
    """Promised rows that the transaction has read in that version with a lock on every writer.

    Nobody knows of them once a statement was sent beside queries and the rows of flushes: it may
    have gone back to a savepoint, which gives locks back, or have written the rows. So may others
    on a connection that the session was given.
    """
    root = session.get_transaction()
    if not known.locked or known.sent_more or root is None:
        return
    if not all(_locks_for_all(root, connection) for connection in known.connections):
        return
    for place, promised in (known.promises or {}).items():
        if place in known.locked and _is(promised.mapper, known.locked[place], promised.version):
            yield place


def _locks_for_all(root: SessionTransaction, connection: Connection) -> bool:
    """Do its locks reach every writer, until the session ends the transaction itself?"""
    local = database_of(connection.dialect).locks_are_local(connection)
    return not local and opened_by(root, connection)


def _raise(known: Watched, entries: list[Entry[Any]]) -> None:
    events.emit(lambda: events.Conflict(tuple(entries)))
    raise conflict_of(entries, known.promises)


def _moved(session: Session, promises: Iterable[Promise]) -> Iterator[Entry[Any]]:
    by_table: dict[Mapper[Any], list[Promise]] = {}
    for one in promises:
        by_table.setdefault(_read_as(one.mapper), []).append(one)
    for mapper, some in sorted(by_table.items(), key=lambda item: str(facts(item[0]).table)):
        yield from _moved_in(session, mapper, some)


def _moved_in(session: Session, mapper: Mapper[Any], some: list[Promise]) -> Iterator[Entry[Any]]:
    token = facts(mapper).token
    connection = connection_to_write(session, mapper)
    database_of(connection.dialect).begin_writing(connection, facts(mapper).table)
    identities, written = [one.identity for one in some], _must_write(session, connection)
    briefly = _in_the_way(known_of(session)) and bool(database_of(connection.dialect).brief_waits)
    known_of(session).waits_briefly |= briefly
    found = read_stored(
        connection, mapper, identities, only=(token,), share=not written, briefly=briefly
    )
    moved: dict[Mapper[Any], list[Promise]] = {}
    for one in some:
        row = found.get(one.identity)
        if row is None or not _is(mapper, row[token], one.version):
            moved.setdefault(one.mapper, []).append(one)
    for of_class, rows in moved.items():
        stored = read_stored(connection, of_class, [one.identity for one in rows], share=True)
        for one in rows:
            yield entry_of(_attempt(session, one), stored.get(one.identity))
    if written and not moved:
        write_as_they_are(connection, mapper, some)


def _in_the_way(known: Watched) -> bool:
    """Is the unit to run again rather than to wait, because others may wait for it?"""
    others = known.holds_locks or known.sent or len(known.promises or ()) > 1
    return bool(others) and known.hurries


def _must_write(session: Session, connection: Connection) -> bool:
    """Are there writers whom a lock does not reach? Who writes nothing is in nobody's way."""
    owner = known_of(session).owner
    local = database_of(connection.dialect).locks_are_local(connection)
    return local and not (owner is not None and owner.read_only)


def _attempt(session: Session, promised: Promise) -> Attempt:
    """Our side, with the values that were read if the object still holds those."""
    key = promised.mapper.identity_key_from_primary_key(promised.identity)
    obj = session.identity_map.get(key)
    state: State | None = None if obj is None else instance_state(obj)
    token = facts(promised.mapper).token
    if state is None or token not in state.dict or state.dict[token] != promised.version:
        return promised_side(promised)
    return attempt_of(state, "verify", promised.version)


def _entries_of(session: Session, moved: dict[State, Promise]) -> Iterator[Entry[Any]]:
    """Objects that are to be written: of what was promised only the version is known."""
    for state, promised in moved.items():
        mapper = state.mapper
        connection = connection_to_write(session, mapper)
        stored = read_stored(connection, mapper, [promised.identity])
        action: Action = "delete" if state in marked_deleted(session) else "update"
        ours = attempt_of(state, action, promised.version)
        seen = promised_side(promised).original
        attempt = Attempt(mapper, promised.identity, action, seen, ours.current, ours.changes)
        yield entry_of(attempt, stored.get(promised.identity))


def _read_as(mapper: Mapper[Any]) -> Mapper[Any]:
    """The mapper that finds every class of the table with the version."""
    base = facts(mapper).root
    return base if base.version_id_col is mapper.version_id_col else mapper


def _held(state: State) -> Any:
    token = facts(state.mapper).token
    try:
        return expected_version(state, token)
    except ObjectDeletedError:
        return None


def _is(mapper: Mapper[Any], version: Any, promised: Any) -> bool:
    token = facts(mapper).token
    return facts(mapper).same(token, version, promised)


def _among(obj: Any, objects: Any) -> bool:
    return any(obj is one for one in objects)


# -- written as they are, where a lock does not reach every writer ---------------------------------


def write_as_they_are(connection: Connection, mapper: Mapper[Any], some: list[Promise]) -> None:
    """Write these rows, which are locked and as they were promised.

    Raises:
        ConfigurationError: nobody knows another value for the version than the one that is there.
    """
    table, version = facts(mapper).table, facts(mapper).version
    keys = list(_keys(mapper, table))
    rows = update(table).where(key_in(keys, [one.identity for one in some]))
    others: dict[Any, Any] = {column: column for column in table.columns if _moves(column)}
    send = type(connection).execute  # what covers the connection has nothing to do with it
    kind = facts(mapper).kind
    if kind is not None and kind.has_trigger:
        send(connection, rows.values({**others, version: version}))
        return
    moved = kind and kind.following(version)
    if moved is None:
        moved = literal(_another(mapper, {one.version for one in some}), version.type)
    send(connection, rows.values({**others, version: moved}))
    seen = case(*((_is_row(keys, one), literal(one.version, version.type)) for one in some))
    send(connection, rows.values({**others, version: seen}))


def _keys(mapper: Mapper[Any], table: Table) -> Iterator[Column[Any]]:
    """The key, in the table of the version."""
    for key, own in zip(facts(mapper).rows[0], table.primary_key.columns, strict=False):
        yield key if key.table is table else own


def _is_row(keys: list[Column[Any]], one: Promise) -> Any:
    return and_(*(key == value for key, value in zip(keys, one.identity, strict=True)))


def _moves(column: Column[Any]) -> bool:
    """Would an UPDATE that does not name the column change it?

    A time may say ``ON UPDATE CURRENT_TIMESTAMP`` in the database alone.
    """
    if column.computed is not None or column.primary_key:
        return False
    kept = column.onupdate is not None or column.server_onupdate is not None
    return kept or isinstance(column.type, DateTime)


def _another(mapper: Mapper[Any], seen: set[Any]) -> Any:
    """A version that none of the rows has."""
    values = _values_like(next(iter(seen)))
    if values is None:
        name = mapper.class_.__name__
        raise ConfigurationError(
            f"A row of {name} was only verified, and this is a node of a Galera cluster, where it"
            " has to be written for that: optilock knows no other value for a version of that"
            f" type. Write the row in your own way (assign the next version of {name}), or give"
            " the class the token Counter(). Nothing is committed."
        )
    return next(value for value in values if value not in seen)


def _values_like(value: Any) -> Iterable[Any] | None:
    if isinstance(value, int):
        return count()
    if isinstance(value, str):
        return map(str, count())
    if isinstance(value, bytes):
        return (bytes(number) for number in count())
    if isinstance(value, uuid.UUID):
        return (uuid.UUID(int=number) for number in count())
    if isinstance(value, datetime.datetime):
        start = datetime.datetime(2000, 1, 1, tzinfo=value.tzinfo)
        return (start + datetime.timedelta(seconds=number) for number in count())
    return None
