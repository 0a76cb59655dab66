"""How a flush writes the rows of a class, and what surrounds it: the session and its transaction.

:func:`carry_out` and :func:`before_planning` do what SQLAlchemy's flush does before and after it
writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, takewhile
from operator import attrgetter
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Update
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    RelationshipDirection,
    Session,
    SessionTransaction,
    UOWTransaction,
)
from sqlalchemy.orm.session import SessionTransactionState
from sqlalchemy.util import warn

from optilock.undocumented.mappers import State

MANYTOONE = RelationshipDirection.MANYTOONE


def changed_alone(session: Session) -> Collection[State] | None:
    """The objects to flush, if they all are stored and changed; ``None`` if there are others."""
    if session._new or session._deleted or session._flushing:
        return None
    states: Collection[State] = session.identity_map._modified
    return states


def before_planning(
    session: Session,
    uow: UOWTransaction,
    objects: Any,
    step: Callable[[Session, UOWTransaction, Any], None],
) -> None:
    """Take a ``step`` when all listeners of ``before_flush`` were called; its changes are flushed.

    After them SQLAlchemy hands each object over to the flush (``register_object``), and only then
    opens its part of the transaction. What has been chosen by then is corrected: objects that the
    step has changed join, and those that it takes out of ``session.deleted`` are not deleted.
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
    """Hand an object over that is not to be deleted after all."""
    uow = running()
    assert uow is not None
    if state in kept and isdelete and not options:  # later ones come with options
        if not state.modified:
            return True
        isdelete = False
    return UOWTransaction.register_object(uow, state, isdelete=isdelete, **options)


def has_orphans(mapper: Mapper[Any], states: Collection[State]) -> bool:
    """Would a flush delete one of these, because its parent has let it go?"""
    return bool(mapper._delete_orphans) and any(map(mapper._is_orphan, states))


def carry_out(
    session: Session,
    by_mapper: Mapping[Mapper[Any], Collection[State]],
    before: Callable[[Session, UOWTransaction, None], None],
    write: Callable[[UOWTransaction], None],
    after: Callable[[Session, UOWTransaction], Collection[State]],
) -> None:
    """Flush changed objects as ``Session.flush()`` does, without its plan and its events.

    ``after`` says which of them were not just written. An error ends the transaction, or the
    savepoint, as an error in the part of it that SQLAlchemy opens for a flush does.
    """
    session._flushing = True
    try:
        uow = UOWTransaction(session)
        before(session, uow, None)
        for mapper, states in by_mapper.items():
            uow.mappers[mapper].update(states)
            uow.states.update(dict.fromkeys(states, (False, False)))
        uow.transaction = transaction = session._autobegin_t()
        if transaction._state is not SessionTransactionState.ACTIVE:
            transaction._begin()  # raises, and says why
        try:
            session._warn_on_events = True
            try:
                write(uow)
            finally:
                session._warn_on_events = False
            _finish(session, uow, after(session, uow))
        except BaseException:
            _end(transaction)
            raise
    finally:
        session._flushing = False


def give_up(session: Session) -> None:
    """End the transaction, or the savepoint, as an error in a flush does that is being raised."""
    _end(session._autobegin_t())


def _end(transaction: SessionTransaction) -> None:
    if transaction.is_active:
        transaction._begin().rollback(_capture_exception=True)


def _finish(session: Session, uow: UOWTransaction, others: Collection[State]) -> None:
    """The objects are clean, and the transaction knows which were written."""
    written: Collection[State] = uow.states
    if others:
        rest = UOWTransaction(session)
        rest.states = {
            state: how
            for state, how in uow.states.items()
            if state in others or how != (False, False)
        }
        written = [state for state in uow.states if state not in rest.states]
        rest.finalize_flush_changes()
    values = [(state, state.dict) for state in written]
    InstanceState._commit_all_states(values, session.identity_map)
    session._register_altered(written)
    if session.identity_map._modified:
        _take_back_more(session)


def _take_back_more(session: Session) -> None:
    """What was changed while the rows were sent is not written, and SQLAlchemy says so."""
    modified = session.identity_map._modified
    count = len(modified)
    values = [(state, state.dict) for state in modified]
    InstanceState._commit_all_states(values, session.identity_map)
    warn(
        f"Attribute history events accumulated on {count} previously clean instances within"
        " inner-flush event handlers have been reset, and will not result in database updates."
        " Consider using set_committed_value() within inner-flush event handlers to avoid this"
        " warning."
    )


def update_sent_for(mapper: Mapper[Any]) -> tuple[Update, Any] | None:
    """The UPDATE by key and version that flushes send for the class, and the cache it is kept in.

    ``None``: no flush has sent one.
    """
    base: Any = mapper.base_mapper
    statement = base._memoized_values.get(("update", mapper.local_table))
    return None if statement is None else (statement, base._compiled_cache)


def comparison_of(mapper: Mapper[Any], name: str) -> Callable[[Any, Any], bool]:
    """What a flush asks whether the value of an attribute has changed."""
    impl: Any = mapper.class_manager[name].impl
    compare: Callable[[Any, Any], bool] = impl.is_equal
    return compare


def followers_of(mapper: Mapper[Any]) -> Collection[Any]:
    """What looks at each flush of the class whether rows of others must follow."""
    return mapper._dependency_processors


def columns_others_follow(mapper: Mapper[Any]) -> set[Any]:
    """Columns whose changes a flush writes into rows of other objects, too, or may have to."""
    own = (one for one in mapper.relationships if one.direction is not MANYTOONE)
    others = (one.prop for one in mapper._dependency_processors)
    return {column for one in (*own, *others) for column, _ in one.synchronize_pairs}


