"""The flush of a watched session, from its beginning to its end.

:func:`guarded_flush` is called in place of ``Session.flush``. A flush has four parts:

1. *before* (:func:`before_flush`): it refuses rows that no flush may write, and records the rest;
2. *changed*: which rows have which new values;
3. *write*: an UPDATE for each row, answered by :mod:`optilock._watched.guard.connection`;
4. *after* (:func:`after_flush`): held rows are sent, and the rows that missed are settled.

SQLAlchemy plans every flush: which classes go first, which relationships move keys from one row to
another, which rows were inserted, moved and deleted. Where only columns of stored rows have
changed, there is nothing to plan, so the guard finds the values itself, and sends SQLAlchemy's own
statement in SQLAlchemy's order. If only the guard listens to flushes, it does not call SQLAlchemy's
flush (:func:`_carry_out`). Otherwise it replaces only ``execute`` (:func:`replace_execute`).

SQLAlchemy does parts 2 and 3 of a flush that is not that simple: with a new or a deleted object, a
changed relationship or key, a column that others refer to, an expression, or a class without an
:class:`~optilock._watched.guard.own_flush.UpdatePlan`; and after an error in part 2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any
from weakref import ref

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session, UOWTransaction
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError

from optilock import events
from optilock._mapped import State
from optilock._mapping.original_values import copy_written
from optilock._mapping.tables import features_in_use
from optilock._undocumented import flushes
from optilock._watched.guard.batch import (
    Joined,
    may_go_with_commit,
    rows_to_join,
    send_all_deferred,
    send_with_commit,
)
from optilock._watched.guard.compared_values import note_written
from optilock._watched.guard.connection import intercept, listen, release, write_by_hand
from optilock._watched.guard.ended_transactions import (
    drop_sides,
    keep_sides,
    raise_conflict,
    remember,
)
from optilock._watched.guard.no_bump import forget_announced, refuse_moving, withdraw
from optilock._watched.guard.own_flush import (
    PLAN,
    UpdatePlan,
    execute_planned,
    fill_in_columns,
    has_own_flush,
    plan_of,
    refuse_unseen,
)
from optilock._watched.guard.promises import check_before_commit, check_pending
from optilock._watched.guard.records import Flush
from optilock._watched.guard.refusals import (
    judge_deletes,
    refuse_forgotten_rows,
    refuse_guarded_writes,
    refuse_two_classes,
    refuse_unread,
)
from optilock._watched.guard.repeats import judge, note_assigned, note_listeners
from optilock._watched.guard.running_attempts import attempt_here
from optilock._watched.guard.settlement import conclude, settle
from optilock._watched.guard.sums import return_to_read_versions
from optilock._watched.guard.written_rows import note_flush
from optilock._watched.rows.seen import SEEN_VERSION, read_before_delete, recall_version
from optilock._watched.rows.touch import ROOTS_LEFT, TOUCHES, touch_again
from optilock._watched.rows.unknown_versions import UNREAD_STATES
from optilock._watched.session.order import only_guard_listens
from optilock._watched.session.record import SessionRecord, is_strict, record_of
from optilock._watched.statements.silent_cascades import refuse_silent_flush
from optilock.conditions.write import write_of
from optilock.serialize import is_expression

_NO_ROWS: Any = (None, None, None)
#: Values that are no expressions.
_VALUES = frozenset({int, str, float, bool, bytes, type(None)})

#: An object to write, and its new values by their parameters.
_Row = tuple[State, dict[str, Any]]
_Changed = list[tuple[Mapper[Any], UpdatePlan, list[_Row]]]


def guarded_flush(original: Callable[..., None]) -> Callable[..., None]:
    """Return the ``flush`` method of a watched session class."""
    is_plain = original is Session.flush  # and not the application's own

    @functools.wraps(original)
    def flush(self: Session, objects: Any = None) -> None:
        record = record_of(self)
        if record.flushing:  # a watched class below, or a flush inside a flush
            return original(self, objects)
        if TOUCHES in self.__dict__:
            touch_again(self)
        for state in flushes.changed_objects(self):
            if hasattr(state, SEEN_VERSION):
                recall_version(state)
        record.flushing = True
        try:
            if (attempt := attempt_here.get()) is not None and attempt.repeats is not None:
                note_assigned(self)
            if objects or not is_plain or not _flush_changed_columns(self):
                original(self, objects)
        except (DBAPIError, ObjectDeletedError) as error:
            raise_conflict(record.flush, error)
            raise
        finally:
            record.flushing = False
            running, record.flush = record.flush, None
            if record.announced:
                forget_announced(record)
            if running is not None:
                release(running)
        if running is not None and (running.misses or running.gone_links):
            conclude(running)
        if running is not None and ROOTS_LEFT in self.__dict__ and TOUCHES in self.__dict__:
            flush(self)
        is_last = record.ending_now or (running is not None and running.last)
        if is_last and record.promises:  # perhaps made since the unit has looked for them
            check_before_commit(self)

    return flush


# -- a flush of changed columns, alone or inside of SQLAlchemy's -----------------------------------


def _flush_changed_columns(session: Session) -> bool:
    """Flush the session; return ``False`` if SQLAlchemy must do it, and nothing was done."""
    if not has_own_flush(session) or any(flushes.other_work(session)):
        return False
    states = flushes.changed_objects(session)
    if not states:
        return True
    if not only_guard_listens(session):
        return False
    by_mapper: dict[Mapper[Any], list[State]] = {}
    for state in states:
        by_mapper.setdefault(state.manager.mapper, []).append(state)
    try:
        orphans = any(
            flushes.orphan_rules(m) and flushes.is_orphan(m, held) for m, held in by_mapper.items()
        )
        changed = None if orphans else _changed(by_mapper)
    except BaseException:  # Ctrl-C, or a task that is cancelled: not to be met again
        give_up(session)
        raise
    if changed is None:
        return False
    _carry_out(session, by_mapper, changed)
    return True


def give_up(session: Session) -> None:
    """End the transaction, or the savepoint, with the error that is being raised."""
    flushes.end_transaction(flushes.begin_transaction(session))


def _carry_out(
    session: Session, by_mapper: Mapping[Mapper[Any], list[State]], changed: _Changed
) -> None:
    """Write the rows, with all that SQLAlchemy's flush does around that.

    An error ends the transaction, or the savepoint, as it does in SQLAlchemy's flush.
    """
    setattr(session, flushes.FLUSHING, True)
    try:
        uow = UOWTransaction(session)
        before_flush(session, uow, None)
        for mapper, states in by_mapper.items():
            uow.mappers[mapper].update(states)
            uow.states.update(dict.fromkeys(states, (False, False)))
        uow.transaction = transaction = flushes.begin_transaction(session)
        if flushes.state_of_transaction(transaction) is not flushes.ACTIVE:
            flushes.refuse_inactive(transaction)
        try:
            setattr(session, flushes.WARN_ON_EVENTS, True)
            try:
                for mapper, plan, rows in changed:
                    _write(uow, mapper, plan, rows)
            finally:
                setattr(session, flushes.WARN_ON_EVENTS, False)
            _finish(session, uow, after_flush(session, uow))
        except BaseException:
            flushes.end_transaction(transaction)
            raise
    finally:
        setattr(session, flushes.FLUSHING, False)


def _finish(session: Session, uow: UOWTransaction, unwritten: Collection[State]) -> None:
    """Mark the objects as clean, and record the written ones in the transaction."""
    written: Collection[State] = uow.states
    if unwritten:
        written = flushes.finish_unwritten(session, uow, unwritten)
    values = []
    for state in written:
        values.append((state, state.dict))
    flushes.mark_clean(values, session.identity_map)
    flushes.register_written(session)(written)
    if flushes.changed_objects(session):
        flushes.drop_late_changes(session)


def replace_execute(uow: UOWTransaction) -> None:
    """Let SQLAlchemy's flush write changed columns without a plan, if it turns out to need none."""
    setattr(uow, "execute", functools.partial(_execute, ref(uow)))  # noqa: B010


