"""Writing what the resolvers decided, in the same transaction.

The stored rows were read with a lock, so a correction is checked against the version that was just
read and cannot miss again; if it does (a trigger, a rule), that is an error, not another round.
What the session demands of its rows is demanded of corrections, too: a lease may end meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ClauseElement, Column, Connection, Table, bindparam
from sqlalchemy.orm import Mapper

from optilock.conditions.condition import explained, parameter
from optilock.conditions.demands import Demands
from optilock.dialects.rows import must_match
from optilock.errors import Computed, ConcurrencyError
from optilock.guard.records import Missed
from optilock.mapped import facts
from optilock.rows.sides import Values, read_stored
from optilock.session.watched import watched
from optilock.writes.look import read_demanded
from optilock.writes.onupdate import onupdate_values

__all__ = ["Correction", "delete_rows", "insert_row", "plan_update", "tables_of", "update_rows"]


@dataclass
class Correction:
    """One stored row, and what it gets."""

    missed: Missed
    #: Attribute -> new value, or SQL expression; empty when the row stays as it is.
    values: Values = field(default_factory=dict)
    #: Attribute -> stored value, of those that get a new one.
    replaced: Values = field(default_factory=dict)
    #: The version moves though no other value changes: the row was touched.
    touched: bool = False

    @property
    def writes(self) -> bool:
        return self.touched or bool(self.values)

    @property
    def final(self) -> Values:
        """What is stored afterwards, as far as it is known here."""
        known = {k: v for k, v in self.values.items() if not isinstance(v, ClauseElement)}
        return {**(self.missed.stored or {}), **known}


def plan_update(missed: Missed) -> Correction:
    """Each column from the side that changed it, then what the resolver named."""
    resolution, entry = missed.resolution, missed.entry
    assert resolution is not None and missed.stored is not None
    if resolution.decision == "keep_database":
        return Correction(missed)
    values: Values = dict(entry.changes) if entry.action == "update" else {}
    values.update(resolution.values)
    known = facts(missed.state.mapper)
    wanted = {
        name: _expression(missed, name) if isinstance(value, Computed) else value
        for name, value in values.items()
    }
    changed = {
        name: value
        for name, value in wanted.items()
        if isinstance(value, ClauseElement) or not known.same(name, value, missed.stored[name])
    }
    return Correction(
        missed,
        changed,
        {name: missed.stored[name] for name in changed},
        touched=entry.action == "update" and not entry.changes,
    )


def _expression(missed: Missed, name: str) -> Any:
    return missed.expressions[facts(missed.state.mapper).columns[name]]


def update_rows(connection: Connection, mapper: Mapper[Any], rows: list[Correction]) -> None:
    """Write the corrections of one mapper: one statement a table, and one for each expression."""
    rows = [row for row in rows if row.writes]
    together = [row for row in rows if not _has_expression(row)]
    for some in [together, *([row] for row in rows if _has_expression(row))]:
        if some:
            for row in some:
                _move_token(mapper, row)
            for table in tables_of(mapper):
                _update_table(connection, mapper, table, some)


def _has_expression(row: Correction) -> bool:
    return any(isinstance(value, ClauseElement) for value in row.values.values())


def _move_token(mapper: Mapper[Any], row: Correction) -> None:
    token = facts(mapper).token
    assert row.missed.stored is not None
    if not token:
        return
    if mapper.version_id_generator:
        row.values[token] = mapper.version_id_generator(row.missed.stored[token])
    elif facts(mapper).by_values:
        row.values[token] = facts(mapper).made_from({**row.missed.stored, **row.values})
    elif facts(mapper).by_application:
        attempt = row.missed.attempt
        assigned = attempt.current[token] != attempt.original[token]
        row.values[token] = (attempt.current if assigned else row.missed.stored)[token]


def _update_table(
    connection: Connection, mapper: Mapper[Any], table: Table, rows: list[Correction]
) -> None:
    """The union of the changed columns; a row that leaves one alone writes what is stored."""
    names = _names_in(mapper, table)
    touched = {name for row in rows for name in row.values if name in names}
    token = mapper.version_id_col
    expressions: dict[Any, Any] = {}
    if not touched:
        if token is None or token.table is not table:
            return
        expressions.update(facts(mapper).touch)
    where = _where(mapper, table)
    statement = _by_key(table.update(), where)
    params = []
    for row in rows:
        stored = row.missed.stored
        assert stored is not None
        values = {names[name].key: row.values.get(name, stored[name]) for name in touched}
        for name in touched:
            if isinstance(row.values.get(name), ClauseElement):
                expressions[names[name]] = values.pop(names[name].key)
        automatic = onupdate_values(table, connection, values)
        values.update(automatic)
        row.values.update({n: values[c.key] for n, c in names.items() if c.key in automatic})
        identity = {f"optilock_{c.key}": stored[_name_of(mapper, c)] for c in where}
        params.append({**values, **identity})
    if expressions:
        statement = statement.values(expressions)
    missed = [row.missed for row in rows]
    found = _send(connection, mapper, table, statement, params, missed)
    if found is not None and found != len(rows):
        raise ConcurrencyError(
            [one.entry for one in missed],
            f"The correction of {len(rows)} row(s) of {table.description} was written to"
            f" {found}: the rows keep changing, or a trigger or a rule prevents the"
            " write. The transaction is rolled back; run the unit of work again.",
        )


def delete_rows(connection: Connection, mapper: Mapper[Any], rows: list[Missed]) -> None:
    """Delete rows in the version that is stored now; joined tables first."""
    token = mapper.version_id_col
    for table in reversed(tables_of(mapper)):
        where = _where(mapper, table)
        params = [
            {f"optilock_{c.key}": (row.stored or {})[_name_of(mapper, c)] for c in where}
            for row in rows
        ]
        found = _send(connection, mapper, table, _by_key(table.delete(), where), params, rows)
        if found is not None and token is not None and token.table is table:
            must_match(table, len(rows), found, deleting=True)


def _where(mapper: Mapper[Any], table: Table) -> list[Column[Any]]:
    """The key of the table's rows, and the version if it is there."""
    token: Any = mapper.version_id_col
    return [*table.primary_key, *([token] if token is not None and token.table is table else [])]


