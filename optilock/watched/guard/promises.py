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
from weakref import ref

from sqlalchemy import Column, Connection, DateTime, Table, and_, case, literal, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock import events
from optilock.conditions.write import expected_versions
from optilock.dialects import database_of
from optilock.dialects.transient import ended_by_conflict
from optilock.dialects.values import rows_with_keys
from optilock.errors import Action, ConfigurationError, Entry
from optilock.mapped import Place, State, facts, place_of
from optilock.undocumented import flushes
from optilock.watched.guard.ended_transactions import conflict_before_commit, promised_side
from optilock.watched.guard.records import Flush
from optilock.watched.rows.entries import Attempt, attempt_of, entry_of
from optilock.watched.rows.stored import read_stored
from optilock.watched.session.connections import connection_to_write
from optilock.watched.session.order import add_step
from optilock.watched.session.record import SessionRecord, record_of, session_record
from optilock.watched.session.values import Promise, Promises, conflict_of
from optilock.watched.writes.send import expected_version

#: An attribute of a session that has made promises, which are in its record, too.
_PROMISED = "_optilock_promised"


def promise(session: Session, state: State, version: Any, *, demanded: bool) -> None:
    """Promise that the row of ``state`` is in ``version`` until the transaction ends."""
    promises, place = promises_of(session), place_of(state)
    if not record_of(session).is_ours(place):
        promises.add(place, Promise(state.mapper, place[1], version, demanded))


def promises_of(session: Session) -> Promises:
    """Return the promises of the session's transaction, which are checked from here on."""
    record = session_record(session)
    if record.promises is None:
        record.promises = session.__dict__[_PROMISED] = Promises()
        add_step("promises", _PROMISED, before_commit=_before_commit)
    _now(session, record.promises)
    return record.promises


def _now(session: Session, promises: Promises) -> None:
    """Forget promises of an earlier transaction, even if the running one has sent nothing yet."""
    record, running = session_record(session), session.get_transaction()
    if running is not None:
        if running is record.root and promises.is_of(running):
            return
        record.in_transaction(running)
    promises.in_transaction(running)


def _before_commit(session: Session) -> None:
    """Check the promises at COMMIT, and not at the release of a savepoint.

    A COMMIT while a savepoint is open looks like its release, and then that follows at once.
    """
    record = session_record(session)
    savepoint = session.get_nested_transaction()
    if savepoint is not None and (record.releasing is None or record.releasing() is not savepoint):
        record.releasing = ref(savepoint)
        return
    if record.promises:
        session.flush()
        check_before_commit(session)


def check_pending(flush: Flush, objects: Any) -> None:
    """Refuse to write a row in another version than the one that was promised.

    Raises:
        ConcurrencyError: with an entry for each such row; nothing was sent.
    """
    session, record = flush.session, flush.record
    promises = record.promises
    if not promises:
        return
    _now(session, promises)
    moved: dict[State, Promise] = {}
    for state in flushes.stored_states_to_flush(session) if promises else ():
        place = place_of(state)
        promised = promises.get(place)
        if promised is None or record.is_ours(place):
            continue
        if objects and not _among(state.obj(), objects):
            continue
        if not _is(state.mapper, _held(state), promised.version):
            moved[state] = promised
    if moved:
        _raise(record, list(_entries_of(session, moved)))


def check_before_commit(session: Session) -> None:
    """Check the promised rows that were not written; they then stay as they are.

    Raises:
        ConcurrencyError: (``PreconditionFailed`` when a client had named the version) with an
            entry for each row that is in another version or gone.
    """
    record = session_record(session)
    if not record.promises:
        return
    _now(session, record.promises)
    waiting = {**record.promises}
    for kept in (_locked, _kept):
        if waiting:
            for place in kept(session, record):
                waiting.pop(place, None)
    try:
        moved = list(_moved(session, waiting.values())) if waiting else []
    except DBAPIError as error:
        if not ended_by_conflict(error):
            raise
        raise conflict_before_commit(session) from error
    if moved:
        _raise(record, moved)
    record.promises.looked_at()


def _kept(session: Session, record: SessionRecord) -> Iterator[Place]:
    """Yield promised rows that the transaction has written, in the promised version."""
    for stated in record.stated:
        yield from stated.rows
    expected = expected_versions(record.as_read())
    for place, promised in (record.promises or {}).items():
        if place in expected and _is(promised.mapper, expected[place], promised.version):
            yield place


