"""``update(table)`` and ``delete(table)`` of a watched session: its objects know of them.

::

    session.execute(Account.__table__.update().where(...).values(balance=0))
    session.connection().execute(...)      # the same, also in a listener during a flush

Such a statement moves the version of every row that it changes, and knows nothing of objects. The
rows of objects that the session holds are locked and looked at before it, and read after it: an
object that was as new as its row gets the version and the values that the statement has made. One
that is older keeps what it has, and goes on to conflict. Where the session holds no object of these
rows nothing is read. A statement that names one row by its key looks at that row alone, and at no
other object.

``update(Model)`` and ``delete(Model)`` that a listener sends while the session is flushing are
followed in the same way, after what the flush holds was sent (:func:`in_flush`): SQLAlchemy would
bring objects up to date that the flush has written and not yet marked clean, or is yet to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

from sqlalchemy import Connection, Delete, Update
from sqlalchemy.orm import NO_VALUE, Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.errors import ConfigurationError
from optilock.mapped import Identity, Place, State, facts
from optilock.mapping.compared import (
    as_read,
    compared_names,
    comparing,
    remembered_values,
    values_moved,
)
from optilock.mapping.tables import owner_of
from optilock.undocumented.flushes import expire_with_savepoint, now_deleted
from optilock.watched.rows.entries import equal_to_stored
from optilock.watched.rows.seen import moved_back, moved_by_us, version_seen
from optilock.watched.rows.stored import Values, read_stored
from optilock.watched.session.watched import Watched, watched
from optilock.watched.statements.call import Call, key_named, rows_found, stating
from optilock.watched.statements.demand_checks import table_under_demands
from optilock.watched.statements.rollback_effects import (
    keep_promises,
    note,
    objects_of,
    promised_rows,
)
from optilock.watched.statements.version import unmoved_of_table


class Running(Protocol):
    """The flush that is running, as far as a statement that is sent meanwhile asks it."""

    uow: Any
    #: Objects that nothing is to be written for any more.
    skipped: frozenset[State]

    def find(self, mapper: Mapper[Any], identity: Identity) -> State | None:
        """The object of this flush with that key."""

    def states(self) -> Mapping[Any, State]:
        """The objects of this flush by their rows."""

    def is_delete(self, state: State) -> bool:
        """Does it delete the object?"""


def update_table(call: Call) -> Any:
    """``update(table)`` or ``delete(table)``; in a flush it is seen to where it is sent."""
    session, flushing = call.session, watched(call.session).flush is not None
    if flushing:
        return call.send()
    demands = watched(session).demands
    if demands is not None:
        given = call.statement, call.params
        call = call.with_statement(table_under_demands(session, call.connection(), *given, demands))
    call = call.with_statement(unmoved_of_table(session, call.statement, call.params))
    if _mapper_of(call.statement) is None:
        with stating(session):
            return call.send()
    connection = call.connection()
    watched(session).sends_on(connection)
    with stating(session):
        return by_table(session, connection, call.statement, call.params, call.send)


def by_table(
    session: Session,
    connection: Connection,
    statement: Update | Delete,
    params: Any,
    send: Callable[[], Any],
    flush: Running | None = None,
) -> Any:
    """Send the statement, and bring the session's objects of its rows up to date.

    ``flush``: it is sent while that is running.
    """
    mapper = _mapper_of(statement)
    if mapper is None:
        return send()
    known, identity = watched(session), key_named(mapper, statement, params)
    promised = promised_rows(session, mapper)
    held = _objects_concerned(session, mapper, identity, flush)
    moves = isinstance(statement, Update)
    if promised or (moves and identity is None):
        note(session, mapper)
    elif moves and identity is not None and not held:
        known.move((facts(mapper).root, identity), None)
    wanted = {*held, *promised} if identity is None else {identity} & {*held, *promised}
    found = _locked(connection, mapper, statement, params, wanted)
    token = facts(mapper).token
    if token and promised:
        keep_promises(session, promised, {key: row[token] for key, row in found.items()})
    as_new = {
        key: held[key]
        for key, row in found.items()
        if key in held and _is_as_new(known, held[key], row)
    }
    result = send()
    if as_new and moves:
        _follow(session, connection, as_new, found)
    elif as_new:
        _deleted(session, connection, as_new, flush)
    return result


def of_values(call: Call, mapper: Mapper[Any]) -> Any:
    """Send ``update(Model)`` of compared rows; SQLAlchemy does not see to objects that are expired.

    What is remembered of them becomes what the statement has stored, if it was stored before.
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
    found = _locked(connection, mapper, call.statement, call.params, held)
    known = watched(session)
    as_new = [key for key, row in found.items() if _is_as_new(known, held[key], row)]
    result = call.send()
    after = read_stored(connection, mapper, as_new, lock=False) if as_new else {}
    for key, row in after.items():
        values_moved(held[key], row)
    return result


def _mapper_of(statement: Update | Delete) -> Mapper[Any] | None:
    """The class whose rows are in the table, if their versions, or values, are compared."""
    return owner_of(statement.table) or comparing(statement.table)


