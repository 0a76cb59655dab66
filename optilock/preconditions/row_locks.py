"""A row's lock, taken before an edit: no other transaction writes the row until ours ends.

::

    with unit_of_work(SessionLocal) as session:
        account = session.get_one(Account, 7)
        lock(account)                         # from here on the row is ours, and as it is stored
        account.balance -= charge(account)

An object is as old as its reading, so :func:`lock` compares it with the row that it has locked:

* the row is as it was loaded: nothing else happens;
* the row has moved, and the object was not edited: the object is read again. Decide after
  ``lock()``, not before. If you have decided before, call ``verify(obj)`` or ``expect(obj, ...)``
  first: then a row that has moved is an error;
* the row has moved, and the object was edited or is to be deleted: ``ConcurrencyError`` with its
  entry. The edits were made on other values than the stored ones. They stay on the object;
* the row is missing: ``ConcurrencyError`` with its entry.

A row has moved if its version differs from the loaded one. If the class has no version, or compares
values, a value must differ.
After :func:`optilock.preconditions.overwrite` an edited object is no conflict.

The database decides how long to wait for another transaction's lock, unless ``nowait``,
``skip_locked`` or ``timeout`` is given. If the lock is not granted, the driver's error is raised.
It is no conflict, because nothing was written, and it is transient (``is_transient``). On
PostgreSQL it ends the transaction, as every error does there; ``skip_locked=True`` avoids the
error. SQLite has one lock for all rows: there ``lock`` takes the write lock of the file.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from optilock import events
from optilock._mapped import State, facts, identity_of, place_of
from optilock._mapping.scopes import Scope
from optilock._watched.guard.ended_transactions import conflict_before_commit
from optilock._watched.rows.entries import (
    Attempt,
    HiddenRows,
    attempt_of,
    entry_of,
    side_as_read,
)
from optilock._watched.rows.seen import version_seen
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.record import session_record
from optilock._watched.session.values import Promises, conflict_of
from optilock.dialects import Cause, database_of
from optilock.dialects.transient import cause_of, ended_by_conflict
from optilock.dialects.waits import Wait
from optilock.errors import Action, ConfigurationError
from optilock.preconditions.expectations import needs_await, state_in_watched_session
from optilock.preconditions.scopes import lock_scope


def lock(
    obj: Any,
    scope: Scope | None = None,
    *,
    nowait: bool = False,
    skip_locked: bool = False,
    timeout: float | timedelta | None = None,
) -> bool:
    """Lock the row of ``obj`` until the transaction ends, and compare it with the object.

    ``lock(session, scope)`` locks a scope (``optilock.preconditions.scopes``); it
    takes no other option.

    Args:
        obj: an object of a watched session, or of a unit of work.
        nowait: do not wait for another transaction's lock; raise the driver's error at once.
        skip_locked: do not wait for another transaction's lock; return ``False``.
        timeout: wait at most so many seconds (MariaDB: whole seconds, rounded up), then raise the
            driver's error.

    Returns:
        ``True``: the row is locked. ``False``, only with ``skip_locked``: another transaction holds
        its lock.

    Raises:
        ConcurrencyError: the row is missing; or it has moved since the object was loaded, and the
            object was edited, or its version was promised (``PreconditionFailed`` after
            ``expect``).
        ConfigurationError: the object is new, deleted, detached, or in a session that is not
            watched; or the options contradict each other.
    """
    wait = _wait(nowait, skip_locked, timeout)
    if scope is not None or isinstance(obj, (Session, scoped_session)):
        _lock_scope(obj, scope, wait)
        return True
    state, session = state_in_watched_session(obj, "lock", versioned=False)
    if needs_await(session, state):
        raise ConfigurationError(
            f"lock() has to ask the database for the row of this {state.class_.__name__}: with an"
            " AsyncSession write await optilock.asyncio.lock(session, obj)."
        )
    try:
        stored = _locked(session, state, wait)
    except DBAPIError as error:
        return _not_locked(session, state, wait, error)
    if stored is None and wait.skip and _is_there(session, state):
        return False
    _check(session, state, stored)
    if stored is not None and not _edited(session, state) and _differs(state, stored):
        with session.no_autoflush:
            locking = {"of": state.mapper.class_, "key_share": True}
            session.refresh(obj, with_for_update=locking)
    return True


def _lock_scope(session: Any, scope: Any, wait: Wait) -> None:
    if not wait.usual:
        raise ConfigurationError(
            "lock(session, scope) waits as the database is configured to: nowait=, skip_locked= and"
            " timeout= are for rows. Remove them. Nothing was sent."
        )
    lock_scope(session, scope)


def _wait(nowait: bool, skip_locked: bool, timeout: float | timedelta | None) -> Wait:
    if nowait + skip_locked + (timeout is not None) > 1:
        raise ConfigurationError(
            "lock() takes only one of nowait=, skip_locked= and timeout=. Each is for a row that"
            " another transaction has locked. Nothing was sent."
        )
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not _is_length(seconds):
        raise ConfigurationError(
            f"lock(timeout={timeout!r}): timeout must be seconds or a timedelta, more than 0 and at"
            " most one day. To fail at once, pass nowait=True. Nothing was sent."
        )
    return Wait(0 if nowait else seconds, skip_locked)


def _is_length(seconds: Any) -> bool:
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    return is_number and math.isfinite(seconds) and 0.001 <= seconds <= 86_400


def _locked(session: Session, state: State, wait: Wait) -> Values | None:
    mapper, identity = state.mapper, identity_of(state)
    connection = connection_to_write(session, mapper)
    database = database_of(connection.dialect)
    session_record(session).note_locks()
    with database.waits.waiting(connection, wait):
        database.locks.begin_writing(connection, facts(mapper).table)
        return read_stored(connection, mapper, [identity], wait=wait).get(identity)


def _not_locked(session: Session, state: State, wait: Wait, error: DBAPIError) -> bool:
    """Return ``False`` for a skipped row; otherwise raise the error."""
    if ended_by_conflict(error):
        raise conflict_before_commit(session) from error
    if cause_of(error) is Cause.LOCK_TIMEOUT:
        one_lock = database_of(session.get_bind(state.mapper).dialect).locks.one_lock
        if wait.skip and one_lock:  # there is no row to skip
            return False
        what = "all rows, which have one lock here," if one_lock else "the row"
        error.add_note(
            f"optilock: lock() did not get {state.class_.__name__} {identity_of(state)!r}: another"
            f" transaction has locked {what} for longer than we were to wait. Nothing is lost: roll"
            " back and run the unit again (optilock.retry), or ask with skip_locked=True."
        )
    raise error


def _is_there(session: Session, state: State) -> bool:
    """Return whether the row was skipped because it is locked, and not because it is missing."""
    identity = identity_of(state)
    connection = connection_to_write(session, state.mapper)
    return identity in read_stored(connection, state.mapper, [identity], lock=False)


def _edited(session: Session, state: State) -> bool:
    return state.modified or state.obj() in session.deleted


def _check(session: Session, state: State, stored: Values | None) -> None:
    """Refuse a row that is missing, or has moved under edits or under a promise."""
    known, place = session_record(session), place_of(state)
    promises = known.promises
    if stored is not None:
        overwritten = known.settled_by and place in known.settled_by
        stale = _edited(session, state) and not overwritten and _has_moved(state, stored)
        if not stale and (known.is_ours(place) or not _broken(state, stored, promises)):
            return
    hidden = HiddenRows(connection_to_write(session, state.mapper))
    entry = entry_of(_attempt(session, state), stored, hidden=hidden)
    raise events.report(conflict_of([entry], promises))


def _attempt(session: Session, state: State) -> Attempt:
    action: Action = "verify"
    if _edited(session, state):
        action = "delete" if state.obj() in session.deleted else "update"
    return attempt_of(state, action, version_seen(state, facts(state.mapper).token))


def _has_moved(state: State, stored: Values) -> bool:
    """Return whether the row has moved since the object's author saw it."""
    known = facts(state.mapper)
    if known.token:
        return not known.same(known.token, version_seen(state, known.token), stored[known.token])
    original = side_as_read(state, None)
    return any(not known.same(name, value, stored[name]) for name, value in original.items())


def _broken(state: State, stored: Values, promises: Promises | None) -> bool:
    """Return whether another version was promised."""
    promised = promises.get(place_of(state)) if promises else None
    if promised is None:
        return False
    token = facts(state.mapper).token
    return not facts(state.mapper).same(token, promised.version, stored[token])


def _differs(state: State, stored: Values) -> bool:
    """Return whether an unedited object has other values than the row."""
    known = facts(state.mapper)
    if state.expired_attributes:
        return True
    return any(
        name in state.dict and not known.same(name, state.dict[name], stored[name])
        for name in known.columns
    )
