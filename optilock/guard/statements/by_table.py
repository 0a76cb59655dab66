"""``update(table)`` and ``delete(table)`` of a watched session: its objects know of them.

::

    session.execute(Account.__table__.update().where(...).values(balance=0))
    session.connection().execute(...)      # the same, also in a listener during a flush

Such a statement moves the version of every row that it changes, and knows nothing of objects. The
rows of objects that the session holds are locked and looked at before it, and read after it: an
object that was as new as its row gets the version and the values that the statement has made. One
that is older keeps what it has, and goes on to conflict. Where the session holds no object of these
rows nothing is read.

A statement that names one row by its key looks at that row alone, and at no other object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Update, select, tuple_
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.base import NO_VALUE
from sqlalchemy.orm.state import InstanceState
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BindParameter

from optilock.conditions.keys import Identity, Place
from optilock.dialects import database_of
from optilock.dialects.locks import require_locks
from optilock.guard.statements.own import keep_promises, note_on, promised_rows
from optilock.mapping.compared import (
    as_read,
    compared_names,
    comparing,
    remembered_values,
    values_moved,
)
from optilock.mapping.facts import facts
from optilock.mapping.tables import owner_of
from optilock.rows.objects import equal_to_stored
from optilock.rows.seen import moved_back, moved_by_us, version_seen
from optilock.rows.sides import Values, read_stored, same
from optilock.session.watched import Watched, watched
from optilock.undocumented import criteria_of, expire_with_savepoint, now_deleted

if TYPE_CHECKING:
    from optilock.guard.records import Flush

__all__ = ["by_table", "is_of_objects", "key_named", "of_values"]

State = InstanceState[Any]


def by_table(
    session: Session,
    connection: Connection,
    statement: Update | Delete,
    params: Any,
    send: Callable[[], Any],
    flush: Flush | None = None,
) -> Any:
    """Send the statement, and bring the session's objects of its rows up to date.

    ``flush``: it is sent while that is running.
    """
    table: Any = statement.table
    mapper = owner_of(table) or comparing(table)
    if mapper is None:
        return send()
    known, identity = watched(session), key_named(mapper, statement, params)
    promised = promised_rows(session, mapper)
    held = _held(session, mapper, identity, flush)
    moves = isinstance(statement, Update)
    if promised or (moves and identity is None):
        note_on(session, mapper)
    elif moves and identity is not None and not held:
        known.move((facts(mapper).root, identity), None)
    wanted = {*held, *promised} if identity is None else {identity} & {*held, *promised}
    found = _locked(connection, mapper, statement, params, wanted) if wanted else {}
    token = facts(mapper).token
    if token and promised:
        keep_promises(session, promised, {key: row[token] for key, row in found.items()})
    as_new = {
        key: state
        for key, state in held.items()
        if key in found and _is_as_new(known, state, found[key])
    }
    result = send()
    if as_new:
        _follow(session, connection, as_new, found, flush, deleting=not moves)
    return result


def of_values(
    session: Session,
    connection: Connection,
    mapper: Mapper[Any],
    statement: Update,
    params: Any,
    send: Callable[[], Any],
) -> Any:
    """Send ``update(Model)`` of compared rows; SQLAlchemy does not see to objects that are expired.

    What is remembered of them becomes what the statement has stored, if it was stored before.
    """
    held = {
        key: state
        for key, state in _held(session, mapper, None, None).items()
        if remembered_values(state) and state.mapper.isa(mapper)
    }
    found = _locked(connection, mapper, statement, params, held) if held else {}
    known = watched(session)
    as_new = [key for key, row in found.items() if _is_as_new(known, held[key], row)]
    result = send()
    after = read_stored(connection, mapper, as_new, lock=False) if as_new else {}
    for key, row in after.items():
        values_moved(held[key], row)
    return result


def is_of_objects(table: Any) -> bool:
    """Does the table hold rows whose versions, or values, are compared?"""
    return owner_of(table) is not None or comparing(table) is not None


def key_named(mapper: Mapper[Any], statement: Update | Delete, params: Any) -> Identity | None:
    """The key of the only row that the statement can match, by ``WHERE id = ?``."""
    given = params if isinstance(params, Mapping) else {}
    if params and not given:
        return None  # many rows
    named = {
        one.left: given.get(one.right.key, one.right.value)
        for one in _conjunction(criteria_of(statement))
        if isinstance(one, BinaryExpression)
        and one.operator is operators.eq
        and isinstance(one.right, BindParameter)
    }
    identity = tuple(named.get(column) for column in mapper.primary_key)
    return None if None in identity else identity


def _conjunction(criteria: Iterable[Any]) -> Iterable[Any]:
    for one in criteria:
        if getattr(one, "operator", None) is operators.and_:
            yield from _conjunction(one.clauses)
        else:
            yield one


def _held(
    session: Session, mapper: Mapper[Any], identity: Identity | None, flush: Flush | None
) -> dict[Identity, State]:
    """Objects of the session that the statement may concern, by their keys."""
    base = facts(mapper).root
    if identity is not None:
        obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
        state = None if obj is None else instance_state(obj)
        if state is None and flush is not None:
            state = flush.find(mapper, identity)
        return {} if state is None else {identity: state}
    held = {
        tuple(state.key[1]): state
        for state in session.identity_map.all_states()
        if facts(state.mapper).root is base and state.key
    }
    if flush is not None:
        held |= {key: state for (of, key), state in flush.states().items() if of is base}
    return held


def _locked(
    connection: Connection,
    mapper: Mapper[Any],
    statement: Update | Delete,
    params: Any,
    wanted: Iterable[Identity],
) -> dict[Identity, Values]:
    """The rows that the statement will find, with their versions and compared values; locked.

    With a list of parameters all that are wanted are looked at.
    """
    table: Any = statement.table
    database, keys = database_of(connection.dialect), list(mapper.primary_key)
    names = _compared(mapper)
    columns = facts(mapper).columns
    require_locks(database, connection)
    database.begin_writing(connection, table)
    query = select(*keys, *(columns[name] for name in names))
    if not isinstance(params, list):
        query = query.where(*criteria_of(statement))
    query = database.lock(query, table, deleting=isinstance(statement, Delete))
    found: dict[Identity, Values] = {}
    ordered = sorted(wanted, key=repr)
    step = database.keys_at_once(len(keys) + 1)
    for start in range(0, len(ordered), step):
        some = ordered[start : start + step]
        here = keys[0].in_([one for (one,) in some]) if len(keys) == 1 else tuple_(*keys).in_(some)
        given = params if isinstance(params, Mapping) else {}
        for row in type(connection).execute(connection, query.where(here), given):
            found[tuple(row[: len(keys)])] = dict(zip(names, row[len(keys) :], strict=True))
    return found


def _compared(mapper: Mapper[Any]) -> tuple[str, ...]:
    """What tells whether an object is as new as its row."""
    token = facts(mapper).token
    names = compared_names(mapper, changed=(), deleting=True)
    return tuple(dict.fromkeys((*([token] if token else ()), *names)))


def _is_as_new(known: Watched, state: State, row: Values) -> bool:
    token, columns = facts(state.mapper).token, facts(state.mapper).columns
    if token and not _holds(known, state, token, row[token]):
        return False
    return not facts(state.mapper).compares or all(
        same(columns[name], as_read(state, name), value)
        for name, value in row.items()
        if name != token
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


def _follow(
    session: Session,
    connection: Connection,
    states: Mapping[Identity, State],
    before: Mapping[Identity, Values],
    flush: Flush | None,
    *,
    deleting: bool,
) -> None:
    """Give the objects what is stored now."""
    if deleting:
        _deleted(session, connection, states, flush)
        return
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
    token, columns = facts(state.mapper).token, facts(state.mapper).columns
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
        and not same(columns[name], state.dict[name], value)
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
    session: Session, connection: Connection, states: Mapping[Identity, State], flush: Flush | None
) -> None:
    """Rows that are gone: there is nothing left to write, or to delete."""
    mapper = facts(next(iter(states.values())).mapper).root
    key = (facts(mapper).keys[0],)
    left = read_stored(connection, mapper, list(states), only=key, lock=False)
    gone = [state for identity, state in states.items() if identity not in left]
    if flush is None:
        now_deleted(session, gone)
    else:
        parts = flush.uow.states if flush.uow is not None else {}
        # an edit of it is not dropped without a word: its UPDATE will miss the row
        clean = [state for state in gone if state not in parts and not state.modified]
        now_deleted(session, clean)
        flush.skipped |= {state for state in gone if flush.is_delete(state)}