def _execute(running: ref[UOWTransaction]) -> None:
    uow = running()
    assert uow is not None
    deletes = any(other != (False, False) for other in uow.states.values())
    own = not deletes and has_own_flush(uow.session)
    changed = _changed(uow.mappers) if own else None
    if changed is None:
        execute_planned(uow)
    else:
        for mapper, plan, rows in changed:
            _write(uow, mapper, plan, rows)


# -- 1: before -------------------------------------------------------------------------------------


def begin_ahead_of_listeners(session: Session, uow: Any) -> None:
    """Begin the flush before listeners that are called after ours, and may send statements."""
    record = record_of(session)
    if record.flushing and record.autocommitting:  # these would be stored at once
        refuse_guarded_writes(session, record.autocommitting)
    _begin(session, uow)


def before_flush(session: Session, uow: Any, objects: Any) -> None:
    """Check all that the flush will write, then start its record.

    Runs after every other step before a flush.
    """
    record = record_of(session)
    if record.flushing and (record.flush is None or record.flush.uow is uow):
        _refuse(session, record, objects)
        _begin(session, uow)
        running: Flush = record.flush
        if record.ending_now:
            running.last = may_go_with_commit(running)
        if flushes.states_marked_deleted(session) or record.promises:
            try:
                read_before_delete(session)
                check_pending(running, objects)
                judge_deletes(running, objects)
            except DBAPIError as error:
                # Raised here, it would leave a session that takes its transaction for alive.
                running.broken = error
        if (attempt := attempt_here.get()) is not None and attempt.repeats is not None:
            note_listeners(session)
        replace_execute(uow)