def hold_by_locks(session: Session) -> bool:
    """Return whether locks keep all promises, so that no row has to be checked at the end."""
    record = record_of(session)
    if not record.promises:
        return True
    _now(session, record.promises)
    return len(record.promises) == sum(1 for _ in _locked(session, record))


def _locked(session: Session, record: SessionRecord) -> Iterator[Place]:
    """Yield promised rows that the transaction has read in that version, locked for all writers.

    These are unknown once another statement than a query, or the row of a flush, was sent: it may
    have gone back to a savepoint, which gives locks back, or have written the rows. The same is
    true of a connection that the session was given.
    """
    root = session.get_transaction()
    if not record.locked or record.sent_more or root is None:
        return
    if not all(_locks_for_all(root, connection) for connection in record.connections):
        return
    for place, promised in (record.promises or {}).items():
        if place in record.locked and _is(promised.mapper, record.locked[place], promised.version):
            yield place


def _locks_for_all(root: SessionTransaction, connection: Connection) -> bool:
    """Return whether its locks reach every writer until the session ends the transaction."""
    local = database_of(connection.dialect).locks_are_local(connection)
    return not local and flushes.is_opened_by_session(root, connection)


def _raise(record: SessionRecord, entries: list[Entry[Any]]) -> None:
    raise events.report(conflict_of(entries, record.promises))


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
    briefly = _in_the_way(record_of(session)) and bool(database_of(connection.dialect).brief_waits)
    if briefly:
        record_of(session).note_brief_waits()
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


def _in_the_way(record: SessionRecord) -> bool:
    """Return whether the unit runs again rather than to wait, because others may wait for it."""
    others = record.holds_locks or record.sent or len(record.promises or ()) > 1
    return bool(others) and record.hurries


def _must_write(session: Session, connection: Connection) -> bool:
    """Return whether a lock does not reach all writers; read-only units need not write."""
    owner = record_of(session).owner
    local = database_of(connection.dialect).locks_are_local(connection)
    return local and not (owner is not None and owner.read_only)


def _attempt(session: Session, promised: Promise) -> Attempt:
    """Return our side, with the values that were read if the object still holds those."""
    key = promised.mapper.identity_key_from_primary_key(promised.identity)
    obj = session.identity_map.get(key)
    state: State | None = None if obj is None else instance_state(obj)
    token = facts(promised.mapper).token
    if state is None or token not in state.dict or state.dict[token] != promised.version:
        return promised_side(promised)
    return attempt_of(state, "verify", promised.version)


def _entries_of(session: Session, moved: dict[State, Promise]) -> Iterator[Entry[Any]]:
    """Yield entries of objects that are to be written: only the promised version is known."""
    for state, promised in moved.items():
        mapper = state.mapper
        connection = connection_to_write(session, mapper)
        stored = read_stored(connection, mapper, [promised.identity])
        action: Action = "delete" if state in flushes.states_marked_deleted(session) else "update"
        ours = attempt_of(state, action, promised.version)
        seen = promised_side(promised).original
        attempt = Attempt(mapper, promised.identity, action, seen, ours.current, ours.changes)
        yield entry_of(attempt, stored.get(promised.identity))


def _read_as(mapper: Mapper[Any]) -> Mapper[Any]:
    """Return the mapper that finds every class of the table with the version."""
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
        ConfigurationError: no other value of this kind of version is known.
    """
    table, version = facts(mapper).table, facts(mapper).version
    keys = list(_keys(mapper, table))
    rows = update(table).where(rows_with_keys(keys, [one.identity for one in some]))
    others: dict[Any, Any] = {column: column for column in table.columns if _moves(column)}
    send = type(connection).execute  # not the functions that a flush has put over it
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
    """Yield the key columns, in the table of the version."""
    for key, own in zip(facts(mapper).rows[0], table.primary_key.columns, strict=False):
        yield key if key.table is table else own


def _is_row(keys: list[Column[Any]], one: Promise) -> Any:
    return and_(*(key == value for key, value in zip(keys, one.identity, strict=True)))


def _moves(column: Column[Any]) -> bool:
    """Return whether an UPDATE that does not name the column changes it.

    A time may have ``ON UPDATE CURRENT_TIMESTAMP`` in the database alone.
    """
    if column.computed is not None or column.primary_key:
        return False
    kept = column.onupdate is not None or column.server_onupdate is not None
    return kept or isinstance(column.type, DateTime)


def _another(mapper: Mapper[Any], seen: set[Any]) -> Any:
    """Return a version that none of the rows has."""
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
