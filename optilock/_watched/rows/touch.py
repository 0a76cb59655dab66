"""``touch``: move the version of a row though no other column of it changes.

::

    order = session.get_one(Order, 7)
    ship(order)                          # writes other rows that belong to the order
    touch(order)                         # readers of the order must read it again

The UPDATE compares the version, as every write does, and moves it by one step: also when the object
is changed as well, and when it is touched twice. It is sent with the next flush. Until then
``etag_of`` refuses the object. Only a rollback takes a touch back: an object that
is refreshed before the flush is touched in the version that was read then. Works in watched
sessions, units and plain sessions.

A touch is a changed version of the object, and ``refresh``, ``expire`` and a query with
``populate_existing`` drop it like every edit. A touch concerns the row, not the copy in memory. So
the session remembers it until the flush that writes it, or until a rollback: an object that was
read again is touched in the version that was read, one that was expired in the version that was
seen.

The same holds for the root of an aggregate whose own row was refused when other rows of the
aggregate were written: they stay in the transaction, and it cannot be committed without the root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Session, SessionTransaction, UOWTransaction

from optilock._mapped import HINT_ADD_TOKEN, State, facts
from optilock._mapping.moves import touch_state
from optilock._watched.rows.seen import recall_version
from optilock._watched.session.order import add_step
from optilock._watched.session.record import RECORD_KEY, keeps_version, session_record
from optilock.errors import ConfigurationError, describe

#: An attribute of a session: its :class:`_Touched`, once there is something.
TOUCHES = "_optilock_touched"
ROOTS = "_optilock_roots"
#: Another one: roots of rows that a flush found otherwise than they had been read.
ROOTS_LEFT = "_optilock_roots_left"


def touch(obj: object) -> None:
    """Move the version of ``obj``'s row with the next flush, by one step.

    A new object, which gets its first version anyway, and one that is to be deleted are not
    touched. An object that a commit has expired is touched in the version that was seen: if its row
    has moved since, or is gone, that is a conflict. A touch outlives ``refresh`` and ``expire``.

    Raises:
        ConfigurationError: the object is in no session, or its class has no version that moves
            automatically (no mixin, ``CompareValues``, ``Manual``).
    """
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState):
        raise ConfigurationError(f"touch() takes an object of a mapped class, not {describe(obj)}.")
    name = state.class_.__name__
    if state.session is None:
        raise ConfigurationError(
            f"This {name} is in no session, so nothing would write its version: add it to one, or"
            " touch the object that the session has loaded."
        )
    if not facts(state.mapper).token:
        raise ConfigurationError(f"{name} has no version to move: {HINT_ADD_TOKEN}.")
    if facts(state.mapper).by_values:
        raise ConfigurationError(
            f"The version of {name} is made from the values of its row, and moves with them alone:"
            " change one of those, or give the class a token that can be moved, Counter()."
        )
    if facts(state.mapper).by_application:
        raise ConfigurationError(
            f"The version of {name} moves when your program assigns it (Manual): assign the next"
            " one instead."
        )
    if keeps_version(state.session, obj):
        raise ConfigurationError(
            f"Cannot touch() this {name} inside no_bump(), which keeps its version. Move the call"
            " outside the block."
        )
    if state.persistent and state.obj() not in state.session.deleted:
        touch_with_next_flush(state)


# -- touches that wait for their flush -------------------------------------------------------------


class _Touched(dict[State, Any]):
    """Objects by state. They are held, so that an unreferenced expired object is touched, too."""

    #: They end with it. None: it had not begun.
    transaction: SessionTransaction | None = None


def touch_with_next_flush(state: State) -> None:
    """Let the next flush move the version of a persistent object in a session, by one step."""
    add_step(
        "touches",
        TOUCHES,
        before_flush=_before_flush,
        before_commit=touch_again,
        after_flush_postexec=_drop_written,
    )
    recall_version(state)
    touch_state(state)
    session = state.session
    assert session is not None
    waiting = _waiting_touches(session)
    if waiting is None:
        waiting = session.__dict__[TOUCHES] = _Touched()
        waiting.transaction = session.get_nested_transaction() or session.get_transaction()
    waiting[state] = state.obj()


def touch_again(session: Session) -> None:
    """Touch objects that were read again since, and have lost their touch."""
    if not session.is_active:  # a flush has failed: all is rolled back
        return
    with session.no_autoflush:  # the version may have to be read
        for state, obj in (_waiting_touches(session) or {}).items():
            if state.session is session and state.persistent and obj not in session.deleted:
                recall_version(state)
                touch_state(state)


def is_touched(state: State) -> bool:
    """Return whether the session is to touch the object with the running, or the next, flush."""
    session = state.session
    if session is None or TOUCHES not in session.__dict__:
        return False
    return state in (_waiting_touches(session) or ())


class _Roots(dict[State, Any]):
    """Roots that a flush touches for their parts."""

    #: Those touched for parts that the flush before it has written.
    left: Collection[State] = ()


def note_roots(session: Session, roots: Mapping[State, Any], left: Collection[State] = ()) -> None:
    """Record the roots that the beginning flush touches for their rows.

    Each with a changed row of a class without a version, if there is one: only the root's version
    shows that another transaction has changed that row, too.
    """
    if roots or left or ROOTS in session.__dict__:
        session.__dict__[ROOTS] = noted = _Roots(roots)
        noted.left = left


def part_without_version(state: State) -> Any:
    """Return a row of the running flush that only this root's version guards, or ``None``."""
    session = state.session
    if session is None or not session_record(session).flushing:
        return None
    return session.__dict__.get(ROOTS, {}).get(state)


def stands_for_others(state: State, refused: Collection[State], flushed: Iterable[State]) -> bool:
    """Return whether it was touched for rows that were written, though it was ``refused``."""
    session = state.session
    roots = () if session is None else session.__dict__.get(ROOTS, ())
    return state in roots and any(one not in roots and one not in refused for one in flushed)


def states_kept_for_others(session: Session, uow: UOWTransaction) -> list[State]:
    """Return roots that a resolver left as they are stored, though their parts were written."""
    record = session.__dict__.get(RECORD_KEY)
    running = None if record is None else record.flush
    if running is None or running.error is not None:
        return []
    unwritten = [one.state for one in running.misses if one.written is None]
    there = (one.state for one in running.misses if one.written is None and not one.gone)
    roots = session.__dict__.get(ROOTS, _Roots())
    return [
        one for one in there if one in roots.left or stands_for_others(one, unwritten, uow.states)
    ]


def _waiting_touches(session: Session) -> _Touched | None:
    """Return the touches of the running transaction."""
    waiting: _Touched | None = session.__dict__.get(TOUCHES)
    if waiting and waiting.transaction is not None:
        running = session.get_nested_transaction() or session.get_transaction()
        while running is not None and running is not waiting.transaction:
            running = running.parent
        if running is None:
            del session.__dict__[TOUCHES]  # it was rolled back
            return None
    return waiting


def _before_flush(session: Session, uow: Any, objects: Any) -> None:
    touch_again(session)


def _drop_written(session: Session, uow: Any) -> None:
    waiting = session.__dict__.get(TOUCHES)
    if waiting:
        for state in [state for state in waiting if state in uow.states]:
            del waiting[state]
        if not waiting:
            del session.__dict__[TOUCHES]
