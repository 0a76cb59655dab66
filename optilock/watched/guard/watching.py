"""``watch``: the guarded flush for sessions one already has.

::

    SessionLocal = optilock.watch(sessionmaker(engine), on_conflict=merge_fields)

That is all an application with its own session handling needs (a FastAPI dependency,
Flask-SQLAlchemy, a Celery task). Whatever flushes a watched session (``flush``, ``commit``,
autoflush, ``begin_nested``) is guarded; nothing else about it changes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstanceState, Session, SessionTransaction, sessionmaker
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock.conditions.request import there_are as requests_there_are
from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.dialects.connections import watch_errors
from optilock.errors import ConfigurationError
from optilock.mapped import facts, there_are
from optilock.mapping.compared import values_in_mind, values_unknown
from optilock.mapping.originals import written
from optilock.resolvers.resolution import DeletePolicies, OnConflict, check_on_delete
from optilock.resolvers.rules import check_on_conflict
from optilock.undocumented.flushes import last_deleted, marked_deleted, nested_transaction
from optilock.watched.guard.batch import drain_all
from optilock.watched.guard.columns_only import answer_for, flush_columns
from optilock.watched.guard.commuting import back_to_what_was_read
from optilock.watched.guard.compares import note_written
from optilock.watched.guard.connection import arm, begin_flush, disarm
from optilock.watched.guard.deletes import check_before
from optilock.watched.guard.ended import (
    conflict_in_flush,
    drop_sides,
    gone_in_flush,
    guard_commit,
    keep_sides,
)
from optilock.watched.guard.ended import remember as remember_ours
from optilock.watched.guard.no_bump import refuse_moving, withdraw
from optilock.watched.guard.promises import check_before_commit, check_pending
from optilock.watched.guard.records import Flush
from optilock.watched.guard.refusals import (
    read_versions_with_rows,
    refuse_forgotten_rows,
    refuse_guarded_writes,
    refuse_two_classes,
    refuse_unread,
)
from optilock.watched.guard.releases import OWN_FLUSH, check_own_flush, check_release
from optilock.watched.guard.repeats import attempt_here, forget_stored, judge, remember_wanted
from optilock.watched.guard.settle import conclude, settle
from optilock.watched.guard.writes_with_commit import is_last, send_last
from optilock.watched.rows.merge import guarded_merge, guarded_merge_all
from optilock.watched.rows.reads_by_key import guarded_get, guarded_refresh
from optilock.watched.rows.rolled_back import (
    abandoned,
    ended,
    give_back,
    guarded_expunge,
    guarded_expunge_all,
    remember_revived,
    remember_rolled_back,
)
from optilock.watched.rows.seen import (
    forget,
    read_deleted,
    recall_deleted,
    remember,
    remember_deleted,
    remember_expired,
)
from optilock.watched.rows.touch import TOUCHED, touch_again
from optilock.watched.rows.unknown_versions import UNREAD, attached, hold_nothing
from optilock.watched.session.connections import refuse_autocommit_of, refuse_shards
from optilock.watched.session.order import at_step, listen_to_class
from optilock.watched.session.watched import (
    GUARDED,
    KNOWN,
    ON_DELETE,
    READS,
    RESOLVER,
    STRICT,
    Reads,
    Record,
    check_strict,
    is_strict,
    known_of,
)
from optilock.watched.statements.execute import guarded_connection, guarded_execute
from optilock.watched.statements.legacy_bulk import (
    guarded_bulk_insert,
    guarded_bulk_save,
    guarded_bulk_update,
)
from optilock.watched.statements.requests import watch_conditions
from optilock.watched.writes.send import require_row_counts_of

T = TypeVar("T")


def watch(
    target: T,
    *,
    on_conflict: OnConflict = None,
    on_delete: DeletePolicies = None,
    strict: bool = False,
    own_flush: bool | None = None,
) -> T:
    """Guard every session that ``target`` makes, and return ``target``.

    ``target`` is a ``sessionmaker``, ``async_sessionmaker``, ``scoped_session``,
    ``async_scoped_session`` or a ``Session`` class. ``on_conflict`` is a resolver, or a mapping of
    model classes to resolvers; without one a conflict is raised as ``ConcurrencyError``.
    ``on_delete`` is an :class:`~optilock.OnDelete`, or a mapping of model classes to them. With
    ``strict`` the sessions refuse to update or delete rows of a class without a version, unless the
    class says ``__version_token__ = None``. ``own_flush``: see
    :mod:`optilock.watched.guard.releases`.

    Raises ``ConfigurationError`` for any other target, for a resolver or a policy that is not one,
    for an engine whose driver cannot count rows, or that is in AUTOCOMMIT mode, and with a release
    of SQLAlchemy that has not what the guard needs.
    """
    check_release()
    resolver, policy = check_on_conflict(on_conflict), check_on_delete(on_delete)
    check_strict(strict)
    cls = _session_class(target)
    require_row_counts_of(target)
    refuse_autocommit_of(target)
    guard_class(cls)
    check_own_flush(cls, own_flush)
    setattr(cls, RESOLVER, resolver)
    setattr(cls, ON_DELETE, policy)
    setattr(cls, STRICT, strict)
    return target


def _session_class(target: Any) -> type[Session]:
    """The session class that ``target`` instantiates and that belongs to it alone."""
    factory = getattr(target, "session_factory", None)  # scoped_session, async_scoped_session
    if factory is not None:
        return _session_class(factory)
    if isinstance(target, sessionmaker):
        return target.class_
    if isinstance(target, type) and issubclass(target, Session):
        return target
    if hasattr(target, "class_") and hasattr(target.class_, "sync_session_class"):
        return _sync_class_of(target)
    raise ConfigurationError(
        f"watch() got {target!r}: it takes a sessionmaker, an async_sessionmaker, a scoped_session"
        " or a Session class. For one session, watch the sessionmaker that makes it."
    )


def _sync_class_of(target: Any) -> type[Session]:
    """An async_sessionmaker's own subclass of the Session behind its AsyncSessions."""
    given = target.kw.get("sync_session_class") or target.class_.sync_session_class
    if GUARDED not in given.__dict__:
        given = type(given.__name__, (given,), {})
        target.kw["sync_session_class"] = given
    result: type[Session] = given
    return result


