"""How a flush writes the rows of a class, and what surrounds it: the session and its transaction.

:func:`run_before_planning` does what SQLAlchemy's flush does before it writes, and
:func:`finish_unwritten` what it does for objects that have nothing to write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, takewhile
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any
from weakref import ref

from sqlalchemy import Connection, Update
from sqlalchemy.orm import (
    Mapper,
    RelationshipDirection,
    Session,
    SessionTransaction,
    UOWTransaction,
)

from optilock._undocumented.mappers import State
from optilock._undocumented.names import find_name

if TYPE_CHECKING:
    from sqlalchemy.util import warn
else:
    warn = find_name("sqlalchemy.util:warn")

MANYTOONE = RelationshipDirection.MANYTOONE


def run_before_planning(
    session: Session,
    uow: UOWTransaction,
    objects: Any,
    step: Callable[[Session, UOWTransaction, Any], None],
) -> None:
    """Call ``step`` after all listeners of ``before_flush``; the flush includes its changes.

    After them SQLAlchemy registers each object with the flush (``register_object``), and only then
    opens its part of the transaction. The objects chosen by then are corrected: those that the step
    changed join, and those that it takes out of ``session.deleted`` are not deleted.
    """
    running = ref(uow)

    def register_object(state: State, isdelete: bool = False, **options: Any) -> bool:
        uow = running()
        assert uow is not None
        delattr(uow, "register_object")
        changed, deleted = set(session.identity_map._modified), set(session._deleted)
        step(session, uow, objects)
        if kept := deleted.difference(session._deleted):
            setattr(uow, "register_object", partial(_register_kept, running, kept))  # noqa: B010
        if not objects:
            for other in {*session.identity_map._modified}.difference(changed, session._deleted):
                uow.register_object(other, isdelete=other.mapper._is_orphan(other))
        return bool(uow.register_object(state, isdelete=isdelete, **options))

    setattr(uow, "register_object", register_object)  # noqa: B010


def _register_kept(
    running: ref[UOWTransaction],
    kept: Collection[State],
    state: State,
    isdelete: bool = False,
    **options: Any,
) -> bool:
    """Register an object that is not to be deleted after all."""
    uow = running()
    assert uow is not None
    if state in kept and isdelete and not options:  # later ones come with options
        if not state.modified:
            return True
        isdelete = False
    return UOWTransaction.register_object(uow, state, isdelete=isdelete, **options)


# -- the parts of a flush that the guard carries out itself ----------------------------------------
#
# The guard reads them in one function (:mod:`optilock._watched.guard.flush`). They are C functions
# and names, because each call of Python in each flush would be paid for.

#: An attribute of a session: a flush runs.
FLUSHING = "_flushing"
#: An attribute of a session: SQLAlchemy warns of changes that listeners of rows make.
WARN_ON_EVENTS = "_warn_on_events"
#: New objects, deleted ones, and whether a flush runs: all false where only stored ones changed.
other_work: Callable[[Session], tuple[Any, ...]] = attrgetter("_new", "_deleted", "_flushing")
#: The changed objects of a session. Like the session's other collections, it is read again each
#: time.
changed_objects: Callable[[Session], Collection[State]] = attrgetter("identity_map._modified")
#: Rules by which a flush deletes an object of the class that its parent has let go.
orphan_rules: Callable[[Mapper[Any]], Collection[Any]] = attrgetter("_delete_orphans")
#: Begin the session's transaction, or return the running one (a savepoint, if one is open).
begin_transaction: Callable[[Session], SessionTransaction] = methodcaller("_autobegin_t")
#: The state of a transaction; one that is not ``ACTIVE`` takes no flush.
state_of_transaction: Callable[[SessionTransaction], Any] = attrgetter("_state")
ACTIVE = find_name("sqlalchemy.orm.session:SessionTransactionState.ACTIVE")
_PREPARED = find_name("sqlalchemy.orm.session:SessionTransactionState.PREPARED")
_COMMITTED = find_name("sqlalchemy.orm.session:SessionTransactionState.COMMITTED")
#: Raise the error of a transaction that takes no flush.
refuse_inactive: Callable[[SessionTransaction], Any] = methodcaller("_begin")
#: Mark objects as clean, given with their ``dict``.
mark_clean: Callable[[Iterable[Any], Any], None] = find_name(
    "sqlalchemy.orm:InstanceState._commit_all_states"
)
#: Record the objects that the transaction has written: its rollback expires them.
register_written: Callable[[Session], Callable[[Iterable[State]], None]] = attrgetter(
    "_register_altered"
)
#: Return the function that gives the connection of a mapper in this flush.
connections_of_flush: Callable[[UOWTransaction], Callable[[Mapper[Any]], Connection]] = attrgetter(
    "transaction.connection"
)
#: The listeners before and after a flush updates a row of the class; empty ones are false.
listeners_of_rows: Callable[[Mapper[Any]], tuple[Any, Any]] = attrgetter(
    "dispatch.before_update", "dispatch.after_update"
)
#: The listener that gets an object, the flush, and the attributes that the flush has filled in.
listeners_of_values: Callable[[Mapper[Any]], Any] = attrgetter(
    "class_manager.dispatch.refresh_flush"
)
#: The function by whose values a flush sorts the rows of a class.
order_of_rows: Callable[[Mapper[Any]], Callable[[State], Any]] = attrgetter(
    "_persistent_sortkey_fn"
)
#: The value by which it sorts classes, where no row of one depends on a row of another.
order_of_class: Callable[[Mapper[Any]], str] = attrgetter("_sort_key")


def is_orphan(mapper: Mapper[Any], states: Iterable[State]) -> bool:
    """Return whether a flush would delete one of these, because its parent has let it go."""
    return any(map(mapper._is_orphan, states))


def end_transaction(transaction: SessionTransaction) -> None:
    """End the transaction, or the savepoint, as an error in a flush does that is being raised."""
    if transaction.is_active:
        transaction._begin().rollback(_capture_exception=True)


def finish_unwritten(
    session: Session, uow: UOWTransaction, others: Collection[State]
) -> list[State]:
    """Let SQLAlchemy finish the objects whose rows were not written; return the written ones."""
    rest = UOWTransaction(session)
    rest.states = {
        state: how for state, how in uow.states.items() if state in others or how != (False, False)
    }
    written = [state for state in uow.states if state not in rest.states]
    rest.finalize_flush_changes()
    return written


def drop_late_changes(session: Session) -> None:
    """Mark objects as clean that were changed while the rows were sent; warn as SQLAlchemy does."""
    modified = session.identity_map._modified
    count = len(modified)
    values = [(state, state.dict) for state in modified]
    mark_clean(values, session.identity_map)
    warn(
        f"Attribute history events accumulated on {count} previously clean instances within"
        " inner-flush event handlers have been reset, and will not result in database updates."
        " Consider using set_committed_value() within inner-flush event handlers to avoid this"
        " warning."
    )


def update_sent_for(mapper: Mapper[Any]) -> tuple[Update, Any] | None:
    """Return the UPDATE by key and version that flushes send for the class, and its cache.

    ``None``: no flush has sent one.
    """
    base: Any = mapper.base_mapper
    statement = base._memoized_values.get(("update", mapper.local_table))
    return None if statement is None else (statement, base._compiled_cache)


def comparison_of(mapper: Mapper[Any], name: str) -> Callable[[Any, Any], bool]:
    """Return the function by which a flush decides whether an attribute has changed."""
    impl: Any = mapper.class_manager[name].impl
    compare: Callable[[Any, Any], bool] = impl.is_equal
    return compare


def followers_of(mapper: Mapper[Any]) -> Collection[Any]:
    """Return the processors that decide, at each flush of the class, whether other rows follow."""
    return mapper._dependency_processors


def columns_others_follow(mapper: Mapper[Any]) -> set[Any]:
    """Return the columns whose changes a flush writes, or may write, into rows of other objects."""
    own = (one for one in mapper.relationships if one.direction is not MANYTOONE)
    others = (one.prop for one in mapper._dependency_processors)
    return {column for one in (*own, *others) for column, _ in one.synchronize_pairs}


# -- sessions --------------------------------------------------------------------------------------

#: The objects of ``session.deleted``, which makes a new set each time; no call of Python.
states_marked_deleted: Callable[[Session], Collection[State]] = attrgetter("_deleted")


def last_deleted_state(session: Session) -> State | None:
    """Return the object that was added last to ``session.deleted``."""
    return next(reversed(session._deleted), None)


def states_deleted_since(session: Session, last: State | None) -> Iterator[State]:
    """Yield the objects added to it after ``last``; all of them, if a flush has taken that away."""
    return takewhile(lambda state: state is not last, reversed(session._deleted))


def mark_deleted(session: Session, state: State, obj: Any) -> None:
    """Put the object back into ``session.deleted``; what it cascades to stays as it is."""
    session._deleted[state] = obj


def unmark_deleted(session: Session, state: State) -> None:
    """Take the object out of ``session.deleted``, and leave the running flush as it is."""
    session._deleted.pop(state, None)


def note_deleted_rows(session: Session, states: Iterable[State]) -> None:
    """Record that a statement deleted the rows of these objects, as ``delete(Model)`` does."""
    session._remove_newly_deleted(list(states))


def stored_states_to_flush(session: Session) -> list[State]:
    """Return its changed and deleted objects. Each call makes a new list."""
    return [*session.identity_map._modified, *session._deleted]


def classes_to_flush(session: Session) -> set[Mapper[Any]]:
    """Return the classes of its new, changed and deleted objects. Each call makes a new set."""
    states = (session._new, session.identity_map._modified, session._deleted)
    return set(map(_mapper_of, chain.from_iterable(states)))


_mapper_of: Callable[[State], Mapper[Any]] = attrgetter("manager.mapper")


def begin_never_again(session: Session, refuse: Callable[..., Any]) -> None:
    """Call ``refuse`` where the session would begin a transaction, and for each added object."""
    session._autobegin_t = refuse  # type: ignore[method-assign]


def is_flushing(session: Session) -> bool:
    """Return whether a flush is running."""
    return bool(session._flushing)


def expire_with_savepoint(session: Session, states: Iterable[State]) -> None:
    """Let the rollback of the running savepoint expire these objects, too."""
    session._register_altered(states)


def listeners_of(session: Session, name: str) -> Iterable[Callable[..., Any]]:
    """Return the functions called for an event of the session, of any origin."""
    listeners: Iterable[Callable[..., Any]] = getattr(session.dispatch, name)
    return listeners


def last_listener(session: Session, name: str) -> Callable[..., Any] | None:
    """Return the listener of the session's event that SQLAlchemy calls after all others."""
    last = deque(listeners_of(session, name), maxlen=1)
    return last[0] if last else None


