"""Checks of a transaction's promises, before each flush and before COMMIT.

Before a flush: an object that was read again since, and now holds a newer version, must not be
written, because the promise was made for the older one. Before COMMIT: rows that were promised and
not written are read with a shared lock, one statement a table, in the order of their keys, so that
the answer stays true until the transaction is over. Rows that a unit locked when it read them
are as they were, unless another statement may have ended those locks.

Two transactions that write one row each, and promise the row of the other one, would wait for each
other. So promised rows that come before all rows of the last flush
(:func:`optilock._watched.rows.locked.order_of`) are checked ahead of it, if the transaction holds
no later row: it then takes all of its locks in one order. A unit that runs again waits only briefly
for a row that comes before one that it holds. In a pipelined unit these checks go around its last
writes, in one trip with COMMIT (:func:`checks_of`). Where a lock does not reach all writers, such
rows are written as they are (:mod:`optilock._watched.guard.local_locks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ref

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock import events
from optilock._mapped import Identity, Place, State, facts, place_of
from optilock._undocumented import flushes
from optilock._undocumented.connections import has_commit_listeners
from optilock._watched.guard.ended_transactions import conflict_before_commit, promised_side
from optilock._watched.guard.local_locks import write_as_they_are
from optilock._watched.guard.records import Flush
from optilock._watched.rows.entries import Attempt, HiddenRows, attempt_of, entry_of
from optilock._watched.rows.locked import order_of
from optilock._watched.rows.stored import read_stored, unmoved_or_error
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.order import add_step
from optilock._watched.session.record import SessionRecord, record_of, session_record
from optilock._watched.session.values import Promise, Promises, conflict_of
from optilock._watched.writes.send import expected_version
from optilock.conditions.write import NO_CHECKS, Checks, Write, expected_versions, places_of
from optilock.dialects import database_of
from optilock.dialects.transient import ended_by_conflict
from optilock.errors import Action, Entry

#: An attribute of a session that has made promises, which are in its record, too.
_PROMISED = "_optilock_promised"


def promise(
    session: Session,
    state: State,
    version: Any,
    *,
    demanded: bool,
    tag: Callable[[Any], str] | None = None,
) -> None:
    """Promise that the row of ``state`` is in ``version`` until the transaction ends.

    ``tag`` makes the ETag of another version, for the error of a broken promise.
    """
    promises, place = promises_of(session), place_of(state)
    if not record_of(session).is_ours(place):
        promises.add(place, Promise(state.mapper, place[1], version, demanded, tag))


def promises_of(session: Session) -> Promises:
    """Return the promises of the session's transaction, which are checked from here on."""
    record = session_record(session)
    if record.promises is None:
        record.promises = session.__dict__[_PROMISED] = Promises()
        record.promises.check_first = check_first
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


def _running(session: Session) -> Promises | None:
    """Return the promises of the running transaction, if there are any."""
    promises = session_record(session).promises
    if promises:
        _now(session, promises)
    return promises or None


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
        flush_last(session)
        check_before_commit(session)


def flush_last(session: Session) -> None:
    """Flush for the last time before COMMIT, and check the promised rows that come first."""
    promises = record_of(session).promises
    if promises is None:
        session.flush()
        return
    promises.end_next = True
    try:
        session.flush()
    finally:
        promises.end_next = False


def check_pending(flush: Flush, objects: Any) -> None:
    """Refuse to write a row in another version than the one that was promised.

    Raises:
        ConcurrencyError: with an entry for each such row; nothing was sent.
    """
    session, record = flush.session, flush.record
    promises = _running(session)
    if promises is None:
        return
    moved: dict[State, Promise] = {}
    for state in flushes.stored_states_to_flush(session):
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
    if not promises.end_next or objects is not None:
        return
    if not (record.ending_now and can_check_last(session)):
        check_first(session, map(place_of, flushes.stored_states_to_flush(session)))


def check_before_commit(session: Session) -> None:
    """Check the promised rows that were not written; they then stay as they are.

    Raises:
        ConcurrencyError: (``PreconditionFailed`` when a client had named the version) with an
            entry for each row that is in another version or gone.
    """
    promises = _running(session)
    if promises is not None:
        _check(session, session_record(session), _unknown(session, promises))
        promises.looked_at(promises)


def _unknown(session: Session, promises: Promises | None) -> dict[Place, Promise]:
    """Return the promises that neither our own locks nor our own writes keep."""
    waiting = {**(promises or {})}
    for kept in (_locked, _kept):
        for place in kept(session, waiting) if waiting else ():
            del waiting[place]
    return waiting