def guard_class(cls: type[Session]) -> None:
    """Guard the flush of ``cls`` and its subclasses, unless a class above it is guarded.

    Raises ``ConfigurationError`` for a class that chooses a connection for each object.
    """
    if hasattr(cls, GUARDED):
        return
    refuse_shards(cls)
    for name, first in ((GUARDED, True), (KNOWN, Record()), (STRICT, False), (OWN_FLUSH, True)):
        setattr(cls, name, first)
    read_versions_with_rows()
    cls.flush = _guarded_flush(cls.flush)  # type: ignore[method-assign]
    cls.merge = guarded_merge(cls.merge)  # type: ignore[method-assign]
    if hasattr(cls, "merge_all"):
        setattr(cls, "merge_all", guarded_merge_all(cls.merge_all))  # noqa: B010
    cls.delete = _unread_delete(cls.delete)  # type: ignore[method-assign]
    if hasattr(cls, "delete_all"):
        setattr(cls, "delete_all", _delete_all)  # noqa: B010
    cls.expire = _remembering(cls.expire)  # type: ignore[method-assign]
    cls.refresh = guarded_refresh(_remembering(cls.refresh))  # type: ignore[method-assign]
    cls.connection = guarded_connection(cls.connection)  # type: ignore[method-assign]
    cls.get = guarded_get(cls.get)  # type: ignore[method-assign]
    cls.expunge = guarded_expunge(cls.expunge)  # type: ignore[method-assign]
    cls.expunge_all = guarded_expunge_all(cls.expunge_all)  # type: ignore[method-assign]
    cls.expire_all = _remembering_all(cls.expire_all)  # type: ignore[method-assign]
    for name in ("execute", "scalar", "scalars"):
        setattr(cls, name, guarded_execute(getattr(cls, name)))
    cls.bulk_save_objects = guarded_bulk_save(  # type: ignore[method-assign]
        cls.bulk_save_objects
    )
    cls.bulk_update_mappings = guarded_bulk_update(  # type: ignore[method-assign]
        cls.bulk_update_mappings
    )
    cls.bulk_insert_mappings = guarded_bulk_insert(  # type: ignore[method-assign]
        cls.bulk_insert_mappings
    )
    at_step("guard", KNOWN, begin=_ahead_of_listeners, before_flush=_before_flush)
    listen_to_class(cls, **_LISTENERS)


