"""The subjects of the checks: mapped classes, their tables, and the stored tables.

Each table is checked once, also if several classes share it. The stored tables of a schema are read
together, so the number of tables costs no statements. If the database refuses to show some of them
they are read one by one, and only those are unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Integer, Table, Uuid, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Mapper, registry

from optilock._mapping.triggers import trigger_name
from optilock._versioned import ExpectedTable, expected_tables
from optilock.check.findings import Finding, error, unreadable_finding
from optilock.dialects import database_of
from optilock.dialects.base import Database
from optilock.dialects.catalogue import StoredColumn, StoredTable
from optilock.dialects.migrations import Found, GuardTriggers
from optilock.errors import ConfigurationError
from optilock.rollout.report import command
from optilock.tokens import Token
from optilock.tokens.base import kinds


@dataclass(frozen=True)
class Subject:
    """A table, and the most informative class over it."""

    table: Table
    mapper: Mapper[Any]
    #: The version's column, if it is one of this table.
    version: Column[Any] | None
    #: The column and triggers that it should have, if optilock's mixin gives it a version.
    wanted: ExpectedTable | None = None

    @property
    def name(self) -> str:
        """The name of the class."""
        return str(self.mapper.class_.__name__)

    @property
    def counts(self) -> bool:
        """Whether each version is one more than the last."""
        token = _native(self.version) if self.wanted is None else self.wanted.token
        return token is not None and token.counts

    @property
    def roll_out(self) -> str:
        """Advice for a version that is missing, at all or in some rows."""
        token = _native(self.version) if self.wanted is None else self.wanted.token
        guard = None if self.wanted is None else self.wanted.guard
        found = token and command(self.table.name, self.table.schema, token, guard)
        return f"Run {found}" if found else "Write a migration of your own"


def _native(version: Column[Any] | None) -> Token | None:
    """Return the token with a column like SQLAlchemy's own ``version_id_col``."""
    if version is None or not isinstance(version.type, (Integer, Uuid)):
        return None
    likely = (
        kind for kind in kinds() if kind.told_by_type and kind.in_column("version").accepts(version)
    )
    kind = next(likely, None)
    return None if kind is None else kind(column=version.name)


def subjects_of(mappers: Iterable[Mapper[Any]]) -> list[Subject]:
    """Return the tables of these classes, and those of their many-to-many relationships."""
    found: dict[Table, Subject] = {}
    in_order = sorted(mappers, key=lambda mapper: len(tuple(mapper.iterate_to_root())))
    for mapper in in_order:
        for subject in _own_tables(mapper):
            other = found.get(subject.table)
            if other is None or (subject.version is not None and other.version is None):
                found[subject.table] = subject
    for mapper in in_order:
        for relationship in mapper.relationships:
            table = relationship.secondary
            if isinstance(table, Table):
                found.setdefault(table, Subject(table, mapper, None))
    wanted = expected_tables(found)
    subjects = (replace(subject, wanted=wanted.get(table)) for table, subject in found.items())
    return sorted(subjects, key=lambda subject: (subject.name, subject.table.fullname))


def _own_tables(mapper: Mapper[Any]) -> Iterator[Subject]:
    version = mapper.version_id_col
    for table in mapper.tables:
        if isinstance(table, Table):  # not a query
            is_here = isinstance(version, Column) and version.table is table
            yield Subject(table, mapper, version if is_here else None)  # type: ignore[arg-type]


def mappers_of(models: Any) -> list[Mapper[Any]]:
    """Return the configured mappers, sorted by the names of their classes.

    Raises:
        ConfigurationError: there is none, or they cannot be configured.
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
    """Configure mappers as the first query would, which finds broken relationships."""
    try:
        for one in registries:
            one.configure(cascade=True)
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
    of_base = getattr(cls, "registry", None)
    if isinstance(mapper, Mapper):
        yield mapper
    elif isinstance(of_base, registry):
        yield from of_base.mappers


def _name_of(models: Any) -> str:
    return getattr(models, "__name__", None) or type(models).__name__


# -- what the database has of the tables -------------------------------------------------------


@dataclass(frozen=True)
class CheckedTable:
    """A table of the mapping, and the stored table."""

    subject: Subject
    stored: StoredTable
    triggers: tuple[Found, ...]
    #: The schema where the connection finds the table (``schema_translate_map``).
    schema: str | None
    dialect: Dialect

    @property
    def table(self) -> Table:
        return self.subject.table

    @property
    def name(self) -> str:
        """The table's name with its schema, as in the mapping."""
        return self.table.fullname

    @property
    def database(self) -> Database:
        return database_of(self.dialect)

    @property
    def guards(self) -> GuardTriggers:
        return self.database.guard_triggers(self.dialect)

    def column(self, column: Column[Any]) -> StoredColumn | None:
        """Return the stored column of a mapped one."""
        return self.stored.column(column.name)

    def trigger(self, name: str) -> Found | None:
        return next((one for one in self.triggers if one.name == name), None)

    @property
    def version(self) -> tuple[str, Column[Any], StoredColumn] | None:
        """The version's full name, mapped and stored column, if the table has both."""
        mapped = self.subject.version
        there = None if mapped is None or mapped.system else self.column(mapped)
        return None if mapped is None or there is None else (self.of(mapped), mapped, there)

    def of(self, column: Column[Any]) -> str:
        """Return the column's name with its table's."""
        return f"{self.name}.{column.name}"


@dataclass(frozen=True)
class ReadTables:
    """The result of reading the catalogue."""

    seen: tuple[CheckedTable, ...]
    findings: tuple[Finding, ...]

    def stored(self) -> dict[Table, StoredTable]:
        return {one.table: one.stored for one in self.seen}


def read_tables(connection: Connection, subjects: Iterable[Subject]) -> ReadTables:
    """Read the stored tables of ``subjects``."""
    by_schema: dict[str | None, list[Subject]] = {}
    for subject in subjects:
        schema = connection.schema_for_object(subject.table)
        by_schema.setdefault(schema, []).append(subject)
    read = [one for item in by_schema.items() for one in _of_schema(connection, *item)]
    seen = tuple(one for one in read if isinstance(one, CheckedTable))
    return ReadTables(seen, tuple(one for one in read if isinstance(one, Finding)))


def _of_schema(
    connection: Connection, schema: str | None, subjects: list[Subject]
) -> Iterator[CheckedTable | Finding]:
    try:
        yield from list(_read(connection, schema, subjects))
    except DBAPIError as refusal:
        connection.rollback()
        if len(subjects) == 1:
            yield unreadable_finding(subjects[0].table.fullname, refusal)
            return
        for subject in subjects:
            yield from _of_schema(connection, schema, [subject])


def _read(
    connection: Connection, schema: str | None, subjects: list[Subject]
) -> Iterator[CheckedTable | Finding]:
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
        yield CheckedTable(subject, stored, (*shown, *hidden), schema, dialect)


def _hidden(
    connection: Connection,
    kind: GuardTriggers,
    subject: Subject,
    schema: str | None,
    shown: set[str],
) -> Iterator[Found]:
    """Yield triggers that the table should have and the catalogue does not show to this user."""
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
