"""``update(Model).where(...)`` in a watched session: which objects it moves, and to what version.

The rules are in :mod:`optilock.guard.statements.execute`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Delete, Update, select, tuple_
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.state import InstanceState
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.functions import FunctionElement

from optilock.conditions.keys import place_of
from optilock.dialects import database_of
from optilock.guard.statements.apart import (
    move_apart,
    moving,
    refuse_by_key,
)
from optilock.guard.statements.by_key import counts
from optilock.guard.statements.own import binds_of, flush_before, keep_promises, promised_rows
from optilock.guard.statements.unmoved import stands_still, unmoved
from optilock.guard.statements.while_flushing import in_flush, refuse_apart_in_flush
from optilock.mapping.facts import facts
from optilock.rows.seen import moved_back, moved_by_us, version_seen
from optilock.rows.sides import read_stored
from optilock.session.connections import own_connection
from optilock.session.watched import watched
from optilock.undocumented import (
    criteria_of,
    expire_with_savepoint,
    loader_options_of,
    names_set_by,
    prefixes_of,
)

__all__ = ["by_criteria", "matching", "options_of", "take_over", "with_children"]

State = InstanceState[Any]
Execute = Callable[..., Any]


def options_of(statement: Update | Delete, options: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**statement.get_execution_options(), **(options.get("execution_options") or {})}


def by_criteria(
    session: Session,
    original: Execute,
    mapper: Mapper[Any],
    statement: Update,
    params: Any,
    options: dict[str, Any],
) -> Any:
    token: Any = mapper.version_id_col
    columns = _set_columns(mapper, statement, params)
    explicit = token in columns
    only_ignored = bool(columns) and columns <= facts(mapper).ignored
    run = in_flush if watched(session).flush is not None else _sent
    if not explicit and (only_ignored or stands_still(session, mapper)):
        return run(session, original, mapper, unmoved(mapper, statement), params, options)
    if facts(mapper).by_application and not explicit:
        return run(session, original, mapper, statement, params, options)
    if not explicit and token.table is mapper.local_table:
        statement = moving(mapper, statement)
    apart = token.table is not mapper.local_table and not _writes(token.table, columns)
    if run is in_flush:
        if apart:
            refuse_apart_in_flush(mapper)
        return in_flush(session, original, mapper, statement, params, options)
    chosen = options_of(statement, options)
    binds = binds_of(mapper, options)
    flush_before(session, {"autoflush": session.autoflush, **chosen})
    held: dict[Any, State] = {}
    if chosen.get("synchronize_session", "auto") is not False:
        held = _held(session, mapper)
    matched = _matched(session, binds, mapper, statement, params, held)
    if apart:
        connection = own_connection(session, binds)
        move_apart(connection, mapper, mapper.local_table, statement, params)
    with _versions_kept(mapper, held.values()):
        result = original(session, statement, params, **options)
    if matched:
        connection = own_connection(session, binds)
        certain = not explicit and _matches_twice(session, statement)
        take_over(session, connection, mapper, matched, certain=certain)
    return result


def with_children(
    session: Session,
    original: Execute,
    mapper: Mapper[Any],
    children: list[Mapper[Any]],
    statement: Update,
    params: Any,
    options: dict[str, Any],
) -> Any:
    """The class has no version, but joined children of it have one, which stands for both."""
    if isinstance(params, list):
        refuse_by_key(mapper, children)
    columns = _set_columns(mapper, statement, params)
    binds = binds_of(mapper, options)
    flush_before(session, {})
    taken = []
    for child in children:
        if columns <= facts(child).ignored or stands_still(session, child):
            continue
        if facts(child).by_application:
            continue
        if watched(session).flush is not None:
            refuse_apart_in_flush(child)
        matched = _matched(session, binds, child, statement, params, _held(session, child))
        connection = own_connection(session, binds)
        move_apart(connection, child, mapper.local_table, statement, params)
        taken.append((child, matched))
    result = original(session, statement, params, **options)
    for child, matched in taken:
        if matched:
            connection = own_connection(session, binds)
            certain = _matches_twice(session, statement)
            take_over(session, connection, child, matched, certain=certain)
    return result


def _sent(
    session: Session,
    original: Execute,
    mapper: Mapper[Any],
    statement: Update,
    params: Any,
    options: dict[str, Any],
) -> Any:
    return original(session, statement, params, **options)


def _set_columns(mapper: Mapper[Any], statement: Update, params: Any) -> set[Any]:
    """The columns that get a new value; what is no column stands for itself."""
    names = names_set_by(statement)
    if isinstance(params, Mapping):
        names += [name for name in params if name in mapper.column_attrs]
    return {_column(mapper, name) for name in names}


def _column(mapper: Mapper[Any], name: Any) -> Any:
    if not isinstance(name, str):
        for column in mapper.columns:
            if column.shares_lineage(name):
                return column
        return name
    if name in mapper.column_attrs:
        return mapper.column_attrs[name].columns[0]
    return mapper.local_table.columns.get(name, name)


def _writes(table: Any, columns: set[Any]) -> bool:
    """Does the statement set columns of ``table``, too (MariaDB)? Its ``onupdate`` acts then."""
    return any(getattr(column, "table", None) is table for column in columns)


def _held(session: Session, mapper: Mapper[Any]) -> dict[Any, State]:
    """Objects of the class in the session whose version is known, by their keys."""
    key = facts(mapper).token
    return {
        tuple(state.key[1]): state
        for state in session.identity_map.all_states()
        if state.mapper.isa(mapper) and state.key and version_seen(state, key) is not None
    }


def _matched(
    session: Session,
    binds: Any,
    mapper: Mapper[Any],
    statement: Update,
    params: Any,
    held: Mapping[Any, State],
) -> list[tuple[State, Any]]:
    """Those of the objects ``held`` whose rows the statement will change, with their versions.

    Their rows are locked, and so are promised ones: what is in the promised version is ours now.
    """
    promised = promised_rows(session, mapper)
    if not held and not promised:
        return []
    found = matching(session, binds, mapper, statement, params, {*held, *promised})
    keep_promises(session, promised, found)
    return _as_held(mapper, held, found)


@contextmanager
def _versions_kept(mapper: Mapper[Any], states: Iterable[State]) -> Iterator[None]:
    """SQLAlchemy expires a version, or gives it the new value, also where the object is older."""
    key = facts(mapper).token
    versions = [(state, state.dict[key]) for state in states if key in state.dict]
    yield
    for state, version in versions:
        state.dict[key] = version
        state.expired_attributes.discard(key)


def matching(
    session: Session,
    binds: Any,
    mapper: Mapper[Any],
    statement: Any,
    params: Any,
    identities: set[Any],
) -> dict[Any, Any]:
    """Key -> version of those of the rows that match, and are locked now."""
    key = facts(mapper).token
    connection = own_connection(session, binds)
    database, table = database_of(connection.dialect), facts(mapper).table
    database.begin_writing(connection, table)
    keys = [getattr(mapper.class_, name) for name in facts(mapper).keys]
    query = select(*keys, getattr(mapper.class_, key)).where(*criteria_of(statement))
    query = database.lock(query.options(*loader_options_of(statement)), table, deleting=False)
    found: dict[Any, Any] = {}
    wanted = sorted(identities, key=repr)
    step = database.keys_at_once(len(keys) + 1)
    for start in range(0, len(wanted), step):
        some = wanted[start : start + step]
        here = keys[0].in_([one for (one,) in some]) if len(keys) == 1 else tuple_(*keys).in_(some)
        for row in connection.execute(query.where(here), params or {}):
            found[tuple(row[:-1])] = row[-1]
    return found


def _matches_twice(session: Session, statement: Update) -> bool:
    """Does the UPDATE change just those rows that a SELECT with its WHERE has found before?

    Not with the criteria of a ``do_orm_execute`` listener, ``UPDATE ... LIMIT``, or functions such
    as ``random()``. A version that was not made must not be taken over: others may make it.
    """
    if session.dispatch.do_orm_execute or loader_options_of(statement):
        return False
    if statement.dialect_kwargs or prefixes_of(statement):
        return False
    where = statement.whereclause
    return where is None or not any(
        isinstance(one, (FunctionElement, TextClause)) for one in visitors.iterate(where)
    )


def _as_held(
    mapper: Mapper[Any], held: Mapping[Any, State], found: Mapping[Any, Any]
) -> list[tuple[State, Any]]:
    """Those of the objects whose rows match in the version that they hold."""
    key = facts(mapper).token
    return [
        (state, found[identity])
        for identity, state in held.items()
        if identity in found and version_seen(state, key) == found[identity]
    ]


def take_over(
    session: Session,
    connection: Connection,
    mapper: Mapper[Any],
    matched: list[tuple[State, Any]],
    *,
    certain: bool,
) -> None:
    """Give the objects the versions that the statement has made: the next ones, if ``certain``."""
    key = facts(mapper).token
    after: dict[Any, Any] = {}
    if certain and counts(mapper):
        after = {state: before + 1 for state, before in matched}
    else:
        identities = [tuple(state.key[1]) for state, _ in matched if state.key]
        stored = read_stored(connection, mapper, identities, only=(key,), lock=False)
        after = {s: stored.get(tuple(s.key[1]), {}).get(key) for s, _ in matched if s.key}
    known = watched(session)
    for state, before in matched:
        if after[state] is not None:
            moved_by_us(state, key, before, after[state])
            known.move(place_of(state), before, moved_back(state, key, before, after[state]))
    expire_with_savepoint(session, [state for state, _ in matched])  # a savepoint expires them, too
