"""What objects hold when the transaction that has written their rows comes to nothing.

::

    with SessionLocal() as session:
        page = session.get(Page, 7)      # version 3
        page.title = "New"
        session.flush()                  # version 4, which nobody else can see
    # closed without a commit: nothing is stored, and page says version 3 again

SQLAlchemy expires what a rollback undoes, as long as it is in the session: it is remembered in the
version from before the transaction's own writes, and after the rollback of a savepoint in that from
before the savepoint's. An object that was expunged, or whose session is closed, reset or collected
as garbage, would keep the version of a write that never was, and a counter gives that number to
somebody else's next write. So whoever leaves is noted, once something was written, and when the
writes come to nothing the object gets back the version from before them. Where nobody knows that
one (a row that was inserted, an object that was read after an UPDATE statement, compared values) it
must be read before it is edited.

A copy that is pickled before the outcome cannot be told of it. It carries the version from before
along, and :mod:`optilock.watched.rows.merge` decides when it comes back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from weakref import WeakSet

from sqlalchemy import event, inspect
from sqlalchemy.orm import NO_VALUE, InstanceState, Mapper, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state

from optilock.mapped import Place, State, facts, place_of
from optilock.mapping.compared import any_compared, remember_values, values_unknown
from optilock.undocumented.flushes import (
    deleted_in,
    expire_with_savepoint,
    expired_with,
    inserted_in,
    nested_transaction,
)
from optilock.watched.rows.seen import remember_version, version_seen
from optilock.watched.rows.unknown_versions import BEFORE, hold, hold_nothing, note_unread
from optilock.watched.session.records import Before, Departed, Doubt, Point
from optilock.watched.session.watched import KNOWN, Watched

#: In the place of a version: the row was not written, and what the object holds is stored.
_STORED = object()
#: Sessions that objects have left before the outcome.
_open: WeakSet[Watched] = WeakSet()
_NONE: Mapping[Any, Any] = {}


# -- who stays ------------------------------------------------------------------------------------


def remember_revived(
    obj: Any, before: Mapping[Place, Any], written: Collection[State] = ()
) -> None:
    """The delete of ``obj`` is rolled back; the others are those of :func:`remember_rolled_back`.

    So is a delete that was refused, and wrote nothing.
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
    """The transaction, or a savepoint, is undone; ``before`` are the versions of rows it wrote.

    ``written`` are the objects of compared rows that it wrote: what they hold was never stored. So
    it may be with objects that were read after an UPDATE statement: ``doubts`` has those.
    """
    savepoint = nested_transaction(session)
    nested, expiring = savepoint is not None, () if savepoint is None else expired_with(savepoint)
    expired = []
    manager = None
    for state in session.identity_map.all_states():
        if state.manager is not manager:
            manager, of = state.manager, facts(state.manager.mapper)
            root, token, compared = of.root, of.token, any_compared() and of.compares
        if state.key is None:
            continue
        place = root, tuple(state.key[1])
        version = before.get(place, NO_VALUE) if before else NO_VALUE
        doubt = doubts.get(root) if doubts else None
        if doubt is not None and doubt.adds and state in doubt.held:
            doubt = None
        if doubt is not None:
            expired.append(state)
        if compared:
            unknown = doubt is not None or state in written or version is None
            (values_unknown if unknown else remember_values)(state)
        if not token:
            continue
        if doubt is not None and place not in doubt.written:
            version = doubt.held.get(state)
        if version is None:  # a statement had moved it, and nobody knows from which one
            note_unread(session, state)
            expired.append(state)
            continue
        if version is NO_VALUE and (not nested or state.modified or state in expiring):
            version = state.committed_state.get(token, state.dict.get(token, NO_VALUE))
        if version is not NO_VALUE and version is not None:
            remember_version(state, version)
    if expired and nested:
        expire_with_savepoint(session, expired)  # what they have read since is undone, too


# -- who leaves -----------------------------------------------------------------------------------


def guarded_expunge(original: Callable[..., None]) -> Callable[..., None]:
    """``Session.expunge``, which goes on with what it cascades to."""

    @functools.wraps(original)
    def expunge(self: Session, instance: Any) -> None:
        states: list[State] = []
        state = inspect(instance, raiseerr=False)
        if isinstance(state, InstanceState) and _is_open(self):
            cascaded = state.mapper.cascade_iterator("expunge", state)
            states = [state, *(one for _, _, one, _ in cascaded)]
        original(self, instance)
        _depart(self, states)

    return expunge


def guarded_expunge_all(original: Callable[..., None]) -> Callable[..., None]:
    """``Session.expunge_all``, with which ``close`` and its like begin."""

    @functools.wraps(original)
    def expunge_all(self: Session) -> None:
        known: Watched | None = self.__dict__.get(KNOWN)
        if known is None or known.decided:
            original(self)
            return
        states = self.identity_map.all_states() if known.has_written() else []
        original(self)
        _depart(self, states)

    return expunge_all


