"""The scopes of rows that a statement writes (:mod:`optilock._watched.scopes`).

An INSERT has the values of its rows. An UPDATE or DELETE may name the scope in its WHERE
(``room_id = 7``); then no row is looked at. Otherwise up to 1,000 rows are locked and read before
it, with its own WHERE. The row count shows whether the statement has found these rows and no other,
if its WHERE depends on their columns alone.

If the scopes of a row stay unknown, the table's row ``*`` moves: for more rows, a subquery, INSERT
FROM SELECT, an upsert that may change a stored row, values that SQL computes, a statement without a
row count (RETURNING), and SQL text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import NO_VALUE, Mapper, Session
from sqlalchemy.sql import operators, visitors

from optilock._mapped import Identity, facts
from optilock._mapping.scopes import ScopeRules, has_scopes, rules_of, scoped_tables
from optilock._undocumented import statements
from optilock._watched.rows.stored import Values
from optilock._watched.scopes.flush import stored_values
from optilock._watched.scopes.transaction import note_moves, require_transaction
from optilock._watched.session.connections import connection_to_write
from optilock._watched.statements.call import Call, conditions_in, finds_twice, rows_found
from optilock._watched.statements.refusals import changes_stored_rows, inner_writes_of
from optilock._watched.statements.sql_text import sql_of, tables_touched
from optilock._watched.statements.version import class_stands_still, columns_set

#: Rows that are looked at.
MOST = 1_000
_CHANGES = (sa.Insert, sa.Update, sa.Delete)


@dataclass
class Moves:
    """The scopes that a statement moves, if it finds rows."""

    mapper: Mapper[Any]
    keys: set[str]
    #: The rows that it must find, and no more, for these to be all.
    rows: int | None = None

    def note(self, session: Session, result: Any) -> None:
        """Note the scopes, once the statement was sent."""
        count = getattr(result, "rowcount", None)
        if count == 0:
            return
        if self.rows is not None and self.rows != count:
            self.keys.add(rules_of(self.mapper).any_key)
        note_moves(session, self.mapper, self.keys)


def send_call(call: Call, send: Callable[[Call], Any]) -> Any:
    """Send a statement of ``session.execute()``, and note the scopes that it moves."""
    statement = call.statement
    if isinstance(statement, sa.StatementLambdaElement):
        statement = statements.resolve_lambda(statement)
    if not any(map(_mapper_of, _writes_in(statement))) and not _text_tables(sql_of(statement)):
        return send(call)
    call.flush_before()
    made = call.with_statement(statement)
    if made.is_by_key and _mapper_of(statement) is not None:
        moves = _by_key(made)
    else:
        moves = moves_of(call.session, made.connection, statement, call.params)
    result = send(call)
    for one in moves:
        one.note(call.session, result)
    return result


def send_on_connection(
    session: Session,
    connection: sa.Connection,
    statement: Any,
    params: Any,
    send: Callable[[], Any],
) -> Any:
    """Send a statement on the session's connection, and note the scopes that it moves."""
    moves = moves_of(session, lambda: connection, statement, params)
    result = send()
    for one in moves:
        one.note(session, result)
    return result


def moves_of(
    session: Session, connection: Callable[[], sa.Connection], statement: Any, params: Any
) -> list[Moves]:
    """Return the scopes that a statement moves; rows are locked and read if it does not name them.

    ``statement`` may be a SQL text.
    """
    sql = statement if isinstance(statement, str) else sql_of(statement)
    found = [Moves(mapper, {rules_of(mapper).any_key}) for mapper in _text_tables(sql)]
    if isinstance(statement, str):
        return found
    for one in _writes_in(statement):
        mapper = _mapper_of(one)
        if mapper is None:
            continue
        require_transaction(connection(), mapper)
        inside = one is not getattr(statement, "element", statement)
        made = _of_write(session, connection, mapper, one, params, inside=inside)
        if made is not None:
            found.append(made)
    return found + _of_other_tables(statement)


def _of_other_tables(statement: Any) -> list[Moves]:
    """Return the moves of tables that an UPDATE of several tables sets columns of (MariaDB)."""
    named = statements.values_of(statement) if isinstance(statement, sa.Update) else ()
    tables = {getattr(name, "table", None) for name in named} - {getattr(statement, "table", None)}
    roots = {scoped_tables.get(table) for table in tables if isinstance(table, sa.Table)}
    return [Moves(root, {rules_of(root).any_key}) for root in roots if root is not None]


