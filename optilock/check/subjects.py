"""What is looked at: mapped classes, the tables behind them, and what the database has of these.

Each table is looked at once, however many classes share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sqlalchemy import Column, Connection, Integer, Table, Uuid, inspect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapper, registry

from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.rollout.report import command
from optilock.schema import expected
from optilock.tokens import Counter, Token, Unique


@dataclass(frozen=True)
class Subject:
    """A table, and the class that says most about it."""

    table: Table
    mapper: Mapper[Any]
    #: The version's column, if it is one of this table.
    version: Column[Any] | None

    @property
    def name(self) -> str:
        """The class, by its name."""
        return str(self.mapper.class_.__name__)

    @property
    def roll_out(self) -> str:
        """What to do for a version that is not there, or not in every row."""
        wanted = expected([self.table]).get(self.table)
        token = _native(self.version) if wanted is None else wanted.token
        guard = None if wanted is None else wanted.guard
        found = token and command(self.table.name, self.table.schema, token, guard)
        return f"Run {found}" if found else "Write a migration of your own"


def _native(version: Column[Any] | None) -> Token | None:
    """The token whose column SQLAlchemy's own ``version_id_col`` is like."""
    if version is None or not isinstance(version.type, (Integer, Uuid)):
        return None
    kind = Counter if isinstance(version.type, Integer) else Unique
    return kind(column=version.name)


def subjects_of(mappers: Iterable[Mapper[Any]]) -> list[Subject]:
    """The tables of these classes, and those of their many-to-many relationships."""
    found: dict[Table, Subject] = {}
    known = sorted(mappers, key=lambda mapper: len(tuple(mapper.iterate_to_root())))
    for mapper in known:
        for table in mapper.tables:
            if not isinstance(table, Table):
                continue  # a query
            version = mapper.version_id_col
            mine = version if isinstance(version, Column) and version.table is table else None
            if table not in found or (mine is not None and found[table].version is None):
                found[table] = Subject(table, mapper, mine)
    for mapper in known:
        for relationship in mapper.relationships:
            if isinstance(relationship.secondary, Table):
                found.setdefault(
                    relationship.secondary, Subject(relationship.secondary, mapper, None)
                )
    return sorted(found.values(), key=lambda subject: (subject.name, subject.table.fullname))


def mappers_of(models: Any) -> list[Mapper[Any]]:
    """The mappers, configured, by the names of their classes.

    Raises:
        ConfigurationError: there is none, or they do not fit together.
    """
    found = dict.fromkeys(_mappers(models))
    if not found:
        raise ConfigurationError(
            f"{_name_of(models)} has no mapped classes: name the module or the declarative base"
            " that has the application's models."
        )
    _configure({mapper.registry for mapper in found})
    return sorted(found, key=lambda mapper: (mapper.class_.__module__, mapper.class_.__qualname__))


def _configure(registries: Iterable[registry]) -> None:
    """As the first query would: relationships that lead nowhere are found here."""
    try:
        for known in registries:
            known.configure(cascade=True)
    except SQLAlchemyError as error:
        raise ConfigurationError(
            f"The models cannot be used: {error}. Import all modules that have models, or name"
            " them all."
        ) from error


def _mappers(models: Any) -> Iterator[Mapper[Any]]:
    if isinstance(models, registry):
        yield from models.mappers
    elif isinstance(models, ModuleType):
        for value in vars(models).values():
            if isinstance(value, (registry, type)):
                yield from _mappers(value)
    elif isinstance(models, type):
        yield from _of_class(models)
    elif isinstance(models, Iterable) and not isinstance(models, (str, bytes)):
        for one in models:
            yield from _mappers(one)


def _of_class(cls: type[Any]) -> Iterator[Mapper[Any]]:
    mapper = inspect(cls, raiseerr=False)
    known = getattr(cls, "registry", None)
    if isinstance(mapper, Mapper):
        yield mapper
    elif isinstance(known, registry):
        yield from known.mappers


def _name_of(models: Any) -> str:
    return getattr(models, "__name__", None) or type(models).__name__


@dataclass(frozen=True)
class StoredTable:
    """A table, or a view, as the database has it."""

    #: Name -> what SQLAlchemy's inspector says of the column.
    columns: Mapping[str, Any]
    #: Sets of columns that name one row: the primary key, unique constraints and unique indexes.
    keys: tuple[frozenset[str], ...]
    is_view: bool
    #: Do two names that differ in case only name two columns?
    cased: bool

    def column(self, column: Column[Any]) -> Any | None:
        """What there is of a mapped column."""
        return self.columns.get(self.name(column.name))

    def name(self, name: str) -> str:
        return name if self.cased else name.lower()


def schema_of(connection: Connection, table: Table) -> str | None:
    """The schema in which this connection looks for the table (``schema_translate_map``)."""
    return connection.schema_for_object(table)


def stored_table(connection: Connection, table: Table) -> StoredTable | None:
    """What there is of a mapped table; None if there is nothing."""
    seen, where = inspect(connection), {"schema": schema_of(connection, table)}
    is_view = False
    if not seen.has_table(table.name, **where):
        return None
    if table.name in seen.get_view_names(**where):
        is_view = True
    cased = database_of(connection.dialect).cased_columns
    columns = seen.get_columns(table.name, **where)
    keys = [] if is_view else _keys(seen, table.name, where)
    return StoredTable(
        {c["name"] if cased else c["name"].lower(): c for c in columns},
        tuple(frozenset(n if cased else n.lower() for n in key) for key in keys if key),
        is_view,
        cased,
    )


def _keys(seen: Any, name: str, where: Mapping[str, Any]) -> list[list[str]]:
    found = [seen.get_pk_constraint(name, **where)["constrained_columns"]]
    found += [one["column_names"] for one in seen.get_unique_constraints(name, **where)]
    for index in seen.get_indexes(name, **where):
        if index["unique"] and None not in index["column_names"] and not _is_partial(index):
            found.append(index["column_names"])
    return found


def _is_partial(index: Mapping[str, Any]) -> bool:
    """One that holds for some rows only."""
    return any(name.endswith("_where") for name in index.get("dialect_options", ()))
