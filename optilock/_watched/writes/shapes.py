"""The shape of a statement of the unit of work: read once, and kept on the statement itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, UOWTransaction
from sqlalchemy.schema import ColumnCollectionConstraint
from sqlalchemy.sql import operators

from optilock._mapped import facts
from optilock._mapping.tables import is_shared, share_one_table, two_classes
from optilock._undocumented.statements import returns_values, values_of
from optilock.conditions.condition import Match, parameter
from optilock.conditions.write import Shape
from optilock.errors import ConfigurationError


class _Shapes(dict[Any, Shape | None]):
    """The shapes of one statement: they live as long as the mapper's statement does."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner


#: In a base mapper: a flush has shown the guard a statement for rows of its classes.
_SHOWN = "_optilock_shown"


def is_of_mappers(
    statement: sa.Update | sa.Delete, params: Any, cache: Any, mappers: Iterable[Mapper[Any] | None]
) -> bool:
    """Return whether it is SQLAlchemy's own statement of a mapper, with another type of cache.

    It has a cache that no program gives, or it compares the version with a parameter. A version
    that is mistaken for a program's would be left as it is.
    """
    if cache is not None and type(cache) is not dict:
        return True
    names = params[0] if isinstance(params, list) and params else params
    if not isinstance(names, Mapping):
        return False
    compared = compared_columns(statement) or {}
    versions = {mapper.version_id_col for mapper in mappers if mapper is not None}
    return any(column in versions and name in names for column, name in compared.items())


def is_shown(mapper: Mapper[Any]) -> bool:
    """Return whether the guard has seen a statement that a flush sent for rows of the class."""
    return _SHOWN in mapper.base_mapper.__dict__


def shape_for(
    uow: UOWTransaction, dialect: sa.Dialect, statement: Any, names: Iterable[str]
) -> Shape | None:
    """Return the shape of ``statement`` with these parameters; ``None`` without a version."""
    shapes = statement.__dict__.get("_optilock_shapes")
    if shapes is None or shapes.owner is not statement:  # SQLAlchemy copies statements
        shapes = statement.__dict__["_optilock_shapes"] = _Shapes(statement)
    driver, given = dialect.driver, tuple(names)
    try:
        shape: Shape | None = shapes[driver, given]
    except KeyError:
        sorted_out = frozenset(given)  # the same names may come in another order
        if (driver, sorted_out) not in shapes:
            if not any(statement.table in mapper.tables for mapper in uow.mappers):
                return None  # another session flushes on the connection, and its flush checks
            shapes[driver, sorted_out] = _read(uow, dialect, statement, sorted_out)
        shape = shapes[driver, given] = shapes[driver, sorted_out]
    return shape


def _read(
    uow: UOWTransaction, dialect: sa.Dialect, statement: Any, names: frozenset[str]
) -> Shape | None:
    for mapper in uow.mappers:
        if statement.table in mapper.tables and mapper.version_id_col is not None:
            mapper.base_mapper.__dict__[_SHOWN] = True
            _refuse_deferred(mapper)
            if is_shared(mapper):
                _refuse_another(uow, mapper)
            return shape_of(statement, names, mapper, dialect)
    return None


def _refuse_deferred(mapper: Mapper[Any]) -> None:
    """Refuse a version that is not read with its row.

    Raises:
        ConfigurationError: the mapping defers it, or names a column that SQLAlchemy never writes.
    """
    if facts(mapper).maps_a_select:
        _ = facts(mapper).table  # refuses a version that is the SELECT's own
    version = facts(mapper).version
    attribute: Any = mapper.get_property_by_column(version)
    if getattr(attribute, "deferred", False):
        raise ConfigurationError(
            f"{mapper.class_.__name__}.{attribute.key} is deferred: a version that is read later"
            " than its row is another writer's. Remove deferred=True. Nothing was written."
        )


def _refuse_another(uow: UOWTransaction, mapper: Mapper[Any]) -> None:
    """Refuse a statement whose class is unknown, where objects of two classes have one table."""
    for other in uow.mappers:
        if share_one_table(mapper, other):
            raise two_classes(mapper, other)