def _guarded_flush(original: Callable[..., None]) -> Callable[..., None]:
    is_plain = original is Session.flush  # and not the application's own

    @functools.wraps(original)
    def flush(self: Session, objects: Any = None) -> None:
        known = known_of(self)
        if known.flushing:  # a watched class below, or a flush inside a flush
            return original(self, objects)
        if TOUCHED in self.__dict__:
            touch_again(self)
        known.flushing = True
        stating, known.stating = known.stating, False
        try:
            if objects or not is_plain or not flush_columns(self, _before_flush, _after_flush):
                original(self, objects)
        except (DBAPIError, ObjectDeletedError) as error:
            running: Flush | None = known.flush
            if running is None or running.outer_error is error:
                raise
            if isinstance(error, DBAPIError):
                conflict = conflict_in_flush(self, running, error)
            else:  # an expired object was to be read
                conflict = gone_in_flush(self, running)
            if conflict is None:
                raise
            raise conflict from error
        finally:
            known.flushing, known.stating = False, stating
            known.announced = ()
            running, known.flush = known.flush, None
            if running is not None:
                disarm(running)
        if running is not None and (running.misses or running.gone_links):
            conclude(running)
        if known.ending_now and known.promises:  # made since the unit has asked whether there are
            check_before_commit(self)

    return flush


def _unread_delete(original: Callable[..., None]) -> Callable[..., None]:
    """``Session.delete``, which reads an expired object when it looks for what goes with it."""

    @functools.wraps(original)
    def delete(self: Session, instance: Any) -> None:
        state = inspect(instance, raiseerr=False)
        if not isinstance(state, InstanceState):
            original(self, instance)  # SQLAlchemy says so
            return
        recall_deleted(state)
        before = last_deleted(self)
        with values_in_mind(state):
            original(self, instance)
        remember_deleted(self, before)

    return delete


def _delete_all(self: Session, instances: Iterable[Any]) -> None:
    """``Session.delete_all`` (SQLAlchemy 2.1), one by one."""
    for instance in instances:
        self.delete(instance)


