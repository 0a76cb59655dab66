"""Conflicts of a transaction that the database itself has ended: the rows that had moved.

At REPEATABLE READ or SERIALIZABLE, with MariaDB's snapshot isolation, or behind a real BEGIN on
SQLite, a conflict is an error of the database, and the transaction is over. The unit's writes and
dirty objects are known; their rows are read again after the rollback. Moved ones are the entries.

A COMMIT that the database refuses because of another transaction's change is a conflict, too.

PostgreSQL at SERIALIZABLE, and Galera, may report a conflict no earlier than at COMMIT.
``session.commit()``, ``with sessions.begin()``, ``with session.begin()``, the ``commit()`` of a
``SessionTransaction`` (zope.sqlalchemy calls that), ``prepare()`` and the async forms all end in
the session's outermost transaction, so the conflict is raised there.

SQLAlchemy treats a transaction whose COMMIT was refused as one that can still be rolled back. It is
rolled back here, before the rows are read again; a ``rollback()`` that follows has nothing to do.

A savepoint that a conflict ends raises it in the same way, and is left to be rolled back: by its
block, or with the whole transaction by ``session.rollback()``. A database that reports the conflict
at RELEASE has ended the whole transaction (:mod:`optilock.dialects.connections`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import (
    DBAPIError,
    IllegalStateChangeError,
    IntegrityError,
    ResourceClosedError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Mapper, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock import events
from optilock._mapped import facts, place_of
from optilock._undocumented.connections import error_before_rollback
from optilock._undocumented.flushes import states_inserted_by, was_committing
from optilock._watched.guard.records import Flush, with_sqlalchemys_message
from optilock._watched.rows.entries import Attempt, HiddenRows, attempt_of, entry_of, has_moved
from optilock._watched.rows.seen import version_seen
from optilock._watched.rows.stored import read_stored
from optilock._watched.session.commit_events import timed_commit
from optilock._watched.session.connections import engine_to_write, separate_connection
from optilock._watched.session.record import SessionRecord, record_of, session_record
from optilock._watched.session.values import Promise, conflict_of
from optilock.conditions.write import Write, expected_versions
from optilock.dialects import database_of, database_of_error
from optilock.dialects.connections import roll_back_all
from optilock.dialects.transaction_ends import is_over
from optilock.dialects.transient import ended_by_conflict
from optilock.errors import Action, ConcurrencyError, Entry
from optilock.serialize import without_handled

_log = logging.getLogger("optilock")
#: Old releases of SQLAlchemy stumble over their own rollback after a refused PREPARE.
_FAILURES = (DBAPIError, IllegalStateChangeError)


def capture(session: Session) -> None:
    """Remember what the session wants to write; to be called before a rollback expires it."""
    states = dict.fromkeys((instance_state(obj) for obj in session.dirty), False)
    states |= dict.fromkeys((instance_state(obj) for obj in session.deleted), True)
    session_record(session).wanted = attempts_in(states, [])


def remember(flush: Flush) -> None:
    """Take our side of every row now: the rollback that follows expires the objects."""
    if flush.uow is not None and not flush.wanted:
        states = {state: doomed for state, (doomed, _) in flush.uow.states.items()}
        flush.wanted = attempts_in(states, [*flush.record.sent, *flush.held()])


def keep_sides(flush: Flush) -> None:
    """Keep our sides of the rows for a conflict at COMMIT, when the objects no longer have them."""
    remember(flush)
    sides = flush.record.sides
    assert sides is not None
    for attempt in flush.wanted:
        sides[attempt.place] = _joined(sides.get(attempt.place), attempt)


def drop_sides(flush: Flush) -> None:
    """Forget those of rows that the flush has refused: these are reported, and not written."""
    for kept in flush.kept:
        (flush.record.sides or {}).pop(place_of(kept.state), None)


def attempts_in(states: Mapping[Any, bool], writes: list[Write]) -> list[Attempt]:
    """Return our side of every versioned row among ``states`` (state -> it is to be deleted).

    Rows that the transaction itself has inserted are omitted: no other transaction has seen them.
    """
    expected = expected_versions(writes)
    computed = {w.places()[0]: w.shape.prefetch for w in writes if w.shape.prefetch}
    inserted = {
        s for session in {state.session for state in states} for s in states_inserted_by(session)
    }
    attempts = []
    for state, deleting in states.items():
        if state.key is None or state in inserted or not facts(state.mapper).guarded:
            continue
        token = facts(state.mapper).token
        seen = version_seen(state, token) if token else None
        if (deleting or state.modified) and (seen is not None or not token):
            place = place_of(state)
            action: Action = "delete" if deleting else "update"
            version, filled_in = expected.get(place, seen), computed.get(place, ())
            attempts.append(attempt_of(state, action, version, computed=filled_in))
    return attempts


def _joined(first: Attempt | None, then: Attempt) -> Attempt:
    """Join our sides of a row that is written twice: the first values read, the last wanted."""
    if first is None:
        return then
    return replace(then, original=first.original, changes={**first.changes, **then.changes})


def attempt_of_write(write: Write) -> Attempt:
    """Return our side of a row that an earlier flush wrote: key, version and values."""
    shape, params = write
    mapper = shape.mapper
    token = facts(mapper).token
    version = params[shape.token.parameter]
    values = {
        facts(mapper).names[column]: params[name]
        for name, column in shape.sets.items()
        if name in params and column is not shape.token.column
    }
    return Attempt(
        mapper,
        shape.identity_of(params),
        "delete" if shape.deletes else "update",
        {token: version},
        {**values, token: version},
        values,
    )


def raise_conflict(flush: Flush | None, error: DBAPIError | ObjectDeletedError) -> None:
    """Raise the conflict behind an error in a flush, if there is one."""
    if (first := error_before_rollback(error)) is not error:
        raise first from (first.__cause__ or getattr(first, "orig", None))
    if flush is None or flush.outer_error is error:
        return
    if isinstance(error, DBAPIError):
        conflict = _conflict_in_flush(flush.session, flush, error)
    else:  # an expired object was to be read
        conflict = _gone_in_flush(flush.session, flush)
    if conflict is not None:
        raise events.report(conflict) from error


def _conflict_in_flush(
    session: Session, flush: Flush, error: DBAPIError
) -> ConcurrencyError | None:
    """Return the conflict behind a database error in a flush, or ``None`` if there is none.

    An error about the values of rows is explained better by a row that had already missed: a
    child's foreign key fails because its parent is gone. A full disk or a lost connection would
    have come without the conflict as well, and so would an error for a row that a resolver has
    decided about: those are judged as usual.
    """
    found = [missed.entry for missed in flush.misses if not missed.restored]
    if not ended_by_conflict(error):
        if flush.unadded is not None and flush.unadded.error is error:
            return _refused_sum(session, flush, error)
        if not found or flush.correcting or not _is_about_values(error):
            return None
        return with_sqlalchemys_message(conflict_of(found, flush.record.promises), flush.short)
    attempts = [*flush.wanted, *_promised(flush.record)]
    found = _moved_on_held(session, attempts, found, newest=True)
    return conflict_of(found, flush.record.promises)


def _is_about_values(error: DBAPIError) -> bool:
    database = database_of_error(error.orig)
    return isinstance(error, IntegrityError) or database.refuses_values(error)


def _refused_sum(session: Session, flush: Flush, error: DBAPIError) -> ConcurrencyError | None:
    """Return the conflict where the database refuses a sum that another writer is part of.

    Each writer has checked the value that it read; the sum of both was not checked.
    """
    assert flush.unadded is not None
    if not database_of_error(error.orig).refuses_values(error):
        return None
    found = _moved_on_held(session, flush.unadded.attempts, [], newest=True)
    if not found:
        return None
    conflict = conflict_of(found, flush.record.promises)
    conflict.add_note(
        "optilock: only columns of __version_commutes__ changed, so the difference was added to"
        " the stored value. Others had changed the row since it was read, and the database refused"
        " the sum (a CHECK, or the range of the type). Nothing was written: read the row and decide"
        " again, as retry does."
    )
    return conflict


def _gone_in_flush(session: Session, flush: Flush) -> ConcurrencyError | None:
    """Return the conflict of expired objects whose rows are gone, so that they were not read."""
    moved = _moved_on_held(session, flush.wanted, [])
    gone = [entry for entry in moved if entry.kind == "deleted"]
    return conflict_of(gone, flush.record.promises) if gone else None


def conflict_before_commit(session: Session) -> ConcurrencyError:
    """Return the conflict for which the database ended the transaction at the check before COMMIT.

    SQLAlchemy does not know of it yet: the caller's ``rollback()`` comes later.
    """
    record = session_record(session)
    roll_back_all(record.connections)
    found = _moved_on_held(session, _tried(record), [])
    return events.report(conflict_of(found, record.promises))


def conflict_in_savepoint(session: Session) -> ConcurrencyError:
    """Return the conflict that prevents a savepoint's release, before anything is rolled back."""
    record = session_record(session)
    found = _moved_on_held(session, _tried(record), [], newest=True)
    return events.report(conflict_of(found, record.promises))