def shape_of(
    statement: sa.Update | sa.Delete,
    names: frozenset[str],
    mapper: Mapper[Any],
    dialect: sa.Dialect,
) -> Shape | None:
    """Return the shape of a statement of the unit of work; ``None`` if it is not guarded."""
    table = statement.table
    token = facts(mapper).version
    if not isinstance(token, sa.Column) or not isinstance(table, sa.Table):
        return None
    compared = compared_columns(statement)
    if compared is None or token not in compared:
        return None
    keys = tuple(Match(col, name) for col, name in compared.items() if col is not token)
    version = Match(token, compared[token])
    where = {condition.parameter for condition in keys} | {compared[token]}
    sets = _sets(statement, table, names, where)
    given = dict(values_of(statement))
    expressions = {c: e for c, e in given.items() if c is not token and c is not e}
    changed = {*sets.values(), *expressions} - {token}
    names_version = token.key in sets
    if isinstance(statement, sa.Update) and not names_version and token not in given:
        statement = _keep_version(statement, mapper, token)
    individually = isinstance(statement, sa.Update) and (
        not names_version or _is_special(statement, table, given, changed)
    )
    prefetch, postfetch = ((), ()) if individually else _computed(statement, names, dialect)
    return Shape(
        statement=statement,
        group=statement,
        table=table,
        mapper=mapper,
        keys=keys,
        token=version,
        conditions=(version,),
        sets=sets,
        prefetch=prefetch,
        postfetch=postfetch,
        expressions=expressions,
        sent_individually=individually,
        touches=tuple(given.keys() - expressions.keys()),
        **_special_treatment(mapper, sets, changed, moves=names_version or bool(given)),
    )


def _is_special(
    statement: sa.Update, table: sa.Table, given: Mapping[Any, Any], changed: set[sa.Column[Any]]
) -> bool:
    """Return whether it has values of its own, returns values, or needs rows in their order."""
    if given or returns_values(statement):
        return True
    return not changed.isdisjoint(_columns_in_order(table))


def _special_treatment(
    mapper: Mapper[Any],
    sets: Mapping[str, sa.Column[Any]],
    changed: set[sa.Column[Any]],
    *,
    moves: bool,
) -> dict[str, Any]:
    """Return the fields of a shape that depend on the kinds of columns it changes."""
    ignored, compares = facts(mapper).ignored, facts(mapper).compares
    ignored_only = bool(changed) and changed <= ignored
    perhaps_ignored = not changed and bool(ignored) and moves
    commuting = _commuting(mapper, sets, changed - ignored)
    return {
        "compares": compares,
        "ignored_only": ignored_only,
        "perhaps_ignored": perhaps_ignored,
        "commuting": commuting,
        "special": ignored_only or perhaps_ignored or compares or bool(commuting),
    }


def shape_by_key(
    mapper: Mapper[Any],
    table: sa.Table,
    dialect: sa.Dialect,
    columns: Iterable[sa.Column[Any]] | None,
    expressions: Mapping[sa.Column[Any], Any] = MappingProxyType({}),
    *,
    locked: bool = False,
) -> Shape:
    """Return the shape of a write by key, and by the version if the table has it.

    An UPDATE sets ``columns`` to values of each row, and some to ``expressions``; without
    ``columns`` it is a DELETE.
    """
    sets = {column.key: column for column in columns or ()}
    place = table, dialect.driver, columns is None, locked, frozenset(sets)
    shapes = {} if expressions else facts(mapper).shapes
    if place not in shapes:
        statement = table.delete() if columns is None else table.update().values(expressions)
        shape = _by_key(statement, mapper, sets, dialect)
        shapes[place] = replace(shape, expressions=expressions, locked=locked)
    found: Shape = shapes[place]
    return found


