"""What is looked at: mapped classes, and the tables behind them.

Each table is looked at once, however many classes share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Integer, Table, Uuid, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Mapper, registry

from optilock.check.findings import Finding, error, unreadable
from optilock.dialects import database_of
from optilock.dialects.base import Database
from optilock.dialects.catalogue import StoredColumn, StoredTable
from optilock.dialects.migrations import Found, GuardTriggers
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import trigger_name
from optilock.rollout.report import command
from optilock.schema import Expected, expected
from optilock.tokens import Counter, Token, Unique


@dataclass(frozen=True)
class Subject:
    """A table, and the class that says most about it."""

    table: Table
    mapper: Mapper[Any]
    #: The version's column, if it is one of this table.
    version: Column[Any] | None
    #: What it should have on account of its version, if optilock's mixin gives it one.
    wanted: Expected | None = None

    @property
    def name(self) -> str:
        """The class, by its name."""
        return str(self.mapper.class_.__name__)

    @property
    def counts(self) -> bool:
        """Is the next version one more?"""
        token = _native(self.version) if self.wanted is None else self.wanted.token
        return token is not None and token.counts

    @property
    def roll_out(self) -> str:
        """What to do for a version that is not there, or not in every row."""
        token = _native(self.version) if self.wanted is None else self.wanted.token
        guard = None if self.wanted is None else self.wanted.guard
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
    wanted = expected(found)
    told = (replace(subject, wanted=wanted.get(table)) for table, subject in found.items())
    return sorted(told, key=lambda subject: (subject.name, subject.table.fullname))


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


# -- what the database has of the tables -------------------------------------------------------
#
# All of a schema's are read together, so the number of tables costs no statements. If the
# database refuses to show some of them they are read one by one, and only those are unreadable.


@dataclass(frozen=True)
class Seen:
    """A table of the mapping, and what there is of it."""

    subject: Subject
    stored: StoredTable
    triggers: tuple[Found, ...]
    #: Where the connection looks for the table (``schema_translate_map``).
    schema: str | None
    dialect: Dialect

    @property
    def table(self) -> Table:
        return self.subject.table

    @property
    def name(self) -> str:
        """With its schema, as the mapping says it."""
        return self.table.fullname

    @property
    def database(self) -> Database:
        return database_of(self.dialect)

    @property
    def guards(self) -> GuardTriggers:
        return self.database.guard_triggers(self.dialect)

    def column(self, column: Column[Any]) -> StoredColumn | None:
        """What there is of a mapped column."""
        return self.stored.column(column.name)

    def trigger(self, name: str) -> Found | None:
        return next((one for one in self.triggers if one.name == name), None)

    @property
    def version(self) -> tuple[str, Column[Any], StoredColumn] | None:
        """The version's column, with its whole name, if it is mapped here and there."""
        mapped = self.subject.version
        there = None if mapped is None or mapped.system else self.column(mapped)
        return None if mapped is None or there is None else (self.of(mapped), mapped, there)

    def of(self, column: Column[Any]) -> str:
        """The column's name, with its table's."""
        return f"{self.name}.{column.name}"


@dataclass(frozen=True)
class Look:
    """What came of reading the catalogue."""

    seen: tuple[Seen, ...]
    findings: tuple[Finding, ...]

    def stored(self) -> dict[Table, StoredTable]:
        return {one.table: one.stored for one in self.seen}


def look_at(connection: Connection, subjects: Iterable[Subject]) -> Look:
    """Read what there is of the tables of ``subjects``."""
    by_schema: dict[str | None, list[Subject]] = {}
    for subject in subjects:
        schema = connection.schema_for_object(subject.table)
        by_schema.setdefault(schema, []).append(subject)
    told = [one for item in by_schema.items() for one in _of_schema(connection, *item)]
    seen = tuple(one for one in told if isinstance(one, Seen))
    return Look(seen, tuple(one for one in told if isinstance(one, Finding)))


def _of_schema(
    connection: Connection, schema: str | None, subjects: list[Subject]
) -> Iterator[Seen | Finding]:
    try:
        yield from list(_read(connection, schema, subjects))
    except DBAPIError as refusal:
        connection.rollback()
        if len(subjects) == 1:
            yield unreadable(subjects[0].table.fullname, refusal)
            return
        for subject in subjects:
            yield from _of_schema(connection, schema, [subject])


def _read(
    connection: Connection, schema: str | None, subjects: list[Subject]
) -> Iterator[Seen | Finding]:
    dialect = connection.dialect
    database = database_of(dialect)
    names = {subject.table.name for subject in subjects}
    tables = database.catalogue(connection, schema).tables(names)
    kind = database.guard_triggers(dialect)
    triggers: dict[str, list[Found]] = {}
    for one in kind.found(connection, schema):
        triggers.setdefault(one.table, []).append(one)
    for subject in subjects:
        stored = tables.get(subject.table.name)
        if stored is None:
            yield _no_table(subject)
            continue
        shown = triggers.get(stored.name, [])
        hidden = _hidden(connection, kind, subject, schema, {one.name for one in shown})
        yield Seen(subject, stored, (*shown, *hidden), schema, dialect)


def _hidden(
    connection: Connection,
    kind: GuardTriggers,
    subject: Subject,
    schema: str | None,
    shown: set[str],
) -> Iterator[Found]:
    """Triggers that there should be, and that are there without being shown to this user."""
    if subject.wanted is None:
        return
    table = subject.table.name
    names = [subject.wanted.guard.name] if subject.wanted.guard else []
    if subject.wanted.moves_by_trigger:
        names.append(trigger_name(table, subject.wanted.column.name))
    for name in names:
        found = None if name in shown else kind.hidden(connection, table, name, schema)
        if found is not None:
            yield found


def _no_table(subject: Subject) -> Finding:
    return error(
        "no-table",
        subject.table.fullname,
        f"The table of {subject.name} is not in this database.",
        "Run the migrations, or look at the URL and the schema.",
    )