def _check(
    session: Session,
    record: SessionRecord,
    waiting: Mapping[Place, Promise],
    later: Iterable[Promise] = (),
) -> None:
    """Lock and check these rows; if one has moved, the error names those of ``later``, too."""
    try:
        moved = list(_moved(session, waiting.values())) if waiting else []
        if moved:
            moved += _moved(session, later, lock=False)
    except DBAPIError as error:
        if not ended_by_conflict(error):
            raise
        raise conflict_before_commit(session) from error
    if moved:
        _raise(record, moved)


def check_first(session: Session, written: Iterable[Place]) -> None:
    """Check the rows that come before all ``written`` ones, unless a later one is held."""
    record, promises = session_record(session), _running(session)
    unknown = _unknown(session, promises)
    waiting = {
        place: one
        for place, one in _first_of(unknown, written, _last_held(record, record.sent)).items()
        if _has_shared_locks(connection_to_write(session, one.mapper))
    }
    if waiting and promises:
        later = [one for place, one in unknown.items() if place not in waiting]
        _check(session, record, waiting, later)
        promises.looked_at(waiting)
        record.note_locks()


def _first_of(
    unknown: Mapping[Place, Promise], written: Iterable[Place], last: Any
) -> dict[Place, Promise]:
    """Return the rows that come before all ``written`` ones and after the ``last`` one held."""
    first = min(map(_order, written), default=None)
    return {
        place: one
        for place, one in unknown.items()
        if first is not None and _order(place) < first and (last is None or last < _order(place))
    }


def can_check_last(session: Session) -> bool:
    """Return whether promised rows can be checked in the trip of COMMIT, with changed rows."""
    record = record_of(session)
    ending = record.ending
    if ending is None or not ending.carries_checks or len(record.connections) != 1:
        return False
    (connection,) = record.connections
    adds = session.new or session.deleted or has_commit_listeners(connection)
    return not adds and _has_shared_locks(connection)


def checks_of(session: Session, writes: Sequence[Write]) -> Checks | None:
    """Return the checks of promised rows around the last ``writes``, which are recorded as sent.

    In the order in which they are checked without this. ``None``: they are statements of their own.
    """
    record = record_of(session)
    unknown = _unknown(session, record.promises)
    if not unknown:
        return NO_CHECKS
    earlier = record.sent[: -len(writes)]
    first = _first_of(unknown, places_of(writes), _last_held(record, earlier))
    before = _raising(session, first.values(), earlier)
    rest = [one for place, one in unknown.items() if place not in first]
    after = None if before is None else _raising(session, rest, record.sent)
    return None if before is None or after is None else Checks(before, after)


def _raising(
    session: Session, promises: Iterable[Promise], sent: Sequence[Write]
) -> list[tuple[Any, Any]] | None:
    """Return statements that fail if one of these rows has moved, to be sent after the writes."""
    record, found = record_of(session), []
    for mapper, some in _by_table(promises):
        connection = connection_to_write(session, mapper, for_queries=True)
        if connection is not record.connections[0]:
            return None
        rows = [(*one.identity, one.version) for one in some]
        briefly = _wait_briefly(record, mapper, [one.identity for one in some], sent)
        statement = unmoved_or_error(database_of(connection.dialect), mapper, rows, briefly=briefly)
        if statement is None:
            return None
        found.append(statement)
    return found


def _last_held(record: SessionRecord, sent: Sequence[Write]) -> Any:
    """Return the order of the last row that the transaction has locked or written."""
    written = () if record.decided else places_of(sent)
    return max(map(_order, {*written, *(record.locked or ())}), default=None)


def _order(place: Place) -> Any:
    return order_of(*place)


def _has_shared_locks(connection: Connection) -> bool:
    """Return whether transactions wait for single rows, and their locks reach all writers."""
    database = database_of(connection.dialect)
    return not (database.locks.one_lock or database.servers.locks_are_local(connection))


def _kept(session: Session, promises: Mapping[Place, Promise]) -> list[Place]:
    """Return promised rows that the transaction has written, in the promised version."""
    record = session_record(session)
    stated = {place for one in record.stated for place in one.rows}
    expected = expected_versions(record.as_read())
    return [
        place
        for place, promised in promises.items()
        if place in stated
        or (place in expected and _is(promised.mapper, expected[place], promised.version))
    ]


def hold_by_locks(session: Session) -> bool:
    """Return whether locks keep all promises, so that no row has to be checked at the end."""
    promises = _running(session)
    return promises is None or len(promises) == len(_locked(session, promises))


