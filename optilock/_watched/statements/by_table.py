"""``update(table)`` and ``delete(table)`` of a watched session, and the objects of their rows.

::

    session.execute(Account.__table__.update().where(...).values(balance=0))
    session.connection().execute(...)      # the same, also in a listener during a flush

Such a statement moves the version of every row that it changes, and does not update objects. So the
rows of the session's objects are locked and read before it, and read again after it. An object that
was as new as its row gets the version and the values that the statement has made. An older object
is not changed, and conflicts later. Where the session holds no object of these rows nothing is
read. For a statement that names one row by its key, only this row is read.

``update(Model)`` and ``delete(Model)`` that a listener sends while the session is flushing are
followed in the same way, after the rows held by the flush were sent (:func:`send_in_flush`).
SQLAlchemy would update objects that the flush has written and not yet marked clean, or has not yet
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

from sqlalchemy import Connection, Delete, Update
from sqlalchemy.orm import NO_VALUE, Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import Identity, Place, State, facts
from optilock._mapping.original_values import (
    class_comparing,
    compared_names,
    remembered_values,
    value_as_read,
    values_moved,
)
from optilock._mapping.tables import owner_of
from optilock._undocumented.flushes import expire_with_savepoint, note_deleted_rows
from optilock._watched.rows.entries import equal_to_stored
from optilock._watched.rows.seen import follow_move, undo_of_move, version_seen
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.session.record import SessionRecord, session_record
from optilock._watched.session.values import Promise
from optilock._watched.statements.call import (
    Call,
    mark_statement,
    rows_found,
    single_key_of,
)
from optilock._watched.statements.demand_checks import add_demands_for_table
from optilock._watched.statements.rollback_effects import (
    keep_promises,
    note_statement,
    objects_of,
    promised_rows,
)
from optilock._watched.statements.version import keep_version_of_table
from optilock.errors import ConfigurationError


class Running(Protocol):
    """The running flush, as far as a statement sent during it needs it."""

    uow: Any

    def skip(self, states: Iterable[State]) -> None:
        """Write nothing for these objects any more."""

    def find(self, mapper: Mapper[Any], identity: Identity) -> State | None:
        """Return the object of this flush with that key."""

    def states_of(self, root: Mapper[Any]) -> Mapping[Identity, State]:
        """Return the objects of this flush by the keys of their rows, of one hierarchy."""

    def is_delete(self, state: State) -> bool:
        """Return whether it deletes the object."""


def update_table(call: Call) -> Any:
    """Send ``update(table)`` or ``delete(table)``; in a flush, the connection handles it."""
    session, flushing = call.session, session_record(call.session).flush is not None
    if flushing:
        return call.send()
    demands = session_record(session).demands
    if demands is not None:
        given = call.statement, call.params
        call = call.with_statement(
            add_demands_for_table(session, call.connection(), *given, demands)
        )
    call = call.with_statement(keep_version_of_table(session, call.statement, call.params))
    if _mapper_of(call.statement) is None:
        with mark_statement(session):
            return call.send()
    connection = call.connection()
    session_record(session).sends_on(connection)
    with mark_statement(session):
        return follow_statement(session, connection, call.statement, call.params, call.send)


def follow_statement(
    session: Session,
    connection: Connection,
    statement: Update | Delete,
    params: Any,
    send: Callable[[], Any],
    flush: Running | None = None,
) -> Any:
    """Send the statement, and bring the session's objects of its rows up to date.

    ``flush`` is the running flush, if the statement is sent during one.
    """
    mapper = _mapper_of(statement)
    if mapper is None:
        return send()
    identity = single_key_of(mapper, statement, params)
    promised = promised_rows(session, mapper)
    held = _objects_concerned(session, mapper, identity, flush)
    moves = isinstance(statement, Update)
    if promised or (moves and identity is None):
        note_statement(session, mapper)
    elif moves and identity is not None and not held:
        session_record(session).move((facts(mapper).root, identity), None)
    wanted = {*held, *promised} if identity is None else {identity} & {*held, *promised}
    found = _lock_found(connection, mapper, statement, params, wanted)
    _keep_promises(session, mapper, promised, found)
    as_new = _objects_as_new(session, held, found)
    result = send()
    if as_new and moves:
        _follow(session, connection, as_new, found)
    elif as_new:
        _follow_delete(session, connection, as_new, flush)
    return result


def _keep_promises(
    session: Session,
    mapper: Mapper[Any],
    promised: Mapping[Any, Promise],
    found: Mapping[Identity, Values],
) -> None:
    token = facts(mapper).token
    if token and promised:
        keep_promises(session, promised, {key: row[token] for key, row in found.items()})


def _objects_as_new(
    session: Session, held: Mapping[Identity, State], found: Mapping[Identity, Values]
) -> dict[Identity, State]:
    """Return the objects that are as new as their rows."""
    record = session_record(session)
    return {
        key: held[key]
        for key, row in found.items()
        if key in held and _is_as_new(record, held[key], row)
    }


def update_compared_rows(call: Call, mapper: Mapper[Any]) -> Any:
    """Send ``update(Model)`` of compared rows, and follow it with objects that are expired.

    SQLAlchemy does not update those. Their remembered values become the values that the statement
    has stored, if they were stored before.
    """
    session = call.session
    if call.chosen.get("autoflush", session.autoflush):
        session.flush()
    connection = call.connection(mapper)
    held = {
        key: state
        for key, state in _objects_concerned(session, mapper, None, None).items()
        if remembered_values(state) and state.mapper.isa(mapper)
    }
    found = _lock_found(connection, mapper, call.statement, call.params, held)
    as_new = list(_objects_as_new(session, held, found))
    result = call.send()
    after = read_stored(connection, mapper, as_new, lock=False) if as_new else {}
    for key, row in after.items():
        values_moved(held[key], row)
    return result


def _mapper_of(statement: Update | Delete) -> Mapper[Any] | None:
    """Return the class whose rows are in the table, if their versions, or values, are compared."""
    return owner_of(statement.table) or class_comparing(statement.table)


# -- before it is sent -----------------------------------------------------------------------------


def _objects_concerned(
    session: Session, mapper: Mapper[Any], identity: Identity | None, flush: Running | None
) -> dict[Identity, State]:
    """Return the objects of the session that the statement may concern, by their keys."""
    if identity is not None:
        obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
        state = None if obj is None else instance_state(obj)
        if state is None and flush is not None:
            state = flush.find(mapper, identity)
        return {} if state is None else {identity: state}
    held = objects_of(session, mapper)
    if flush is not None:
        held |= flush.states_of(facts(mapper).root)
    return held


def _lock_found(
    connection: Connection,
    mapper: Mapper[Any],
    statement: Update | Delete,
    params: Any,
    wanted: Iterable[Identity],
) -> dict[Identity, Values]:
    """Lock the rows that it will find, and return the values that show how new an object is."""
    if not wanted:
        return {}
    token, columns = facts(mapper).token, facts(mapper).columns
    names = compared_names(mapper, changed=(), deleting=True)
    judged = {name: columns[name] for name in (*([token] if token else ()), *names)}
    table: Any = statement.table
    keys, looks = list(mapper.primary_key), list(judged.values())
    found = rows_found(connection, statement, params, table, keys, looks, wanted)
    return {key: dict(zip(judged, row, strict=True)) for key, row in found.items()}


def _is_as_new(record: SessionRecord, state: State, row: Values) -> bool:
    class_facts = facts(state.mapper)
    token = class_facts.token
    if token and not _holds_version(record, state, token, row[token]):
        return False
    return not class_facts.compares or all(
        class_facts.same(name, value_as_read(state, name), value)
        for name, value in row.items()
        if name != token
    )


def _holds_version(record: SessionRecord, state: State, token: str, version: Any) -> bool:
    """Return whether the object was read in that version, or this transaction has written it."""
    if version_seen(state, token) == version:
        return True
    return (  # SQLAlchemy has written it, and not yet marked the object clean
        token in state.committed_state
        and state.dict.get(token) == version
        and record.has_flushed(_place(state))
    )


def _place(state: State) -> Place:
    key = state.key or state.mapper.identity_key_from_instance(state.obj())
    return facts(state.mapper).root, tuple(key[1])


# -- afterwards ------------------------------------------------------------------------------------


def _follow(
    session: Session,
    connection: Connection,
    states: Mapping[Identity, State],
    before: Mapping[Identity, Values],
) -> None:
    """Give the objects the values that are stored now."""
    by_mapper: dict[Mapper[Any], dict[Identity, State]] = {}
    for key, state in states.items():
        by_mapper.setdefault(state.mapper, {})[key] = state
    for mapper, some in by_mapper.items():
        token = facts(mapper).token
        loaded = {n for n in facts(mapper).columns if any(n in s.dict for s in some.values())}
        names = tuple(loaded | ({token} if token else set()))
        after = read_stored(connection, mapper, list(some), only=names, lock=False)
        for key, state in some.items():
            if key in after:
                _take_values(session_record(session), state, before[key], after[key])
    expire_with_savepoint(session, [state for state in states.values() if state.key])


def _take_values(record: SessionRecord, state: State, before: Values, after: Values) -> None:
    class_facts = facts(state.mapper)
    token = class_facts.token
    if token and before[token] != after[token]:
        back = undo_of_move(state, token, before[token], after[token])
        record.move(_place(state), before[token], back)
        _take_version(state, token, before[token], after[token])
    values = {
        name: value
        for name, value in after.items()
        if name != token
        and name in state.dict
        and name not in state.committed_state
        and not class_facts.same(name, state.dict[name], value)
    }
    if values:
        values_moved(state, values)
        equal_to_stored(state, values)


def _take_version(state: State, token: str, before: Any, after: Any) -> None:
    if state.committed_state.get(token, NO_VALUE) == before:  # touched, and not yet written
        state.committed_state[token] = after
        following: Any = state.mapper.version_id_generator
        if following:
            state.dict[token] = following(after)
    elif token in state.committed_state:  # written, and not yet marked clean
        state.dict[token] = after
    else:
        follow_move(state, token, before, after)


def _follow_delete(
    session: Session,
    connection: Connection,
    states: Mapping[Identity, State],
    flush: Running | None,
) -> None:
    """Forget objects whose rows are gone: nothing is left to write, or to delete."""
    mapper = facts(next(iter(states.values())).mapper).root
    key = (facts(mapper).keys[0],)
    left = read_stored(connection, mapper, list(states), only=key, lock=False)
    gone = [state for identity, state in states.items() if identity not in left]
    if flush is None:
        note_deleted_rows(session, gone)
        return
    parts = flush.uow.states if flush.uow is not None else {}
    # an edit of it is not dropped without a word: its UPDATE will miss the row
    note_deleted_rows(
        session, [state for state in gone if state not in parts and not state.modified]
    )
    flush.skip(state for state in gone if flush.is_delete(state))


# -- statements of a class, in a flush -------------------------------------------------------------


def send_in_flush(call: Call, mapper: Mapper[Any]) -> Any:
    """Send ``update(Model)`` or ``delete(Model)``, and let the objects follow it."""
    chosen = {**(call.options.get("execution_options") or {}), "synchronize_session": False}
    options = {**call.options, "execution_options": chosen}
    connection = call.connection(mapper)

    def native(statement: Any, params: Any) -> Any:
        return call.original(call.session, statement, params, **options)

    with mark_statement(call.session, checked=False):  # but by what is called now
        record = session_record(call.session)
        record.run_in_flush()
        flush = record.flush
        return flush.by_hand(flush, connection, native, call.statement, call.params, {})


def refuse_apart_in_flush(mapper: Mapper[Any]) -> NoReturn:
    """Refuse an UPDATE of one table that has to move versions in another one.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        f"The UPDATE of {mapper.class_.__name__} is sent by a listener while the session is"
        " flushing, and the versions of its rows are in another table than the columns: objects"
        " that the flush is writing would not know of it. Change the objects in a before_flush"
        " listener, or send the statement after the flush. Nothing was sent."
    )


def refuse_by_key_in_flush(mapper: Mapper[Any]) -> NoReturn:
    """Refuse ``update(Model)`` with rows by key, which SQLAlchemy sends as a flush sends its own.

    Raises:
        ConfigurationError: always.
    """
    name = mapper.class_.__name__
    raise ConfigurationError(
        f"The UPDATE of {name} by primary key is sent by a listener while the session is flushing,"
        f" so its rows cannot be distinguished from the flush's. Write update({name}).where(...),"
        " or change the objects in a before_flush listener. Nothing was sent."
    )