def _refuse(session: Session, record: SessionRecord, objects: Any) -> None:
    """Refuse rows that no flush may write; nothing was sent."""
    if record.no_bump_blocks:
        refuse_moving(session)
    if record.autocommitting:
        refuse_guarded_writes(session, record.autocommitting)
    if features_in_use.shared:
        refuse_two_classes(session, record)
    if UNREAD_STATES in session.__dict__:
        refuse_unread(session, objects)
    if is_strict(session):
        refuse_forgotten_rows(session, objects)
        refuse_silent_flush(session, objects)


def _begin(session: Session, uow: Any) -> None:
    """Start the record of a flush: from here on, it gets what the session sends."""
    record = record_of(session)
    if record.flushing and record.flush is None:
        record.flush = running = Flush(session, record, listen, write_by_hand)
        for connection in record.connections:
            intercept(running, connection)
        running.uow = uow


# -- 2: changed ------------------------------------------------------------------------------------


def _changed(by_mapper: Mapping[Mapper[Any], Collection[State]]) -> _Changed | None:
    """Return the rows of each class, in SQLAlchemy's order; ``None`` if a plan is needed."""
    found = []
    try:
        for mapper, states in by_mapper.items():
            plan = _plan_for(mapper)
            if plan is None:
                return None
            if len(states) > 1:
                states = sorted(states, key=flushes.order_of_rows(mapper))
            rows: list[_Row] = []
            for state in states:
                values = _changed_values(plan, state)
                if values is None:
                    return None
                if values:
                    rows.append((state, values))
            found.append((mapper, plan, rows))
    except Exception:  # SQLAlchemy meets and raises it as well
        return None
    if len(found) > 1:
        if any(mapper.relationships for mapper, _, _ in found):
            return None  # they may say which class goes first
        found.sort(key=lambda one: flushes.order_of_class(one[0]))
    return found


def _plan_for(mapper: Mapper[Any]) -> UpdatePlan | None:
    plan = mapper.__dict__[PLAN] if PLAN in mapper.__dict__ else plan_of(mapper)
    if plan is None or any(flushes.listeners_of_rows(mapper)):
        return None
    if len(plan.followers) != plan.known_followers:  # rows of others follow it by now
        del mapper.__dict__[PLAN]
        return None
    return plan