def listeners_of_rows(mapper: Mapper[Any]) -> tuple[Any, Any]:
    """What is called before and after a flush updates a row of the class; empty ones are false."""
    events = mapper.dispatch
    return events.before_update, events.after_update


def listeners_of_values(mapper: Mapper[Any]) -> Any:
    """What is called with an object, the flush, and the attributes that the flush has filled in."""
    return mapper.class_manager.dispatch.refresh_flush


def order_of_rows(mapper: Mapper[Any]) -> Callable[[State], Any]:
    """By what a flush sorts the rows of a class."""
    order: Callable[[State], Any] = mapper._persistent_sortkey_fn
    return order


#: By what it sorts classes, where no row of one depends on a row of another.
order_of_class: Callable[[Mapper[Any]], str] = attrgetter("_sort_key")


def connection_of_flush(uow: UOWTransaction, mapper: Mapper[Any]) -> Connection:
    """The connection on which a flush writes the rows of the class."""
    connection: Connection = uow.transaction.connection(mapper)
    return connection


# -- sessions --------------------------------------------------------------------------------------

#: The objects of ``session.deleted``, which makes a new set each time; no call of Python.
marked_deleted: Callable[[Session], Collection[State]] = attrgetter("_deleted")


def last_deleted(session: Session) -> State | None:
    """The object that was added last to ``session.deleted``."""
    return next(reversed(session._deleted), None)


def deleted_since(session: Session, last: State | None) -> Iterator[State]:
    """Those that were added to it after ``last``; all of them, if a flush has taken that away."""
    return takewhile(lambda state: state is not last, reversed(session._deleted))


def mark_deleted(session: Session, state: State, obj: Any) -> None:
    """Put the object back into ``session.deleted``; what it cascades to stays as it is."""
    session._deleted[state] = obj


def unmark_deleted(session: Session, state: State) -> None:
    """Take the object out of ``session.deleted``, and leave the running flush as it is."""
    session._deleted.pop(state, None)


def now_deleted(session: Session, states: Iterable[State]) -> None:
    """A statement has deleted the rows of these objects, as ``delete(Model)`` does."""
    session._remove_newly_deleted(list(states))


def stored_to_flush(session: Session) -> list[State]:
    """Its changed and deleted objects, of which each list is made anew."""
    return [*session.identity_map._modified, *session._deleted]


def classes_to_flush(session: Session) -> set[Mapper[Any]]:
    """The classes of its new, changed and deleted objects, of which each list is made anew."""
    states = (session._new, session.identity_map._modified, session._deleted)
    return set(map(_mapper_of, chain.from_iterable(states)))


_mapper_of: Callable[[State], Mapper[Any]] = attrgetter("manager.mapper")


def is_flushing(session: Session) -> bool:
    """Does a flush run?"""
    return bool(session._flushing)


def expire_with_savepoint(session: Session, states: Iterable[State]) -> None:
    """Let the rollback of the running savepoint expire these objects, too."""
    session._register_altered(states)


def listeners_of(session: Session, name: str) -> Iterable[Callable[..., Any]]:
    """What is called for an event of the session, whoever registered it."""
    listeners: Iterable[Callable[..., Any]] = getattr(session.dispatch, name)
    return listeners


def called_last(session: Session, name: str) -> Callable[..., Any] | None:
    """The listener of the session's event that SQLAlchemy calls after all others."""
    last = deque(listeners_of(session, name), maxlen=1)
    return last[0] if last else None


# -- transactions ----------------------------------------------------------------------------------

#: ``get_nested_transaction()`` of a session or a connection, and ``get_transaction()`` of a
#: connection, without a call of Python.
nested_transaction: Callable[[Any], Any] = attrgetter("_nested_transaction")
transaction_of: Callable[[Connection], Any] = attrgetter("_transaction")


def inserted_by(session: Session | None) -> Iterator[State]:
    """The objects whose rows the running transaction has inserted."""
    running = session and (session.get_nested_transaction() or session.get_transaction())
    while running:
        yield from list(running._new)
        running = running.parent


def inserted_in(transaction: SessionTransaction) -> Collection[State]:
    """The objects whose rows the transaction, or the savepoint, has inserted."""
    return transaction._new


def deleted_in(transaction: SessionTransaction) -> Collection[State]:
    """The objects whose rows it has deleted."""
    return transaction._deleted


def expired_with(savepoint: SessionTransaction) -> Collection[State]:
    """The objects that its rollback expires, beside those that are changed and not flushed."""
    return savepoint._dirty


def was_committing(transaction: SessionTransaction) -> bool:
    """Did the transaction, which failed, get to COMMIT? A flush that fails ends it before."""
    return transaction._state is SessionTransactionState.PREPARED


def was_committed(transaction: SessionTransaction) -> bool:
    """Is COMMIT over, though a listener of ``after_commit`` may have failed since?"""
    return transaction._state is SessionTransactionState.COMMITTED


def opened_by(transaction: SessionTransaction, connection: Connection) -> bool:
    """Has the session itself opened the connection, so that its COMMIT is the connection's?"""
    _, _, commits, opened = transaction._connections[connection]
    return bool(commits and opened)


Held = Mapping[Any, tuple[Connection, Any, bool, bool]]


def leave_connections(transaction: SessionTransaction) -> Held:
    """Take its connections out of a session's transaction, which ends without them."""
    held, transaction._connections = transaction._connections, {}
    return held


def take_connections(transaction: SessionTransaction, held: Held) -> None:
    """Let another session's transaction, which has none yet, go on with them."""
    transaction._connections.update(held)