def follow_copy(source: State, copy: State) -> None:
    """``merge(load=False)`` has given ``copy`` what ``source`` holds; it may yet be undone."""
    known = _known_of(source)
    if known is not None and known.has_written():
        _leave(known, [copy])


def _is_open(session: Session) -> bool:
    known = session.__dict__.get(KNOWN)
    return known is not None and known.has_written()


def _depart(session: Session, states: list[State]) -> None:
    if states:
        _leave(session.__dict__[KNOWN], states)


def _leave(known: Watched, states: list[State]) -> None:
    if known.departed:  # most that leave are dropped at once
        last, at = known.departed.pop()
        alive = [state for state in last if state.obj() is not None]
        if alive:
            known.departed.append(Departed(alive, at))
    known.departed.append(Departed(states, known.now()))
    known.awaited = True
    _open.add(known)


# -- the outcome ----------------------------------------------------------------------------------


def give_back(known: Watched, start: Point) -> None:
    """What was written since ``start`` is undone: so it is for the objects that have left."""
    for states, at in known.departed:
        before = known.before(start, at)
        for state in states:
            if state.session is None or state.session.__dict__.get(KNOWN) is not known:
                _give_back(known, state, _version_before(state, before))
    known.departed = [
        Departed(states, (min(at[0], start[0]), min(at[1], start[1]), min(at[2], start[2])))
        for states, at in known.departed
    ]


def ended(session: Session, transaction: SessionTransaction) -> None:
    """A transaction, or a savepoint, is over; closed without an outcome it is undone."""
    known: Watched | None = session.__dict__.get(KNOWN)
    if known is None or not (transaction.nested or transaction is known.root):
        return  # a part of another one, or one that has begun on no connection
    if transaction.nested:
        start = known.savepoint_ended(transaction)
    else:
        start = None if known.decided or known.goes_on() else (0, 0, 0)
    if start is not None:
        _undo(known, session, transaction, start)
    if not transaction.nested:
        if known.awaited:
            known.awaited = False
            _open.discard(known)
        known.ended()


def abandoned(known: Watched, transaction: SessionTransaction) -> None:
    """The session was collected as garbage, and its transaction with it."""
    for one in (*known.savepoints(), transaction):
        _undo(known, transaction.session, one, (0, 0, 0))


def _undo(known: Watched, session: Session, transaction: SessionTransaction, start: Point) -> None:
    """SQLAlchemy expires nothing here, and makes no new object transient."""
    inserted, deleted = inserted_in(transaction), deleted_in(transaction)
    if known.has_written() or inserted:
        before = known.before(start, known.now())
        states = (*session.identity_map.all_states(), *deleted)
        give_back(known, start)
        for state in states:
            _give_back(known, state, _version_before(state, before))
        for state in inserted:
            if state.key is not None and state.session in (None, session):
                _give_back(known, state, None)
        known.take_back_to(start)


def _version_before(state: State, before: Before) -> Any:
    """The version that is stored when all is undone, or ``_STORED``; ``None``: nobody knows."""
    if state.key is None or not facts(state.mapper).token:
        return _STORED
    place = place_of(state)
    doubt = before.doubts.get(facts(state.mapper).root)
    if doubt is not None and place not in doubt.written:
        return doubt.held.get(state)
    return before.versions.get(place, _STORED)


def _give_back(known: Watched, state: State, version: Any) -> None:
    if facts(state.mapper).compares and (state in known.compared or version is None):
        values_unknown(state)
    if version is None:
        hold_nothing(state)
    elif version is not _STORED:
        hold(state, version)


# -- copies ---------------------------------------------------------------------------------------


def tell_pickles(mapper: Mapper[Any]) -> None:
    """From here on, pickled and deeply copied objects of the class say what was not yet stored."""
    event.listen(mapper.class_, "pickle", _pickled, raw=True)


def _pickled(state: State, pickled: dict[str, Any]) -> None:
    known = _known_of(state)
    if known is None or facts(state.mapper).by_application or state.key is None:
        return
    version = _version_before(state, known.before((0, 0, 0), known.now()))
    if any(state in inserted_in(one) for one in known.transactions()):  # nothing is stored
        version = None
    if version is not _STORED:
        pickled["info"] = {**pickled.get("info", {}), BEFORE: version}


def _known_of(state: State) -> Watched | None:
    """The session whose writes the object holds: it is in it, or has left it."""
    if state.session is not None:
        return state.session.__dict__.get(KNOWN)
    return next(_left_by(state), None)


def _left_by(state: State) -> Iterator[Watched]:
    for known in list(_open):
        if any(state in states for states, _ in known.departed):
            yield known
