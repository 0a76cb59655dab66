"""The one order of all steps around a flush and a transaction.

*Before a flush*, in every session:

1. *beside*: a session of a scope that a unit replaces notes the changes inside the unit
   (:mod:`optilock.unit.sessions`), before a step below changes more;
2. *touches*: rows that :func:`~optilock.touch` was called for are touched again where a reading has
   dropped it (:mod:`optilock._watched.rows.touch`);
3. *roots*: the versions of aggregates' roots move for their children
   (:mod:`optilock._watched.aggregates`);
4. *scopes*: rows whose stored scopes are unknown to the session are locked and read
   (:mod:`optilock._watched.scopes`);
5. *request*: rows written for a request whose condition was not compared
   (:mod:`optilock._watched.statements.requests`);
6. *conditions*: ``require_conditions(session)`` requires one for each row
   (:mod:`optilock.unit.conditions`);
7. *guard*: a watched session checks all that the flush will write, with the changes of the steps
   above: promises, rows that were never read, deletes (:mod:`optilock._watched.guard`).

*After it*, ahead of all listeners of the application (they see settled rows): *guard* sends the
rows that it keeps back and settles those that missed. Then *scopes* notes which versions of scopes
the written rows move, and *roots* notes roots of rows that were not stored as they had been read.
When the objects are clean: *touches* that were written are forgotten, and *roots* touches those
that the flush has not: a watched session flushes them at once.

*Before COMMIT*, or the release of a savepoint: *held*, which refuses to commit
writes under a lease that is lost; *touches*, which makes rows dirty again; *unsent*, which flushes
rows written for a request whose condition was not compared; and then
*promises*, which flushes and looks at the rows (:mod:`optilock._watched.guard.promises`); and last
*moves*, which flushes, and moves and checks versions of scopes.

*When a transaction begins* on a connection, *after COMMIT*, *after a rollback* and *when it ends*,
and *when objects come back* into a session: *guard*. After COMMIT and a rollback, *written*
publishes or drops the rows of :class:`optilock.events.Written`. *When a row is loaded*: *reads*, in
the units that verify what they read.

A step is registered with its first use; its place does not depend on when that is. A step runs for
sessions that have its key in ``__dict__``, or for which its predicate is true. Steps for all
sessions (``touch`` and aggregates work in plain sessions) listen at ``Session``. Steps for watched
sessions listen at the topmost class that is watched, and *reads* at the one session. So each is
called once.

The steps *before a flush* come after all listeners of the application, whenever and wherever those
were registered (for all sessions, a class, one session; with ``insert=True``): roots move for
changes of the last listener, and these are checked like all others. Where a listener would be
called after our own, the steps wait until SQLAlchemy begins to plan the flush; the
statements that such a listener sends are those of a flush that runs. At the other events listeners
take their place by when they are registered, as everywhere in SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.orm import Session

from optilock._undocumented.flushes import last_listener, run_before_planning

Step = Callable[..., Any]
#: The key of a step, or its predicate of a session.
Whose = str | Callable[[Session], bool]

#: The steps of each event of a session, in their order.
ORDER: Mapping[str, tuple[str, ...]] = {
    "before_flush": ("beside", "touches", "roots", "scopes", "request", "conditions", "guard"),
    "after_flush": ("guard", "scopes", "roots"),
    "after_flush_postexec": ("touches", "roots"),
    "before_commit": ("held", "touches", "unsent", "promises", "moves"),
    "after_begin": ("guard",),
    "after_commit": ("guard", "written"),
    "after_rollback": ("guard",),
    "after_soft_rollback": ("scopes", "written"),
    "after_transaction_end": ("guard",),
    "detached_to_persistent": ("guard",),
    "deleted_to_persistent": ("guard",),
    "persistent_to_transient": ("guard",),
    "loaded_as_persistent": ("reads",),
}
#: Ahead of what the application has registered already.
_FIRST = frozenset({"after_flush"})

_known: dict[str, dict[str, tuple[Whose, Step]]] = {name: {} for name in ORDER}
#: The same, in the order of the list.
_in_order: dict[str, tuple[tuple[Whose, Step], ...]] = dict.fromkeys(ORDER, ())
#: Steps that do not wait for listeners of the application.
_begin: list[tuple[Whose, Step]] = []
#: Names of registered steps; two threads may need their first one at the same time.
_there: set[str] = set()
#: The keys and predicates of steps around a flush that are not the guard's.
_beside_guard: set[Whose] = set()
_changing = Lock()
_of_classes: dict[str, Step] = {}
_classes: WeakSet[type[Session]] = WeakSet()


def add_step(name: str, whose: Whose, *, begin: Step | None = None, **steps: Step) -> None:
    """Register ``steps`` (by event) at their places, for the sessions that need them.

    These have ``whose`` in their ``__dict__``, or ``whose`` is true of them. ``begin`` is called
    ahead of listeners that the steps before a flush wait for.
    """
    if name in _there:
        return
    with _changing:
        if begin is not None:
            _begin.append((whose, begin))
        for of_event, step in steps.items():
            places, known = ORDER[of_event], _known[of_event]
            if name not in places:
                raise LookupError(f"{name!r} is not in the order of {of_event}")
            known[name] = whose, step
            if name != "guard" and of_event in _OF_FLUSHES:
                _beside_guard.add(whose)
            _in_order[of_event] = tuple(known[one] for one in places if one in known)
            if not event.contains(Session, of_event, _LISTENERS[of_event]):
                event.listen(Session, of_event, _LISTENERS[of_event])
        _there.add(name)  # last: another thread that finds it here need not wait


def listen_to_class(cls: type[Session], **steps: Step) -> None:
    """Register the guard's listeners, by event, for the sessions of ``cls``, once each."""
    with _changing:
        _of_classes.update(steps)
        if any(issubclass(cls, above) for above in _classes):
            return
        for below in [one for one in _classes if issubclass(one, cls)]:
            _classes.discard(below)
            for name, step in _of_classes.items():
                if event.contains(below, name, step):
                    event.remove(below, name, step)
        _classes.add(cls)
        for name, step in _of_classes.items():
            event.listen(cls, name, step, propagate=True, insert=name in _FIRST)