def _writes_in(statement: Any) -> Iterator[Any]:
    """Yield the statement if it writes, and those inside of it that do."""
    statement = getattr(statement, "element", statement)
    if isinstance(statement, _CHANGES):
        yield statement
    yield from inner_writes_of(statement)


def _mapper_of(statement: Any) -> Mapper[Any] | None:
    """Return the class with scopes whose rows the statement writes."""
    table = getattr(statement, "table", None)
    table = getattr(table, "element", table)
    if not isinstance(table, sa.Table):
        return None
    root = scoped_tables.get(table)
    if root is None:
        return None
    return next((m for m in root.self_and_descendants if m.local_table == table), root)


def _text_tables(sql: str | None) -> list[Mapper[Any]]:
    if sql is None:
        return []
    by_name = {table.name.lower(): mapper for table, mapper in scoped_tables.items()}
    return [by_name[name] for name in tables_touched(sql, by_name)]


def is_sent_for_mappers(options: Mapping[str, Any]) -> bool:
    """Return whether SQLAlchemy sends the statement for a flush, or for a bulk call."""
    cache = (options.get("execution_options") or {}).get("compiled_cache")
    return type(cache) is statements.MappersCache


# -- one statement ---------------------------------------------------------------------------------


def _of_write(
    session: Session,
    connection: Callable[[], sa.Connection],
    mapper: Mapper[Any],
    statement: Any,
    params: Any,
    *,
    inside: bool,
) -> Moves | None:
    rules = rules_of(mapper)
    if inside:  # its row count is not that of the statement around it
        return Moves(mapper, {rules.any_key})
    if isinstance(statement, sa.Insert):
        return Moves(mapper, set(_inserted(rules, mapper, statement, params)))
    changes = _changes(session, mapper, statement, params)
    if changes is None:
        return None
    many = isinstance(params, list)
    pinned = {} if many else _pinned(mapper, rules, statement, params)
    if all(name in pinned for name in rules.names):
        return Moves(mapper, {*rules.keys(pinned), *rules.keys({**pinned, **changes})})
    where = statements.criteria_of(statement)
    if many or not where or not _is_of_own_rows(mapper, session, statement):
        return Moves(mapper, {rules.any_key})
    rows = _look(connection(), mapper, rules, statement, params)
    if len(rows) > MOST:
        return Moves(mapper, {rules.any_key})
    keys = {key for row in rows for side in (row, {**row, **changes}) for key in rules.keys(side)}
    return Moves(mapper, keys, len(rows))


def _is_of_own_rows(mapper: Mapper[Any], session: Session, statement: Any) -> bool:
    """Return whether locks of the found rows keep the statement from finding others instead.

    Rows of other tables may change in between, so that it finds as many rows, and not the same.
    """
    if not finds_twice(session, statement):
        return False
    tables = {table.key for table in mapper.tables if isinstance(table, sa.Table)}
    return all(
        not isinstance(one, sa.SelectBase)
        and getattr(getattr(one, "table", None), "key", None) in (*tables, None)
        for one in visitors.iterate(statement.whereclause)
    )


def _changes(session: Session, mapper: Mapper[Any], statement: Any, params: Any) -> Values | None:
    """Return the new values of scopes' columns; ``None`` if the statement moves no scope."""
    if isinstance(statement, sa.Delete):
        return {}
    columns, known = columns_set(mapper, statement, params), facts(mapper)
    if columns and columns <= known.ignored:
        return None
    values = dict(statements.values_of(statement))
    given = {str(getattr(name, "key", name)): value for name, value in values.items()}
    if isinstance(params, Mapping):
        given |= {name: value for name, value in params.items() if name in mapper.column_attrs}
    changes = {}
    for name in rules_of(mapper).names:
        column = known.columns[name]
        if column in columns:
            value = given.get(name, given.get(column.key, NO_VALUE))
            changes[name] = _plain(value, params)
    return None if not changes and class_stands_still(session, mapper) else changes


def _plain(value: Any, params: Any) -> Any:
    """Return a value that Python knows; ``NO_VALUE`` for an expression."""
    if isinstance(value, sa.BindParameter):
        given = params if isinstance(params, Mapping) else {}
        value = given.get(value.key, NO_VALUE if value.required else value.value)
    return NO_VALUE if isinstance(value, sa.ClauseElement) or callable(value) else value


def _pinned(mapper: Mapper[Any], rules: ScopeRules, statement: Any, params: Any) -> Values:
    """Return the values of scopes' columns that every found row has, by ``room_id = 7``."""
    found = {}
    for one in conditions_in(statements.criteria_of(statement)):
        if not isinstance(one, sa.BinaryExpression) or one.operator is not operators.eq:
            continue
        if not isinstance(one.right, sa.BindParameter):
            continue
        for name in rules.names:
            if facts(mapper).columns[name].shares_lineage(one.left):
                found[name] = _plain(one.right, params)
    return found