def _moved_on_held(
    session: Session, attempts: Iterable[Attempt], found: list[Entry[Any]], *, newest: bool = False
) -> list[Entry[Any]]:
    """Return entries of the rows that moved, read on the session's own connections.

    Or on new ones for the ``newest``, where a savepoint was rolled back: the transaction goes on,
    and may go on to see its old snapshot.
    """
    with ExitStack() as stack:
        readable = {
            connection.engine: stack.enter_context(_readable(connection, newest=newest))
            for connection in session_record(session).connections
            if not connection.closed
        }

        def connection_for(mapper: Mapper[Any]) -> Connection | None:
            return readable.get(engine_to_write(session, mapper))

        known = [attempt for attempt in attempts if connection_for(attempt.mapper)]
        with suppress(SQLAlchemyError):  # the conflict is the news, not a second failure
            return _moved(known, connection_for, found)
    return found


@contextmanager
def _readable(connection: Connection, *, newest: bool) -> Iterator[Connection]:
    """Open a connection to read on, and leave the given one as it was."""
    inside = connection.in_transaction()
    if connection.invalidated or is_over(connection) or (inside and newest):
        with separate_connection(connection.engine) as another:
            yield another
        return
    try:
        yield connection
    finally:
        if not inside:
            connection.rollback()