# -- before it is sent ----------------------------------------------------------------------------


def _objects_concerned(
    session: Session, mapper: Mapper[Any], identity: Identity | None, flush: Running | None
) -> dict[Identity, State]:
    """Objects of the session that the statement may concern, by their keys."""
    if identity is not None:
        obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
        state = None if obj is None else instance_state(obj)
        if state is None and flush is not None:
            state = flush.find(mapper, identity)
        return {} if state is None else {identity: state}
    held = objects_of(session, mapper)
    if flush is not None:
        base = facts(mapper).root
        held |= {key: state for (of, key), state in flush.states().items() if of is base}
    return held


def _locked(
    connection: Connection,
    mapper: Mapper[Any],
    statement: Update | Delete,
    params: Any,
    wanted: Iterable[Identity],
) -> dict[Identity, Values]:
    """The rows that it will find, with what tells whether an object is as new as its row."""
    if not wanted:
        return {}
    token, columns = facts(mapper).token, facts(mapper).columns
    names = compared_names(mapper, changed=(), deleting=True)
    judged = {name: columns[name] for name in (*([token] if token else ()), *names)}
    table: Any = statement.table
    keys, looks = list(mapper.primary_key), list(judged.values())
    found = rows_found(connection, statement, params, table, keys, looks, wanted)
    return {key: dict(zip(judged, row, strict=True)) for key, row in found.items()}


def _is_as_new(known: Watched, state: State, row: Values) -> bool:
    of = facts(state.mapper)
    token = of.token
    if token and not _holds(known, state, token, row[token]):
        return False
    return not of.compares or all(
        of.same(name, as_read(state, name), value) for name, value in row.items() if name != token
    )


def _holds(known: Watched, state: State, token: str, version: Any) -> bool:
    """Is it the version that the object was read in, or that this transaction has written?"""
    if version_seen(state, token) == version:
        return True
    return (  # SQLAlchemy has written it, and not yet marked the object clean
        token in state.committed_state
        and state.dict.get(token) == version
        and known.has_flushed(_place(state))
    )


def _place(state: State) -> Place:
    key = state.key or state.mapper.identity_key_from_instance(state.obj())
    return facts(state.mapper).root, tuple(key[1])


# -- afterwards -----------------------------------------------------------------------------------


def _follow(
    session: Session,
    connection: Connection,
    states: Mapping[Identity, State],
    before: Mapping[Identity, Values],
) -> None:
    """Give the objects what is stored now."""
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
                _take(watched(session), state, before[key], after[key])
    expire_with_savepoint(session, [state for state in states.values() if state.key])


def _take(known: Watched, state: State, before: Values, after: Values) -> None:
    of = facts(state.mapper)
    token = of.token
    if token and before[token] != after[token]:
        back = moved_back(state, token, before[token], after[token])
        known.move(_place(state), before[token], back)
        _take_version(state, token, before[token], after[token])
    values = {
        name: value
        for name, value in after.items()
        if name != token
        and name in state.dict
        and name not in state.committed_state
        and not of.same(name, state.dict[name], value)
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
        moved_by_us(state, token, before, after)


def _deleted(
    session: Session,
    connection: Connection,
    states: Mapping[Identity, State],
    flush: Running | None,
) -> None:
    """Rows that are gone: there is nothing left to write, or to delete."""
    mapper = facts(next(iter(states.values())).mapper).root
    key = (facts(mapper).keys[0],)
    left = read_stored(connection, mapper, list(states), only=key, lock=False)
    gone = [state for identity, state in states.items() if identity not in left]
    if flush is None:
        now_deleted(session, gone)
        return
    parts = flush.uow.states if flush.uow is not None else {}
    # an edit of it is not dropped without a word: its UPDATE will miss the row
    now_deleted(session, [state for state in gone if state not in parts and not state.modified])
    flush.skipped |= {state for state in gone if flush.is_delete(state)}


# -- statements of a class, in a flush ------------------------------------------------------------


def in_flush(call: Call, mapper: Mapper[Any]) -> Any:
    """Send ``update(Model)`` or ``delete(Model)``, and let the objects follow it."""
    chosen = {**(call.options.get("execution_options") or {}), "synchronize_session": False}
    options = {**call.options, "execution_options": chosen}
    connection = call.connection(mapper)

    def native(statement: Any, params: Any) -> Any:
        return call.original(call.session, statement, params, **options)

    with stating(call.session, seen_to=False):  # but by what is called now
        known = watched(call.session)
        flush, asked, known.asked = known.flush, known.asked, True
        try:
            return flush.by_hand(flush, connection, native, call.statement, call.params, {})
        finally:
            known.asked = asked


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
    """Refuse ``update(Model)`` with rows by key: SQLAlchemy sends them as a flush sends its own.

    Raises:
        ConfigurationError: always.
    """
    name = mapper.class_.__name__
    raise ConfigurationError(
        f"The UPDATE of {name} by primary key is sent by a listener while the session is flushing,"
        f" and its rows could not be told from those of the flush. Write update({name}).where(...),"
        " or change the objects in a before_flush listener. Nothing was sent."
    )