#: What a flush calls, in its order.
_OF_FLUSHES = ("before_flush", "after_flush", "after_flush_postexec")


def only_guard_listens(session: Session) -> bool:
    """Return whether only the guard listens to the session's flushes and their transactions."""
    events = session.dispatch
    return (
        not events.after_transaction_create
        and len(events.after_transaction_end) == 1
        and len(events.before_flush) == 1
        and len(events.after_flush) == 1 + bool(_in_order["after_flush"])
        and len(events.after_flush_postexec) == bool(_in_order["after_flush_postexec"])
        # A copy: another thread may need its first step now.
        and not any(_is_for(session, whose) for whose in tuple(_beside_guard))
    )


def listen_in(session: Session, **steps: Step) -> None:
    """Register listeners for one session, where others would pay something for each row."""
    for name, step in steps.items():
        event.listen(session, name, step)


def listen_alone(session: Session, steps: Mapping[str, Step]) -> None:
    """Register all steps for one session, which calls no listeners of its class."""
    for name, step in _LISTENERS.items():
        if _in_order[name]:
            event.listen(session, name, step)
    listen_in(session, **steps)


def _is_for(session: Session, whose: Whose) -> bool:
    return whose in session.__dict__ if isinstance(whose, str) else whose(session)


def _before_flush(session: Session | None = None, uow: Any = None, objects: Any = None) -> None:
    """Take the steps before a flush that has something to do; without a session it is no flush."""
    if session is None:
        return
    if last_listener(session, "before_flush") is _before_flush:
        _take_steps(session, uow, objects)
    else:
        for whose, begin in _begin:
            if _is_for(session, whose):
                begin(session, uow)
        run_before_planning(session, uow, objects, _take_steps)


def _take_steps(session: Session, uow: Any, objects: Any) -> None:
    for whose, step in _in_order["before_flush"]:
        if _is_for(session, whose):
            step(session, uow, objects)


def _after_flush(session: Session, uow: Any) -> None:
    for whose, step in _in_order["after_flush"]:
        if _is_for(session, whose):
            step(session, uow)


def _after_flush_postexec(session: Session, uow: Any) -> None:
    for whose, step in _in_order["after_flush_postexec"]:
        if _is_for(session, whose):
            step(session, uow)


def _after_soft_rollback(session: Session, ended: Any) -> None:
    for whose, step in _in_order["after_soft_rollback"]:
        if _is_for(session, whose):
            step(session, ended)


def _after_commit(session: Session) -> None:
    for whose, step in _in_order["after_commit"]:
        if _is_for(session, whose):
            step(session)


def _before_commit(session: Session) -> None:
    for whose, step in _in_order["before_commit"]:
        if _is_for(session, whose):
            step(session)


_LISTENERS: Mapping[str, Step] = {
    "before_flush": _before_flush,
    "after_flush": _after_flush,
    "after_flush_postexec": _after_flush_postexec,
    "before_commit": _before_commit,
    "after_commit": _after_commit,
    "after_soft_rollback": _after_soft_rollback,
}