def conflict_after_rollback(session: Session, error: DBAPIError) -> ConcurrencyError:
    """Return the conflict that ended the transaction, with rows read on a new connection.

    To be called when the transaction is rolled back; ``.entries`` may be empty.
    """
    record = session_record(session)
    attempts = _tried(record)
    record.wanted = None
    found: list[Entry[Any]] = []
    with _connections_to_read(session) as connection_for, suppress(SQLAlchemyError):
        # the conflict is the news, not a second failure
        found = _moved(attempts, connection_for, [])
    return events.report(conflict_of(found, record.promises))


@contextmanager
def _connections_to_read(session: Session) -> Iterator[Callable[[Mapper[Any]], Connection]]:
    """Yield the session's connections if it has any (the pool may be empty), otherwise new ones."""
    held = {c.engine: c for c in session_record(session).connections if not c.closed}
    opened: dict[Engine, Connection] = {}

    def connection_for(mapper: Mapper[Any]) -> Connection:
        engine = engine_to_write(session, mapper)
        own = held.get(engine)
        if own is not None and not own.invalidated:
            return own
        if engine not in opened:
            opened[engine] = engine.connect()
        return opened[engine]

    for connection in held.values():
        connection.rollback()
    try:
        yield connection_for
    finally:
        for connection in held.values():
            connection.rollback()
        for connection in opened.values():
            connection.close()


def _tried(record: SessionRecord) -> list[Attempt]:
    """Return our side of every row: written, still to be written, or only promised."""
    attempts = dict(record.sides or {})
    for attempt in record.wanted or ():
        attempts[attempt.place] = _joined(attempts.get(attempt.place), attempt)
    for write in (*record.sent, *record.undone):
        attempt = attempt_of_write(write)
        attempts.setdefault(attempt.place, attempt)
    for attempt in _promised(record):
        attempts.setdefault(attempt.place, attempt)
    return list(attempts.values())


def _promised(record: SessionRecord) -> list[Attempt]:
    """Yield our sides of rows that were only read, and must not have moved either."""
    return [] if record.promises is None else [promised_side(one) for one in record.promises.all()]


def promised_side(promise: Promise) -> Attempt:
    """Return our side of a promised row, as far as it is known without the object."""
    token = facts(promise.mapper).token
    seen = {token: promise.version}
    return Attempt(promise.mapper, promise.identity, "verify", seen, seen, {})