def _by_key(statement: Any, where: list[Column[Any]]) -> Any:
    return statement.where(*(c == bindparam(f"optilock_{c.key}", type_=c.type) for c in where))


def _send(
    connection: Connection,
    mapper: Mapper[Any],
    table: Table,
    statement: Any,
    params: list[dict[str, Any]],
    rows: list[Missed],
) -> int | None:
    """How many rows were found, if the driver can tell; under what the session demands of them.

    Raises:
        Exception: what a condition explains, which was true when the row was looked at.
    """
    counts = connection.dialect.supports_sane_multi_rowcount
    session: Any = rows[0].state.session
    demands = watched(session).demands
    more = () if demands is None else demands.on(mapper, table)
    if demands is None or not more or table is not facts(mapper).table:
        some = params if len(params) > 1 else params[0]
        result = type(connection).execute(connection, statement, some)
        return result.rowcount if counts or len(params) == 1 else None
    statement = statement.where(*(one.clause(parameter) for one in more))
    found = 0
    for row in params:
        result = type(connection).execute(connection, statement, {**row, **demands.params})
        found += result.rowcount
    if found != len(params):
        _raise_explained(demands, connection, mapper, rows)
    return found


def _raise_explained(
    demands: Demands, connection: Connection, mapper: Mapper[Any], rows: list[Missed]
) -> None:
    identities = [row.attempt.identity for row in rows]
    _, lost = read_demanded(demands, connection, mapper, identities)
    for row in rows:
        why = explained(lost.get(row.attempt.identity, ()), row.entry)
        if why is not None:
            raise why


def insert_row(connection: Connection, missed: Missed) -> Values:
    """Insert a row again that somebody deleted, with our values; all tables of the mapper."""
    mapper = missed.state.mapper
    assert missed.resolution is not None
    values = {**missed.attempt.current, **missed.resolution.values}
    token = facts(mapper).token
    if token and mapper.version_id_generator:
        values[token] = mapper.version_id_generator(missed.attempt.original[token])
    elif facts(mapper).by_values:
        values[token] = facts(mapper).made_from(values)
    elif token and facts(mapper).by_database:
        again = facts(mapper).again(missed.attempt.original[token])
        if again is None:
            del values[token]
        else:
            values[token] = again
    for table in tables_of(mapper):
        names = {n: c for n, c in _names_in(mapper, table).items() if c.computed is None}
        row = {c.key: values[n] for n, c in names.items() if n in values}
        type(connection).execute(connection, table.insert(), row)
    if token and token not in values:
        identity = mapper.primary_key_from_instance(missed.obj)
        stored = read_stored(connection, mapper, [tuple(identity)], only=(token,))
        values.update(stored[tuple(identity)])
    return values


def tables_of(mapper: Mapper[Any]) -> list[Table]:
    """The mapper's tables, the base first."""
    if facts(mapper).maps_a_select:
        return [facts(mapper).table]
    tables = [m.local_table for m in reversed(list(mapper.iterate_to_root()))]
    if mapper.concrete:
        tables = [mapper.local_table]
    return list(dict.fromkeys(table for table in tables if isinstance(table, Table)))


def _names_in(mapper: Mapper[Any], table: Table) -> dict[str, Column[Any]]:
    """Attribute -> column of one table."""
    found: dict[str, Column[Any]] = {}
    for column in _mapped(mapper, table.columns):
        found[_name_of(mapper, column)] = column
    return found


def _mapped(mapper: Mapper[Any], columns: Iterable[Column[Any]]) -> Iterable[Column[Any]]:
    if facts(mapper).maps_a_select:
        mapped: set[Any] = set(facts(mapper).columns.values())
    else:
        mapped = {c for attribute in mapper.column_attrs for c in attribute.columns}
    return (column for column in columns if column in mapped)


def _name_of(mapper: Mapper[Any], column: Column[Any]) -> str:
    return facts(mapper).names[column]