def _by_key(
    statement: Any, mapper: Mapper[Any], sets: dict[str, sa.Column[Any]], dialect: sa.Dialect
) -> Shape:
    table, version = statement.table, facts(mapper).version
    key_columns = [c for c in mapper.primary_key if isinstance(c, sa.Column) and c.table is table]
    if len(key_columns) < len(mapper.primary_key) or {*key_columns} == {*table.primary_key}:
        key_columns = list(table.primary_key)
    keys = tuple(Match(c, f"optilock_key_{i}") for i, c in enumerate(key_columns))
    conditions: tuple[Match, ...] = ()
    if isinstance(version, sa.Column) and version.table is table:
        conditions = (Match(version, "optilock_expected"),)
    compared = (*conditions, *keys)
    statement = statement.where(*(one.clause(parameter) for one in compared))
    names = frozenset({*sets, *(one.parameter for one in compared)})
    prefetch, postfetch = _computed(statement, names, dialect)
    return Shape(
        statement=statement,
        group=statement,
        table=table,
        mapper=mapper,
        keys=keys,
        token=compared[0],
        conditions=conditions,
        sets=sets,
        prefetch=prefetch,
        postfetch=postfetch,
        sent_individually=bool(values_of(statement))
        or not _columns_in_order(table).isdisjoint(sets.values()),
    )


def compared_columns(statement: sa.Update | sa.Delete) -> dict[sa.Column[Any], str] | None:
    """Return the parameters by column of a WHERE made of ``column = :parameter`` only."""
    where = statement.whereclause
    clauses = where.clauses if isinstance(where, sa.BooleanClauseList) else [where]
    found: dict[sa.Column[Any], str] = {}
    for clause in clauses:
        if not (
            isinstance(clause, sa.BinaryExpression)
            and clause.operator is operators.eq
            and isinstance(clause.left, sa.Column)
            and isinstance(clause.right, sa.BindParameter)
        ):
            return None
        found[clause.left] = clause.right.key
    return found


def _sets(
    statement: sa.Update | sa.Delete, table: sa.Table, names: frozenset[str], where: set[str]
) -> dict[str, sa.Column[Any]]:
    if isinstance(statement, sa.Delete):
        return {}
    return {name: table.c[name] for name in sorted(names - where)}


def _commuting(
    mapper: Mapper[Any], sets: Mapping[str, sa.Column[Any]], changed: set[sa.Column[Any]]
) -> Mapping[str, sa.Column[Any]]:
    """Return the columns, by parameter, that may get the difference, if only they change."""
    commuting = facts(mapper).commuting
    if not commuting or not changed or not changed <= commuting.intersection(sets.values()):
        return {}
    return {name: column for name, column in sets.items() if column in commuting}


def _keep_version(statement: sa.Update, mapper: Mapper[Any], token: sa.Column[Any]) -> sa.Update:
    """Keep the version in ``post_update`` of a new row, whose object would not get a new one."""
    if token.onupdate is None or not callable(mapper.version_id_generator):
        return statement
    return statement.values({token: token})


def _computed(
    statement: sa.Update | sa.Delete, names: frozenset[str], dialect: sa.Dialect
) -> tuple[tuple[sa.Column[Any], ...], tuple[sa.Column[Any], ...]]:
    """Return the columns computed by Python at the moment of writing, and by the database."""
    if isinstance(statement, sa.Delete):
        return (), ()
    compiled: Any = statement.compile(dialect=dialect, column_keys=sorted(names))
    return tuple(compiled.prefetch), tuple(compiled.postfetch)


def _columns_in_order(table: sa.Table) -> set[sa.Column[Any]]:
    """Return columns with row-by-row uniqueness: ``u = u - 1`` must run in the given order."""
    found: set[sa.Column[Any]] = {column for column in table.columns if column.unique}
    for constraint in table.constraints:
        unique = isinstance(constraint, (sa.PrimaryKeyConstraint, sa.UniqueConstraint))
        if isinstance(constraint, ColumnCollectionConstraint) and (
            unique or constraint.__visit_name__ == "exclude_constraint"  # PostgreSQL's
        ):
            found.update(constraint.columns)
    for index in table.indexes:
        if index.unique:
            found.update(column for column in index.columns if isinstance(column, sa.Column))
    return found