def _look(
    connection: sa.Connection,
    mapper: Mapper[Any],
    rules: ScopeRules,
    statement: Any,
    params: Any,
) -> list[Values]:
    """Lock the rows that the statement finds, and return their scopes' columns."""
    keys = [getattr(mapper.class_, name) for name in facts(mapper).keys]
    looks = [getattr(mapper.class_, name) for name in rules.names]
    table = facts(mapper).table
    found = rows_found(connection, statement, params, table, keys, looks, most=MOST + 1)
    return [dict(zip(rules.names, row, strict=True)) for row in found.values()]


# -- rows that are given ---------------------------------------------------------------------------


def _inserted(
    rules: ScopeRules, mapper: Mapper[Any], statement: sa.Insert, params: Any
) -> Iterator[str]:
    if statements.rows_are_unknown(statement) or changes_stored_rows(statement):
        yield rules.any_key
        return
    for row in statements.rows_given_by(statement, params):
        yield from keys_of_new_row(mapper, row, params)


def keys_of_new_row(
    mapper: Mapper[Any], row: Mapping[Any, Any], params: Any = None
) -> Iterator[str]:
    """Yield the keys of the scopes of a row to insert, by its attributes or columns."""
    yield from rules_of(mapper).keys(values_of_new_row(mapper, row, params))


def values_of_new_row(mapper: Mapper[Any], row: Mapping[Any, Any], params: Any = None) -> Values:
    """Return the values of scopes' columns of a row to insert, if Python knows them."""
    given = {str(getattr(name, "key", name)): value for name, value in row.items()}
    values = {}
    for name in rules_of(mapper).names:
        column = facts(mapper).columns[name]
        if name in given or column.key in given:
            values[name] = _plain(given.get(name, given.get(column.key)), params)
        elif isinstance(column.default, sa.ColumnDefault) and column.default.is_scalar:
            values[name] = column.default.arg
        elif column.default is None and column.server_default is None and column.identity is None:
            values[name] = None
    return values


def moves_of_new_row(session: Session, mapper: Mapper[Any], row: Mapping[str, Any]) -> set[str]:
    """Return the scopes that a row to insert moves, by its attributes or columns."""
    if not has_scopes(mapper):
        return set()
    require_transaction(connection_to_write(session, mapper), mapper)
    return set(keys_of_new_row(mapper, row))


def _by_key(call: Call) -> list[Moves]:
    """Return the scopes of rows that SQLAlchemy updates by primary key."""
    mapper = _mapper_of(call.statement)
    assert mapper is not None
    return [Moves(mapper, moves_by_key(call.session, mapper, call.params))]


def moves_by_key(
    session: Session, mapper: Mapper[Any], rows: Iterable[Mapping[str, Any]]
) -> set[str]:
    """Lock the stored rows of mappings with their keys, and return the scopes that these move."""
    names = facts(mapper).keys
    given: dict[Identity, Mapping[str, Any]] = {}
    for row in rows:
        identity = tuple(row.get(name) for name in names)
        given[identity] = {**given.get(identity, {}), **row}
    return moves_of_rows(session, mapper, given)


def moves_of_rows(
    session: Session,
    mapper: Mapper[Any],
    rows: Mapping[Identity, Mapping[str, Any]],
    *,
    deletes: bool = False,
) -> set[str]:
    """Lock stored rows by their keys, and return the scopes that new values of them move."""
    keys: set[str] = set()
    if not has_scopes(mapper):
        return keys
    require_transaction(connection_to_write(session, mapper), mapper)
    rules, known = rules_of(mapper), facts(mapper)
    left = {*mapper.primary_key, known.version, *known.ignored}
    counted = {name for name, column in known.columns.items() if column not in left}
    moved = [i for i, row in rows.items() if None not in i and (deletes or row.keys() & counted)]
    if moved:
        for identity, row in stored_values(session, mapper, moved, lock=True).items():
            given = rows.get(identity)
            if given is None:  # the database spells the key in another way
                unknown = dict.fromkeys(row, NO_VALUE)
                given = next(iter(rows.values())) if len(rows) == 1 else unknown
            changes = {n: _plain(v, None) for n, v in given.items() if n in row}
            keys.update(rules.keys(row), rules.keys({**row, **changes}))
    return keys