# -- transactions ----------------------------------------------------------------------------------

#: ``get_nested_transaction()`` of a session or a connection, and ``get_transaction()`` of a
#: connection, without a call of Python.
nested_transaction: Callable[[Any], Any] = attrgetter("_nested_transaction")
transaction_of: Callable[[Connection], Any] = attrgetter("_transaction")


def states_inserted_by(session: Session | None) -> Iterator[State]:
    """Yield the objects whose rows the running transaction has inserted."""
    running = session and (session.get_nested_transaction() or session.get_transaction())
    while running:
        yield from list(running._new)
        running = running.parent


def states_inserted_in(transaction: SessionTransaction) -> Collection[State]:
    """Return the objects whose rows the transaction, or the savepoint, has inserted."""
    return transaction._new


def states_deleted_in(transaction: SessionTransaction) -> Collection[State]:
    """Return the objects whose rows it has deleted."""
    return transaction._deleted


def states_expired_with(savepoint: SessionTransaction) -> Collection[State]:
    """Return the objects that its rollback expires, except changed and unflushed ones."""
    return savepoint._dirty


def was_committing(transaction: SessionTransaction) -> bool:
    """Return whether the failed transaction reached COMMIT. A flush that fails ends it before."""
    return transaction._state is _PREPARED


def was_committed(transaction: SessionTransaction) -> bool:
    """Return whether COMMIT is over. A listener of ``after_commit`` may have failed since."""
    return transaction._state is _COMMITTED


def is_opened_by_session(transaction: SessionTransaction, connection: Connection) -> bool:
    """Return whether the session opened the connection, so that its COMMIT is the connection's."""
    _, _, commits, opened = transaction._connections[connection]
    return bool(commits and opened)


HeldConnections = Mapping[Any, tuple[Connection, Any, bool, bool]]


def leave_connections(transaction: SessionTransaction) -> HeldConnections:
    """Take its connections out of a session's transaction, and return them."""
    held, transaction._connections = transaction._connections, {}
    return held


def take_connections(transaction: SessionTransaction, held: HeldConnections) -> None:
    """Let another session's transaction, which has none yet, go on with them."""
    transaction._connections.update(held)
