"""The tables of the mapping beside what the database has of them.

All of a schema's are read together, so the number of tables costs no statements. If the database
refuses to show some of them they are read one by one, and only those are unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Table
from sqlalchemy.exc import DBAPIError

from optilock.check.findings import Finding, error, unreadable
from optilock.check.subjects import Subject
from optilock.dialects import database_of
from optilock.dialects.base import Database
from optilock.dialects.catalogue import StoredColumn, StoredTable
from optilock.dialects.migrations import Found, GuardTriggers
from optilock.mapping.triggers import trigger_name


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