def _locked(session: Session, promises: Mapping[Place, Promise]) -> list[Place]:
    """Return promised rows that the transaction has read in that version, locked for all writers.

    These are unknown once another statement than a query, or the row of a flush, was sent: it may
    have gone back to a savepoint, which gives locks back, or have written the rows. The same is
    true of a connection that the session was given.
    """
    record, root = session_record(session), session.get_transaction()
    locked = record.locked
    if not locked or record.sent_more or root is None:
        return []
    if not all(_locks_for_all(root, connection) for connection in record.connections):
        return []
    return [
        place
        for place, promised in promises.items()
        if place in locked and _is(promised.mapper, locked[place], promised.version)
    ]


def _locks_for_all(root: SessionTransaction, connection: Connection) -> bool:
    """Return whether its locks reach every writer until the session ends the transaction."""
    local = database_of(connection.dialect).servers.locks_are_local(connection)
    return not local and flushes.is_opened_by_session(root, connection)


def _raise(record: SessionRecord, entries: list[Entry[Any]]) -> None:
    raise events.report(conflict_of(entries, record.promises))


def _moved(
    session: Session, promises: Iterable[Promise], *, lock: bool = True
) -> Iterator[Entry[Any]]:
    for mapper, some in _by_table(promises):
        if lock:
            yield from _moved_in(session, mapper, some)
        else:
            connection = connection_to_write(session, mapper)
            newer = database_of(connection.dialect).isolation.locks_show_newer
            read = partial(read_stored, connection, lock=False, share=newer)
            found = read(mapper, [one.identity for one in some], only=(facts(mapper).token,))
            yield from _entries(session, mapper, some, found, read, HiddenRows(connection))


def _by_table(promises: Iterable[Promise]) -> list[tuple[Mapper[Any], list[Promise]]]:
    by_table: dict[Mapper[Any], list[Promise]] = {}
    for one in promises:
        by_table.setdefault(_read_as(one.mapper), []).append(one)
    return sorted(by_table.items(), key=lambda item: order_of(item[0], ()))


def _moved_in(session: Session, mapper: Mapper[Any], some: list[Promise]) -> Iterator[Entry[Any]]:
    token = facts(mapper).token
    connection = connection_to_write(session, mapper)
    database_of(connection.dialect).locks.begin_writing(connection, facts(mapper).table)
    identities, written = [one.identity for one in some], _must_write(session, connection)
    waits = database_of(connection.dialect).waits
    can_hurry = not written and waits.has_brief_reads(connection.dialect)
    record = record_of(session)
    briefly = can_hurry and _wait_briefly(record, mapper, identities, record.sent)
    found = read_stored(
        connection, mapper, identities, only=(token,), share=not written, briefly=briefly
    )
    read = partial(read_stored, connection, share=True)
    entries = list(_entries(session, mapper, some, found, read, HiddenRows(connection)))
    yield from entries
    if written and not entries:
        write_as_they_are(connection, mapper, some)


def _entries(
    session: Session,
    mapper: Mapper[Any],
    some: list[Promise],
    found: Mapping[Identity, Mapping[str, Any]],
    read: Callable[..., Mapping[Identity, Any]],
    hidden: HiddenRows,
) -> Iterator[Entry[Any]]:
    """Yield an entry for each row that ``found`` does not show in the promised version."""
    token = facts(mapper).token
    moved: dict[Mapper[Any], list[Promise]] = {}
    for one in some:
        row = found.get(one.identity)
        if row is None or not _is(mapper, row[token], one.version):
            moved.setdefault(one.mapper, []).append(one)
    for of_class, rows in moved.items():
        stored = read(of_class, [one.identity for one in rows])
        for one in rows:
            yield entry_of(_attempt(session, one), stored.get(one.identity), hidden=hidden)


def _wait_briefly(
    record: SessionRecord, mapper: Mapper[Any], rows: Iterable[Identity], sent: Sequence[Write]
) -> bool:
    """Return whether a unit waits briefly for these rows, after the writes, and note it.

    It runs again. Others may wait for it, or it holds a row that comes after one of these.
    """
    late = bool(record.holds_locks or sent or len(record.promises or ()) > 1) and record.hurries
    if not late and record.gives_way:
        last = _last_held(record, sent)
        late = last is not None and any(order_of(mapper, one) < last for one in rows)
    if late:
        record.note_brief_waits()
    return late


def _must_write(session: Session, connection: Connection) -> bool:
    """Return whether a lock does not reach all writers; read-only units need not write."""
    owner = record_of(session).owner
    local = database_of(connection.dialect).servers.locks_are_local(connection)
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
        hidden = HiddenRows(connection)
        yield entry_of(attempt, stored.get(promised.identity), hidden=hidden)


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
