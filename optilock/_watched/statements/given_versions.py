"""Versions that a statement gives to stored rows, and the next version in their place.

A version that a program gives is no move, because a stored row may have it already: a number, a
parameter, the version of the new row of an upsert, of another table or of the row itself. Only an
expression that makes a next version moves it (:func:`makes_next`), such as ``Page.version + 1``. A
watched session writes the next version in place of any other (:func:`with_next_version`), and the
statement counts as one that leaves the version. Where the program makes all versions (``Manual``),
its versions count.

The same rule for SQL text: :mod:`optilock._watched.statements.sql_text`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.expression import Grouping

from optilock._mapped import facts
from optilock._mapping.tables import owner_of, versioned_tables
from optilock._undocumented import statements
from optilock._watched.statements.call import conditions_in
from optilock._watched.statements.version import mark_version_added, next_version_values
from optilock.errors import ConfigurationError
from optilock.tokens.timestamp import NextServerTime, UtcDateTime

#: Functions whose result is no version before that of the stored row among their arguments.
NOT_BEFORE = frozenset(["coalesce", "ifnull", "greatest", "max"])
#: Two of these may be equal, unless the next one is made from the one before.
COUNTED = (sa.Integer, sa.DateTime, UtcDateTime)


def makes_next(value: Any, version: sa.Column[Any], tables: Collection[Any]) -> bool:
    """Return whether the expression makes a version that no reader of the stored row has.

    ``tables`` are those of the stored row, or the alias that the statement names.
    """
    while isinstance(value, Grouping):
        value = value.element
    if isinstance(value, NextServerTime):
        return _is_stored(next(iter(value.clauses), None), version, tables)
    if isinstance(value, sa.BinaryExpression) and value.operator is operators.add:
        sides = [(value.left, value.right), (value.right, value.left)]
        return any(_is_more(more) and _is_stored(one, version, tables) for one, more in sides)
    if isinstance(version.type, COUNTED) or not isinstance(value, sa.FunctionElement):
        return False
    return not any(  # chance makes it
        isinstance(one, (sa.ColumnClause, sa.BindParameter)) for one in visitors.iterate(value)
    )


def _is_more(side: Any) -> bool:
    """Return whether it is a number that is added, and written in the program."""
    value = side.value if isinstance(side, sa.BindParameter) and not side.required else None
    return type(value) is int and value > 0


def _is_stored(side: Any, version: sa.Column[Any], tables: Collection[Any]) -> bool:
    if isinstance(side, sa.FunctionElement) and getattr(side, "name", "") in NOT_BEFORE:
        return any(_is_stored(one, version, tables) for one in side.clauses)
    return (
        isinstance(side, sa.ColumnClause)
        and version.shares_lineage(side)
        and any(side.table == one for one in tables)
    )


def is_trusted(version: sa.Column[Any]) -> bool:
    """Return whether only the program knows the next version: ``Manual``, or made from values."""
    mapper = owner_of(version.table)
    return mapper is not None and (facts(mapper).by_application or facts(mapper).by_values)


def is_moved_by(statement: sa.Update, params: Any, given: Any, version: sa.Column[Any]) -> bool:
    """Return whether an UPDATE moves the version itself.

    ``given`` is the table with the version, or the alias of it, that the statement names.
    """
    values = list(_given_by(statement, params, given, version))
    if is_trusted(version):
        return bool(values)
    tables = (given, version.table) if isinstance(given, sa.Table) else (given,)
    return bool(values) and all(makes_next(one, version, tables) for one in values)


def _given_by(
    statement: sa.Update, params: Any, given: Any, version: sa.Column[Any]
) -> Iterator[Any]:
    """Yield what the statement writes into the version, from its values and its parameters."""
    names = _names_of(version, statement)
    for name, value in statements.pairs_set_by(statement):
        table = getattr(name, "table", given)
        if getattr(name, "key", name) in names and (table == given or table == version.table):
            yield value
    if given is statement.table:
        for row in params if isinstance(params, list) else [params or {}]:
            if isinstance(row, Mapping):
                yield from (row[name] for name in names & row.keys())


def _names_of(version: sa.Column[Any], statement: Any) -> set[str]:
    """Return the names by which a statement of the class, or of its table, gives the version."""
    mapper = getattr(statements.subject_of(statement), "mapper", None)
    names = {version.key, version.name}
    return names | {facts(mapper).token} if isinstance(mapper, Mapper) else names


# -- the next version instead ----------------------------------------------------------------------


def with_next_version(statement: Any, params: Any) -> Any:
    """Return an UPDATE or an upsert with the next version, where the program gives another one.

    Without it, a row that was exported with its version would come back in it, and look unchanged.
    """
    if isinstance(statement, sa.Insert):
        return _upsert_with_next_version(statement, params)
    if not isinstance(statement, sa.Update):
        return statement
    named = {getattr(name, "table", None) for name, _ in statements.pairs_set_by(statement)}
    for given in {statement.table, *(one for one in named if isinstance(one, sa.Table))}:
        table: Any = getattr(given, "element", given)  # an alias of it
        version: Any = versioned_tables().get(table)
        if version is None or is_moved_by(statement, params, given, version):
            continue
        if _is_null(statement, version):  # any version moves it
            continue
        if list(_given_by(statement, params, given, version)):
            following = _next_version(version)
            if following is not None:
                names = _names_of(version, statement)
                following = _of_named(following, version, given)
                statement = statements.with_value(statement, names, given.c[version.key], following)
                statement = mark_version_added(statement)
    return statement


def _is_null(statement: sa.Update, version: sa.Column[Any]) -> bool:
    """Return whether it only writes rows without a version, to repair them."""
    return any(
        isinstance(one, sa.BinaryExpression)
        and one.operator is operators.is_
        and isinstance(one.right, sa.Null)
        and isinstance(one.left, sa.ColumnClause)
        and version.shares_lineage(one.left)
        for one in conditions_in(statements.criteria_of(statement))
    )


def _of_named(following: Any, version: sa.Column[Any], given: Any) -> Any:
    """Return the next version of the rows of an alias, if the statement names one."""
    if isinstance(given, sa.Table) or not isinstance(following, sa.ColumnElement):
        return following
    own = given.c[version.key]
    replaced: Any = visitors.replacement_traverse
    return replaced(following, {}, lambda one: own if one is version else None)


def _next_version(version: sa.Column[Any]) -> Any:
    """Return the expression, or value, of the next version; ``None``: no statement makes it."""
    mapper = owner_of(version.table)
    if mapper is None or is_trusted(version) or facts(mapper).by_itself:
        return None
    with suppress(ConfigurationError):
        return next_version_values(mapper)[version]
    return None


def _upsert_with_next_version(statement: sa.Insert, params: Any) -> sa.Insert:
    table: Any = statement.table
    values = set_by_upsert(statement)
    version: Any = versioned_tables().get(table) if values else None
    following = None if version is None else _next_version(version)
    if following is None:
        return statement  # moved by the database, or by the application; or refused
    of_class = isinstance(getattr(statements.subject_of(statement), "mapper", None), Mapper)
    rows = () if of_class else params if isinstance(params, list) else [params or {}]
    given = {*statements.names_given_by(statement), *(name for row in rows for name in row)}
    names = _names_of(version, statement)
    for name, value in values.items():
        if name in names and not makes_next(value, version, (table,)):
            if is_of_new_row(value, version) and given.isdisjoint(names):
                break  # its first version
            return statements.with_upserted_value(statement, name, following)
    return statement


def set_by_upsert(statement: sa.Insert) -> dict[str, Any]:
    """Return the columns that it sets where the row exists, by name; often none."""
    clause = statements.upsert_of(statement)
    values = getattr(clause, "update_values_to_set", None) or getattr(clause, "update", None) or ()
    pairs = values.items() if isinstance(values, Mapping) else values
    return {str(getattr(name, "key", name)): value for name, value in pairs}


def is_of_new_row(value: Any, version: sa.Column[Any]) -> bool:
    """Return whether it is ``excluded.version`` (PostgreSQL, SQLite) or ``inserted`` (MariaDB)."""
    table = getattr(value, "table", None)
    if getattr(value, "name", None) == "values":  # VALUES(version)
        return any(
            version.shares_lineage(one) for one in value.clauses if isinstance(one, sa.Column)
        )
    return (
        isinstance(table, sa.Alias)
        and table.name in ("excluded", "inserted")
        and bool(version.shares_lineage(value))
    )
