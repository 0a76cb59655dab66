"""Versions that objects hold after the transaction that wrote their rows was undone.

::

    with SessionLocal() as session:
        page = session.get(Page, 7)      # version 3
        page.title = "New"
        session.flush()                  # version 4, which is invisible to other transactions
    # closed without a commit: nothing is stored, and page has version 3 again

SQLAlchemy expires what a rollback undoes, as long as it is in the session. The object is remembered
in the version from before the transaction's own writes, and after the rollback of a savepoint in
that from before the savepoint's. An object that was expunged, or whose session is closed, reset or
collected as garbage, would keep the version of a write that was undone, and a counter gives that
number to the next write of another transaction. So, once the session has written, every object that
leaves it is recorded. When the writes are undone, the object gets back the version from before
them. Where that version is unknown (a row that was inserted, an object that was read after an
UPDATE statement, compared values), the object must be read before it is edited.

A copy that is pickled before the outcome cannot learn it. It carries the version from before
along, and :mod:`optilock._watched.rows.merge` decides when it comes back.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from weakref import WeakSet

from sqlalchemy import event, inspect
from sqlalchemy.orm import (
    NO_VALUE,
    InstanceState,
    Mapper,
    Session,
    SessionTransaction,
    make_transient_to_detached,
    object_session,
)
from sqlalchemy.orm.attributes import instance_state, set_committed_value
from sqlalchemy.orm.collections import collection_adapter

from optilock._mapped import Facts, Place, State, facts, place_of
from optilock._mapping.original_values import any_compared, remember_values, values_unknown
from optilock._undocumented import flushes
from optilock._watched.rows.joined_transactions import (
    STORED,
    await_outcome,
    give_back,
    leave_joined,
    outcomes_awaited,
    version_awaited,
    version_before,
)
from optilock._watched.rows.seen import remember_version, version_seen
from optilock._watched.rows.unknown_versions import (
    VERSION_BEFORE,
    note_unread,
)
from optilock._watched.session.record import RECORD_KEY, SessionRecord
from optilock._watched.session.values import Departure, Doubt, Point

_log = logging.getLogger("optilock")
#: Sessions that objects have left before the outcome.
_open: WeakSet[SessionRecord] = WeakSet()
_NONE: Mapping[Any, Any] = {}


# -- objects that stay -----------------------------------------------------------------------------


def remember_revived(
    obj: Any, before: Mapping[Place, Any], written: Collection[State] = ()
) -> None:
    """Remember the version of an object whose delete is rolled back.

    The other arguments are those of :func:`remember_rolled_back`. A refused delete, which wrote
    nothing, is treated in the same way.
    """
    state: State = instance_state(obj)
    if any_compared() and facts(state.mapper).compares:
        (values_unknown if state in written else remember_values)(state)
    token = facts(state.mapper).token
    if token and state.key is not None:
        version = before.get(place_of(state), version_seen(state, token))
        if version is not None:
            remember_version(state, version)


def remember_rolled_back(
    session: Session,
    before: Mapping[Place, Any],
    written: Collection[State] = (),
    doubts: Mapping[Mapper[Any], Doubt] = _NONE,
) -> None:
    """Remember the versions that count after a rollback of the transaction, or of a savepoint.

    ``before`` are the versions, before the transaction, of rows that it wrote. ``written`` are the
    objects of compared rows that it wrote: their values were never stored. ``doubts`` concern
    objects that were read after an UPDATE statement: their values may not have been stored.
    """
    rollback = _Rollback(session, before, written, doubts)
    manager = None
    for state in session.identity_map.all_states():
        if state.manager is not manager:
            manager, class_facts = state.manager, facts(state.manager.mapper)
        if state.key is not None:
            rollback.remember(state, class_facts)
    if rollback.expired and rollback.is_nested:
        flushes.expire_with_savepoint(
            session, rollback.expired
        )  # their reads since then are undone, too


class _Rollback:
    """The rollback of a transaction or a savepoint, for objects that stay in the session."""

    def __init__(
        self,
        session: Session,
        before: Mapping[Place, Any],
        written: Collection[State],
        doubts: Mapping[Mapper[Any], Doubt],
    ) -> None:
        savepoint = flushes.nested_transaction(session)
        self._session, self._before, self._written = session, before, written
        self._doubts, self._compares = doubts, any_compared()
        self.is_nested = savepoint is not None
        self._expiring = () if savepoint is None else flushes.states_expired_with(savepoint)
        #: Objects whose rows must be read again.
        self.expired: list[State] = []

    def remember(self, state: State, class_facts: Facts) -> None:
        """Remember the version of one object of a stored row."""
        assert state.key is not None
        place = class_facts.root, tuple(state.key[1])
        version = self._before.get(place, NO_VALUE)
        doubt = self._doubt_about(state, class_facts) if self._doubts else None
        if doubt is not None:
            self.expired.append(state)
        if self._compares and class_facts.compares:
            unknown = doubt is not None or state in self._written or version is None
            (values_unknown if unknown else remember_values)(state)
        if class_facts.token:
            if doubt is not None and place not in doubt.written:
                version = doubt.held.get(state)
            self._remember_version(state, class_facts.token, version)

    def _doubt_about(self, state: State, class_facts: Facts) -> Doubt | None:
        doubt = self._doubts.get(class_facts.root)
        return None if doubt is not None and doubt.adds and state in doubt.held else doubt

    def _remember_version(self, state: State, token: str, version: Any) -> None:
        if version is None:  # a statement had moved it from an unknown version
            note_unread(self._session, state)
            self.expired.append(state)
            return
        if version is NO_VALUE and (
            not self.is_nested or state.modified or state in self._expiring
        ):
            version = state.committed_state.get(token, state.dict.get(token, NO_VALUE))
        if version is not NO_VALUE and version is not None:
            remember_version(state, version)


# -- objects that leave ----------------------------------------------------------------------------


def guarded_expunge(original: Callable[..., None]) -> Callable[..., None]:
    """Replace ``Session.expunge``, which continues with cascaded objects."""

    @functools.wraps(original)
    def expunge(self: Session, instance: Any) -> None:
        states: list[State] = []
        state = inspect(instance, raiseerr=False)
        if isinstance(state, InstanceState) and (_is_open(self) or outcomes_awaited()):
            cascaded = state.mapper.cascade_iterator("expunge", state)
            states = [state, *(one for _, _, one, _ in cascaded)]
            leave_joined(self, states)
        original(self, instance)
        _depart(self, states if _is_open(self) else [])

    return expunge


def guarded_expunge_all(original: Callable[..., None]) -> Callable[..., None]:
    """Replace ``Session.expunge_all``, which ``close`` and similar methods call first."""

    @functools.wraps(original)
    def expunge_all(self: Session) -> None:
        record: SessionRecord | None = self.__dict__.get(RECORD_KEY)
        if record is None or record.decided:
            original(self)
            return
        states = self.identity_map.all_states()
        leave_joined(self, states)
        if record.conditions is not None:
            record.conditions.left(self)
        original(self)
        _depart(self, states if record.has_written() else [])

    return expunge_all


def follow_copy(source: State, copy: State) -> None:
    """Record that ``merge(load=False)`` gave ``copy`` the values of ``source``.

    They may yet be undone.
    """
    record = _record_of(source)
    if record is not None and record.has_written():
        _leave(record, [copy])


def _is_open(session: Session) -> bool:
    record = session.__dict__.get(RECORD_KEY)
    return record is not None and record.has_written()


def _depart(session: Session, states: list[State]) -> None:
    if states:
        _leave(session.__dict__[RECORD_KEY], states)


def _leave(record: SessionRecord, states: list[State]) -> None:
    if record.departed:  # most that leave are dropped at once
        last, at = record.departed.pop()
        alive = [state for state in last if state.obj() is not None]
        if alive:
            record.departed.append(Departure(alive, at))
    record.departed.append(Departure(states, record.now()))
    record.awaited = True
    _open.add(record)


# -- the outcome -----------------------------------------------------------------------------------


def give_back_versions(record: SessionRecord, start: Point) -> None:
    """Give objects that have left the session the versions from before ``start``."""
    for states, at in record.departed:
        before = record.before(start, at)
        for state in states:
            if state.session is None or state.session.__dict__.get(RECORD_KEY) is not record:
                give_back(state, version_before(state, before), record.compared)
    record.undo_departures(start)


def note_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    """Settle the end of a transaction, or a savepoint; one without an outcome is undone."""
    record: SessionRecord | None = session.__dict__.get(RECORD_KEY)
    if record is None or not (transaction.nested or transaction is record.root):
        return  # a part of another one, or one that has begun on no connection
    if transaction.nested:
        start = record.savepoint_ended(transaction)
    else:
        start = None if record.decided or record.goes_on() else (0, 0, 0)
        if start is None and not record.decided:
            await_outcome(session, record)
    if start is not None:
        _undo(record, session, transaction, start)
    if not transaction.nested:
        if start is not None and record.conditions is not None:
            record.conditions.abandoned()
        if record.awaited:
            record.awaited = False
            _open.discard(record)
        record.ended()


def undo_abandoned(record: SessionRecord, transaction: SessionTransaction) -> None:
    """Undo the transaction of a session that was collected as garbage."""
    for one in (*record.savepoints(), transaction):
        _undo(record, transaction.session, one, (0, 0, 0))
    if record.conditions is not None:
        record.conditions.abandoned()


def _undo(
    record: SessionRecord, session: Session, transaction: SessionTransaction, start: Point
) -> None:
    """Undo writes where SQLAlchemy expires nothing, and makes no new object transient."""
    inserted, deleted = (
        flushes.states_inserted_in(transaction),
        flushes.states_deleted_in(transaction),
    )
    if record.has_written() or inserted:
        before = record.before(start, record.now())
        states = (*session.identity_map.all_states(), *deleted)
        give_back_versions(record, start)
        for state in states:
            give_back(state, version_before(state, before), record.compared)
        for state in inserted:
            if state.key is not None and state.session in (None, session):
                give_back(state, None, record.compared)
        record.take_back_to(start)


# -- copies ----------------------------------------------------------------------------------------


def mark_pickles(mapper: Mapper[Any]) -> None:
    """Let pickled and deeply copied objects of the class carry what was not yet stored."""
    event.listen(mapper.class_, "pickle", _pickled, raw=True)


def _pickled(state: State, pickled: dict[str, Any]) -> None:
    if facts(state.mapper).by_application or state.key is None:
        return
    record, version = _record_of(state), version_awaited(state)
    if version is STORED and record is not None:
        version = version_before(state, record.before((0, 0, 0), record.now()))
        if any(state in flushes.states_inserted_in(one) for one in record.transactions()):
            version = None  # nothing is stored
    if version is not STORED:
        pickled["info"] = {**pickled.get("info", {}), VERSION_BEFORE: version}


def _record_of(state: State) -> SessionRecord | None:
    """Return the record of the session whose writes the object holds, also after it has left."""
    if state.session is not None:
        return state.session.__dict__.get(RECORD_KEY)
    return next(_left_by(state), None)


def _left_by(state: State) -> Iterator[SessionRecord]:
    for record in list(_open):
        if any(state in states for states, _ in record.departed):
            yield record


# -- a rollback that was none ----------------------------------------------------------------------


def values_of(session: Session, *, flushed: bool) -> list[tuple[Any, dict[str, Any]]]:
    """Return the objects of a session with their values, if COMMIT would not expire them.

    Versions are left out of objects that are not ``flushed``: they are about to move.
    """
    if session.expire_on_commit:
        return []
    kept = []
    for obj in session if flushed else session.identity_map.values():
        values = dict(instance_state(obj).dict)
        if not flushed:
            values.pop(facts(inspect(obj).mapper).token or "", None)
        kept.append((obj, values))
    return kept


def restore_values(kept: Collection[tuple[Any, dict[str, Any]]]) -> None:
    """Let objects be as after a COMMIT, because the transaction was stored after all.

    An object that cannot be restored is expired, and that is logged: the work is stored, and a
    retry that is given an error would store it twice.
    """
    for restore in (_restore_columns, _restore_related):  # a dict of objects asks for their columns
        for obj, values in kept:
            try:
                restore(obj, values)
            except Exception:
                _log.warning(_NOT_RESTORED, type(obj).__qualname__, exc_info=True)
                session = object_session(obj)
                if session is not None and instance_state(obj).persistent:
                    session.expire(obj)


def _restore_columns(obj: Any, values: dict[str, Any]) -> None:
    state: State = instance_state(obj)
    if state.key is None:
        make_transient_to_detached(obj)
    for name in values.keys() & state.mapper.column_attrs.keys():
        set_committed_value(obj, name, values[name])


def _restore_related(obj: Any, values: dict[str, Any]) -> None:
    relationships = instance_state(obj).mapper.relationships
    for name in values.keys() & relationships.keys():
        value, its = values[name], relationships[name]
        if its.lazy in ("dynamic", "write_only"):  # it holds no objects
            continue
        if its.uselist and value is not None:
            value = list(collection_adapter(value))  # also of a dict, which would give its keys
        set_committed_value(obj, name, value)


_NOT_RESTORED = (
    "the unit of work is stored, though COMMIT got no answer, and its object (%s) could not be"
    " given its values again: it is expired, so read it before you edit it"
)