def _changed_values(plan: UpdatePlan, state: State) -> dict[str, Any] | None:
    """Return the new values and the key; ``None`` if another change was made, or is unknown."""
    values, columns = state.dict, plan.columns
    if state.key is None or values.get(plan.version[0]) is None:
        return None
    changes = {}
    for name, before in state.committed_state.items():
        if name not in columns:
            return None
        value = values[name]
        if type(value) not in _VALUES and is_expression(value):
            return None
        parameter, is_same = columns[name]
        if is_same(value, before) is not True:
            changes[parameter] = value
    if not changes:  # SQLAlchemy reads a key that is not there
        return changes if all(name in values for name, _ in plan.keys) else None
    for name, parameter in plan.keys:
        if name not in values:
            return None
        changes[parameter] = values[name]
    return changes


# -- 3: write --------------------------------------------------------------------------------------


def _write(uow: UOWTransaction, mapper: Mapper[Any], plan: UpdatePlan, rows: list[_Row]) -> None:
    """Send the UPDATE of each row, and give its object what was written with it.

    Rows join one with the same columns that was deferred, as long as nothing was sent since.
    """
    statement, options, (token, expected, new) = plan.statement, plan.options, plan.version
    make_next: Any = mapper.version_id_generator
    connection = flushes.connections_of_flush(uow)(mapper)
    send, hear = connection.execute, flushes.listeners_of_values(mapper)
    running: Flush | None = None if hear or len(rows) == 1 else record_of(uow.session).flush
    joined: dict[tuple[str, ...], Joined] = {}
    waiting = None
    for state, params in rows:
        values = state.dict
        params[expected] = before = values[token]
        params[new] = made = make_next(before)
        if joined and running is not None and running.waiting.get(connection) is waiting:
            shape, held, key_of = joined.get(tuple(params), _NO_ROWS)
            if key_of is not None and (key := key_of(params)) not in held:
                held[key] = write_of((shape, params))
                values[token] = made
                continue
        result: Any = send(statement, params, execution_options=options)
        if not result.rowcount:  # the guard has not answered for the row
            raise StaleDataError(
                f"UPDATE statement on table '{statement.table.description}' expected to"
                " update 1 row(s); 0 were matched."
            )
        context = result.context
        compiled, (sent, *_) = context.compiled, context.compiled_parameters
        if new in sent:  # not where the version stays
            values[token] = sent[new]
        if hear or compiled.prefetch or compiled.postfetch:
            fill_in_columns(
                plan, state, compiled, sent, hear and functools.partial(hear, state, uow)
            )
        if running is not None:
            if running.waiting.get(connection) is not waiting:
                waiting, joined = running.waiting.get(connection), {}
            found = rows_to_join(running, connection, params, result)
            if found is not None:
                joined[tuple(params)] = found
    if plan.is_first and rows:
        refuse_unseen(mapper)


# -- 4: after --------------------------------------------------------------------------------------


def after_flush(session: Session, uow: Any) -> Collection[State]:
    """Settle what the flush has met; return the objects whose rows were not just written."""
    running: Flush | None = record_of(session).flush
    if running is None:
        return ()
    if running.uow is uow and not running.settled:
        running.settled = True
        try:
            _send_and_settle(running)
        except DBAPIError:
            remember(running)
            raise
    return {*running.missed_states, *running.skipped}


def _send_and_settle(running: Flush) -> None:
    record = running.record
    if running.broken is not None:
        raise running.broken
    if (attempt := attempt_here.get()) is not None and attempt.repeats is not None:
        judge(running, attempt.repeats)
    if record.sides is not None:
        keep_sides(running)
    if running.waiting and not (running.last and send_with_commit(running)):
        send_all_deferred(running)
    if running.skipped or running.misses:
        settle(running)
        if record.sides:
            drop_sides(running)
    _conclude(running)


def _conclude(running: Flush) -> None:
    """Note the versions and values that are stored now, and let guard triggers move versions."""
    if events.listeners_to_rows:
        note_flush(running)
    if running.overtaken:
        return_to_read_versions(running)
    if running.record.announced:
        withdraw(running.session)
    if features_in_use.kept:
        assert running.uow is not None
        refused = [kept.state for kept in running.kept] if running.kept else ()
        copy_written(running.uow.mappers, except_for=refused)
    if features_in_use.compared:
        note_written(running)