def _remembering(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def expire(self: Session, instance: Any, attribute_names: Any = None, **options: Any) -> None:
        remember_expired(instance, attribute_names)
        original(self, instance, attribute_names, **options)

    return expire


def _remembering_all(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def expire_all(self: Session) -> None:
        remember(self.identity_map.all_states())
        original(self)

    return expire_all


def _after_begin(session: Session, transaction: SessionTransaction, connection: Any) -> None:
    """Remember the session's own connections; one that begins inside a flush is guarded at once."""
    known = known_of(session)
    known.abandoned = abandoned
    if transaction.nested:
        known.in_transaction(session.get_transaction())
        known.in_savepoint(transaction)
    else:
        known.in_transaction(transaction)
    if known.owner is None or transaction.nested:  # a unit has done so for its own
        guard_commit(transaction)
    if isinstance(connection, Connection):
        if connection not in known.connections:
            database = database_of(connection.dialect)
            known.connected(connection)
            if database.errors_end and watch_errors(connection, database) and not known.sides:
                known.sides = {}
            if database.autocommits(connection):
                known.autocommitting = (*known.autocommitting, connection)
            if known.owner is not None:
                known.owner.connected(connection, database)
        if requests_there_are or known.require_conditions:
            watch_conditions(session, connection)
        if known.flush is not None:
            if known.autocommitting:
                refuse_guarded_writes(session, known.autocommitting)
            arm(known.flush, connection)


def _ahead_of_listeners(session: Session, uow: Any) -> None:
    """What a listener that comes after ours sends is stored at once in AUTOCOMMIT mode."""
    known = known_of(session)
    if known.flushing and known.autocommitting:
        refuse_guarded_writes(session, known.autocommitting)
    begin_flush(session, uow)


def _before_flush(session: Session, uow: Any, objects: Any) -> None:
    """The last step before a flush."""
    known = known_of(session)
    if known.flushing and (known.flush is None or known.flush.uow is uow):
        if known.still:
            refuse_moving(session)
        if known.autocommitting:
            refuse_guarded_writes(session, known.autocommitting)
        if there_are.shared:
            refuse_two_classes(session, known)
        if UNREAD in session.__dict__:
            refuse_unread(session, objects)
        if is_strict(session):
            refuse_forgotten_rows(session, objects)
        begin_flush(session, uow)
        running: Flush = known.flush
        if known.ending_now:
            running.last = is_last(running)
        if marked_deleted(session) or known.promises:
            try:
                read_deleted(session)
                check_pending(running, objects)
                check_before(running, objects)
            except DBAPIError as error:
                # Raised here, it would leave a session that takes its transaction for alive.
                running.broken = error
        answer_for(uow)


def _after_flush(session: Session, uow: Any) -> Collection[InstanceState[Any]]:
    """Settle what the flush has met; gives the objects whose rows were not just written."""
    running: Flush | None = known_of(session).flush
    if running is not None and running.uow is uow and not running.settled:
        running.settled = True
        try:
            if running.broken is not None:
                raise running.broken
            if (attempt := attempt_here.get()) is not None and attempt.repeats is not None:
                judge(running, attempt.repeats)
            if running.known.sides is not None:
                keep_sides(running)
            if running.waiting and not (running.last and send_last(running)):
                drain_all(running)
            if running.skipped or running.misses:
                settle(running)
                if running.known.sides:
                    drop_sides(running)
            if running.overtaken:
                back_to_what_was_read(running)
            if running.known.announced:
                withdraw(session)
            if there_are.kept:
                refused = [kept.state for kept in running.kept] if running.kept else ()
                written(running.uow.mappers, except_for=refused)
            if there_are.compared:
                note_written(running)
        except DBAPIError:
            remember_ours(running)
            raise
    return () if running is None else {*running.missed_states, *running.skipped}


def _after_commit(session: Session) -> None:
    """Before SQLAlchemy expires everything."""
    known, savepoint = known_of(session), nested_transaction(session)
    known.releasing = False
    if savepoint is not None:
        known.savepoint_ended(savepoint)
        return
    if known.ending is not None:
        known.ending.over()
    reads: Reads | None = session.__dict__.get(READS)
    if reads is not None:
        reads.stored(session)
    if session.expire_on_commit:
        remember(session.identity_map.all_states())
    if known.judged is not None:
        forget_stored(known)
    known.committed()


def _after_rollback(session: Session) -> None:
    """Before SQLAlchemy expires what the transaction, or the savepoint, has touched."""
    known, savepoint = known_of(session), nested_transaction(session)
    known.releasing = False
    start = known.start_of(savepoint)
    remember_wanted(session, savepoint=savepoint is not None)
    give_back(known, start)
    held: list[Write] = []
    if known.flush is not None:
        held = known.flush.held()
        if isinstance(sys.exc_info()[1], ObjectDeletedError):
            remember_ours(known.flush)
    known.before_rollback = known.versions_before(start, known.now(), held)
    if savepoint is None:
        known.before_rollback = {**known.undone_before, **known.before_rollback}
    doubts = known.doubts(savepoint) if known.stated else {}
    known.take_back(savepoint)
    remember_rolled_back(session, known.before_rollback, known.compared, doubts)
    if savepoint is not None:
        known.savepoint_ended(savepoint)
        if known.conditions is not None:
            known.conditions.take_back(savepoint)
    else:
        known.decided = True
        if known.ending is not None:
            known.ending.over()


def _revived(session: Session, obj: Any) -> None:
    """SQLAlchemy gives a deleted object back, after the rollback and before it is expired."""
    known = known_of(session)
    remember_revived(obj, known.before_rollback, known.compared)


def _inserted_in_vain(session: Session, obj: Any) -> None:
    """Inserted again, the object gets a version of its own; no row has the one that it had."""
    state = instance_state(obj)
    if facts(state.mapper).by_application:
        forget(state)
    else:
        hold_nothing(state)
    if facts(state.mapper).compares:
        values_unknown(state)


_LISTENERS: dict[str, Callable[..., object]] = {
    "detached_to_persistent": attached,
    "deleted_to_persistent": _revived,
    "persistent_to_transient": _inserted_in_vain,
    "after_begin": _after_begin,
    "after_flush": _after_flush,
    "after_commit": _after_commit,
    "after_rollback": _after_rollback,
    "after_transaction_end": ended,
}
