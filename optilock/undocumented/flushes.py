"""How a flush writes the rows of a class: its statement, its order, its listeners.

And what it does before and after that (:func:`carry_out`, :func:`before_planning`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
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

from optilock.undocumented.objects import State

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