def _moved(
    attempts: Iterable[Attempt], connection_for: Any, known: list[Entry[Any]]
) -> list[Entry[Any]]:
    """Entries for the rows whose token is not the expected one any more."""
    found = {(entry.model, entry.identity): entry for entry in known}
    by_mapper: dict[Mapper[Any], list[Attempt]] = {}
    for attempt in attempts:
        by_mapper.setdefault(attempt.mapper, []).append(attempt)
    for mapper, some in by_mapper.items():
        connection = connection_for(mapper)
        database_of(connection.dialect).servers.see_all(connection)
        identities = [attempt.identity for attempt in some]
        stored = read_stored(connection, mapper, identities, lock=False)
        hidden = HiddenRows(connection)
        for attempt in some:
            row = stored.get(attempt.identity)
            if has_moved(attempt, row):
                entry = entry_of(attempt, row, hidden=hidden)
                found.setdefault((mapper.class_, attempt.identity), entry)
    return list(found.values())


# -- a refused COMMIT ------------------------------------------------------------------------------


def guard_commit(transaction: SessionTransaction) -> None:
    """Let a transaction or a savepoint of a watched session report a refused COMMIT or RELEASE.

    Its methods are covered one by one: CPython reads the attributes of an object more slowly for
    the rest of its life, once it has got another class.
    """
    held = ref(transaction)  # no circle: it goes when its session leaves it
    commit = partial(_send, held, SessionTransaction.commit)
    setattr(transaction, "commit", commit)  # noqa: B010
    if transaction.session.twophase:
        prepare = partial(_send, held, SessionTransaction.prepare)
        setattr(transaction, "prepare", prepare)  # noqa: B010


def _send(
    held: ref[SessionTransaction], original: Callable[..., None], /, *args: Any, **options: Any
) -> None:
    """Send COMMIT, PREPARE or RELEASE; ``session.commit()`` ends outer transactions, too."""
    transaction, before = held(), sys.exc_info()[1]
    if transaction is None:
        raise ResourceClosedError("This transaction is closed")
    record = record_of(transaction.session)
    if not transaction.nested:
        if record.conditions is not None and transaction.is_active:
            transaction.session.flush()
            record.conditions.commit()
        if record.owner is not None:
            record.owner.committing_now()
        elif events.listeners and record.connections and original is SessionTransaction.commit:
            original = timed_commit(original)
    try:
        original(transaction, *args, **options)
    except _FAILURES as error:
        tell = _tell_release if transaction.nested else _tell_commit
        tell(transaction, tuple(_since(before, error)))
        raise


def _tell_release(savepoint: SessionTransaction, reasons: Iterable[DBAPIError]) -> None:
    """Raise the conflict behind these errors, if there is one."""
    for reason in reasons:
        if ended_by_conflict(reason):
            raise conflict_in_savepoint(savepoint.session) from reason


def _tell_commit(transaction: SessionTransaction, reasons: Iterable[DBAPIError]) -> None:
    """Raise the conflict behind these errors, if there is one, with the transaction ended."""
    session = transaction.session
    held = record_of(session).connections if was_committing(transaction) else ()
    refused = [connection for connection in held if _refused(connection)]
    roll_back_all(refused)
    for reason in reasons:
        if ended_by_conflict(reason, at_commit=bool(refused)):
            _end(transaction)
            raise conflict_after_rollback(session, reason) from reason


def _end(transaction: SessionTransaction) -> None:
    """Roll back what another transaction has ended; a later ``rollback()`` does nothing."""
    handled = sys.exception()
    try:
        transaction.rollback()
    except ResourceClosedError:
        pass  # after a refused PREPARE, SQLAlchemy has rolled back
    except Exception as error:
        what = "rolling back after a refused COMMIT failed"
        _log.warning(what, exc_info=without_handled(error, handled))
    setattr(transaction, "rollback", _nothing)  # noqa: B010


def _nothing(*args: Any, **options: Any) -> None:
    pass


def _since(before: BaseException | None, error: BaseException) -> Iterator[DBAPIError]:
    """Yield ``error`` and the errors that it hides: the first one may make a ROLLBACK fail."""
    seen: BaseException | None = error
    while seen is not None and seen is not before:
        if isinstance(seen, DBAPIError):
            yield seen
        seen = seen.__context__


def _refused(connection: Connection) -> bool:
    """Return whether COMMIT failed. A failed flush inside a savepoint ends only the savepoint."""
    return not (connection.closed or connection.invalidated or connection.in_transaction())
