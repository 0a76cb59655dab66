"""The events of a watched session, and the methods of its objects' lives.

:data:`LISTENERS` are called for the sessions of a watched class, for each event once. The flush has
its own file (:mod:`optilock._watched.guard.flush`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Connection, inspect
from sqlalchemy.orm import InstanceState, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock._mapped import facts
from optilock._mapping.original_values import values_in_mind, values_unknown
from optilock._undocumented.flushes import last_deleted_state, nested_transaction
from optilock._watched.guard.connection import intercept
from optilock._watched.guard.ended_transactions import guard_commit
from optilock._watched.guard.ended_transactions import remember as remember_side
from optilock._watched.guard.flush import after_flush
from optilock._watched.guard.outside_edits import note_edited
from optilock._watched.guard.refusals import refuse_guarded_writes
from optilock._watched.guard.repeats import forget_stored, remember_wanted
from optilock._watched.guard.running_attempts import attempt_here
from optilock._watched.guard.stored_work import note_commit, note_rollback
from optilock._watched.rows.joined_transactions import await_outcome, reads_joined
from optilock._watched.rows.rolled_back import (
    give_back_versions,
    note_transaction_end,
    remember_revived,
    remember_rolled_back,
    undo_abandoned,
)
from optilock._watched.rows.seen import (
    forget_version,
    recall_for_delete,
    remember_deleted,
    remember_expired,
    remember_shown,
    remember_versions,
)
from optilock._watched.rows.unknown_versions import drop_version, note_attached
from optilock._watched.session.record import READS_KEY, Reads, SessionRecord, record_of
from optilock._watched.statements.requests import watch_conditions
from optilock.conditions.request import conditions_possible as requests_there_are
from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.dialects.connections import watch_errors


def _after_begin(session: Session, transaction: SessionTransaction, connection: Any) -> None:
    """Note the session's connection; one that begins inside a flush is guarded at once."""
    record = record_of(session)
    record.abandoned = undo_abandoned
    if transaction.nested:
        record.in_transaction(session.get_transaction())
        record.in_savepoint(transaction)
    else:
        record.in_transaction(transaction)
    if record.owner is None or transaction.nested:  # a unit has done so for its own
        guard_commit(transaction)
    if isinstance(connection, Connection):
        if connection not in record.connections:
            _connect(record, connection)
            reads_joined(session, connection)
        if requests_there_are or record.require_conditions:
            watch_conditions(session, connection)
        if record.flush is not None:
            if record.autocommitting:
                refuse_guarded_writes(session, record.autocommitting)
            intercept(record.flush, connection)


def _connect(record: SessionRecord, connection: Connection) -> None:
    database = database_of(connection.dialect)
    database.isolation.begin_savepoints(connection)
    record.connected(
        connection,
        autocommits=database.locks.autocommits(connection),
        keeps_sides=watch_errors(connection, database),
    )
    if record.owner is not None:
        record.owner.connected(connection, database)


def _after_commit(session: Session) -> None:
    """Forget the transaction's writes, before SQLAlchemy expires everything."""
    record, savepoint = record_of(session), nested_transaction(session)
    if savepoint is not None:
        record.savepoint_ended(savepoint)
        return
    if record.ending is not None:
        record.ending.over()
    reads: Reads | None = session.__dict__.get(READS_KEY)
    if reads is not None:
        reads.stored(session)
    if session.expire_on_commit:
        remember_versions(session.identity_map.all_states())
    if record.judged is not None:
        forget_stored(record)
    if attempt_here.get() is not None and record.has_work:
        note_commit(record)
    if any(not one.closed and one.in_transaction() for one in record.connections):
        await_outcome(session, record)
    record.committed()


def _after_rollback(session: Session) -> None:
    """Take versions back, before SQLAlchemy expires the objects of the transaction or savepoint."""
    record, savepoint = record_of(session), nested_transaction(session)
    start = record.start_of(savepoint)
    remember_wanted(session, savepoint=savepoint is not None)
    if savepoint is None:
        note_rollback(record)
    give_back_versions(record, start)
    held: list[Write] = []
    if record.flush is not None:
        held = record.flush.held()
        if isinstance(sys.exc_info()[1], ObjectDeletedError):
            remember_side(record.flush)
    record.before_rollback = record.versions_before(start, record.now(), held)
    if savepoint is None:
        record.before_rollback = {**record.undone_before, **record.before_rollback}
    doubts = record.doubts(savepoint) if record.stated else {}
    record.take_back(savepoint)
    remember_rolled_back(session, record.before_rollback, record.compared, doubts)
    if savepoint is not None:
        record.savepoint_ended(savepoint)
        if record.owner is not None:
            record.owner.savepoint_undone(savepoint)
        if record.conditions is not None:
            record.conditions.take_back(savepoint)
    else:
        record.rolled_back()
        if record.ending is not None:
            record.ending.over()


def _attached(session: Session, obj: Any) -> None:
    """Handle a detached object that was added to the session."""
    note_attached(session, obj)
    if attempt_here.get() is not None:
        note_edited(obj)


def _revived(session: Session, obj: Any) -> None:
    """Give a deleted object its version back, after the rollback and before it is expired."""
    record = record_of(session)
    remember_revived(obj, record.before_rollback, record.compared)


def _inserted_in_vain(session: Session, obj: Any) -> None:
    """Forget the version of an object whose INSERT was rolled back: no row has it."""
    state = instance_state(obj)
    if facts(state.mapper).by_application:
        forget_version(state)
    else:
        drop_version(state)
    if facts(state.mapper).compares:
        values_unknown(state)


#: The listeners of a watched session class, by event.
LISTENERS: dict[str, Callable[..., object]] = {
    "detached_to_persistent": _attached,
    "deleted_to_persistent": _revived,
    "persistent_to_transient": _inserted_in_vain,
    "after_begin": _after_begin,
    "after_flush": after_flush,
    "after_commit": _after_commit,
    "after_rollback": _after_rollback,
    "after_transaction_end": note_transaction_end,
}


# -- methods of the session ------------------------------------------------------------------------


def guarded_delete(original: Callable[..., None]) -> Callable[..., None]:
    """Return ``Session.delete``, which may read an expired object for its cascade."""

    @functools.wraps(original)
    def delete(self: Session, instance: Any) -> None:
        state = inspect(instance, raiseerr=False)
        if not isinstance(state, InstanceState):
            original(self, instance)  # SQLAlchemy raises
            return
        recall_for_delete(state)
        before = last_deleted_state(self)
        with values_in_mind(state):
            original(self, instance)
        remember_deleted(self, before)

    return delete


def delete_each(self: Session, instances: Iterable[Any]) -> None:
    """Run ``Session.delete_all`` (SQLAlchemy 2.1), one object after the other."""
    for instance in instances:
        self.delete(instance)


def guarded_expire(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def expire(self: Session, instance: Any, attribute_names: Any = None, **options: Any) -> None:
        remember_expired(instance, attribute_names)
        original(self, instance, attribute_names, **options)

    return expire


def guarded_expire_all(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def expire_all(self: Session) -> None:
        remember_shown(self.identity_map.all_states())
        original(self)

    return expire_all
