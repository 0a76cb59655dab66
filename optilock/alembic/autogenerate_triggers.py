"""Autogenerate for triggers: missing, superfluous, disabled or different from the mapping's.

Alembic does not compare triggers. Triggers are dropped before the tables are changed, because
SQLite drops no column that a trigger names, and created afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import (
    DropColumnOp,
    DropTableOp,
    MigrateOperation,
    ModifyTableOps,
    UpgradeOps,
)
from sqlalchemy import Connection, Table

from optilock._mapping.scope_triggers import scope_trigger_of
from optilock._mapping.triggers import moved_column, trigger_ddl, trigger_name
from optilock._versioned import ExpectedTable
from optilock.alembic import operations as op
from optilock.alembic.change_notices import AddChangeNotice, DropChangeNotice
from optilock.alembic.scope_triggers import CreateScopeTrigger, DropScopeTrigger
from optilock.alembic.version_column import ChangeVersionColumn
from optilock.dialects import database_of
from optilock.dialects.change_notices import ChangeNotice, is_notice
from optilock.dialects.migrations import Found, GuardTriggers
from optilock.dialects.scope_triggers import read_scope_mark
from optilock.tokens import Counter, RowVersion
from optilock.tokens.guard_trigger import GuardTrigger, is_guard, read_mark

#: A table as Alembic names it: the default schema is None.
Key = tuple[str | None, str]


def add_trigger_operations(
    context: AutogenContext,
    upgrade: UpgradeOps,
    wanted: dict[Key, ExpectedTable],
    schemas: Iterable[str | None],
) -> None:
    """Put the operations on triggers around those of ``upgrade``."""
    assert context.dialect is not None
    assert context.connection is not None
    triggers = database_of(context.dialect).guard_triggers(context.dialect)
    comparison = _Comparison(triggers, context.connection)
    stored = _stored(context, comparison.triggers, schemas)
    tables = (key_of(context, table) for table in tables_of(context))
    keys = {*wanted, *tables, *_dropped(upgrade)}
    guards = {key: both for key, *both in _guards(comparison, wanted, _dropped_columns(upgrade))}
    remade, without_default = _remade(context, upgrade), _without_default(context, wanted)
    for key in sorted(keys, key=lambda key: (key[0] or "", key[1])):
        found, expected = stored.get(key, []), wanted.get(key)
        comparison.guard(key, found, guards.get(key, []), key in remade)
        name = comparison.version(key, found, expected, without_default, key in remade)
        comparison.drop_others(key, found, name)
        comparison.scopes(key, found, expected, key in remade)
        comparison.notices(key, found, expected)
    upgrade.ops[:] = [*comparison.before, *upgrade.ops, *comparison.after]


@dataclass
class _Comparison:
    triggers: GuardTriggers
    connection: Connection
    before: list[MigrateOperation] = field(default_factory=list)
    after: list[MigrateOperation] = field(default_factory=list)

    def guard(
        self, key: Key, found: list[Found], possible: Sequence[GuardTrigger], remade: bool
    ) -> None:
        """Compare the guard trigger: the first of ``possible``, or one like another of them."""
        schema, table = key
        wanted = next(iter(possible), None)
        stored = self._stored_guard(key, found, wanted)
        if stored is not None and not (stored.of_parent and wanted is None):
            if self._is_one_of(stored, possible) and stored.enabled and not remade:
                return
            old = read_mark(stored.read(), table, schema) or wanted
            if old is not None:
                self.before.append(op.DropGuardTrigger(old))
        if wanted is not None:
            self.after.append(op.CreateGuardTrigger(wanted))

    def _stored_guard(
        self, key: Key, found: list[Found], wanted: GuardTrigger | None
    ) -> Found | None:
        for one in found:
            if is_guard(one.name):
                return one
        return None if wanted is None else self._hidden(key, wanted.name)

    def _is_one_of(self, stored: Found, possible: Sequence[GuardTrigger]) -> bool:
        made = ((self.triggers.source(one), self.triggers.fires(one)) for one in possible)
        return any(stored.is_made_by(*one) for one in made)

    def version(
        self,
        key: Key,
        found: list[Found],
        expected: ExpectedTable | None,
        without_default: set[Key],
        remade: bool,
    ) -> str | None:
        """Compare the trigger of a ``RowVersion``; return the name that it should have."""
        if expected is None or not expected.moves_by_trigger:
            return None
        (schema, table), token = key, expected.token
        wanted = trigger_name(table, expected.column.name)
        there = next((one for one in found if one.name == wanted), None)
        there = there or self._hidden(key, wanted)
        if there is None and key in without_default:
            old = Counter(name=token.name, column=token.column)
            self.after.append(ChangeVersionColumn(table, old, token, schema=schema))
        if there is None or remade or not self._is_same(there, expected, schema):
            if there is not None:
                self.before.append(op.DropVersionTrigger(table, token, schema=schema))
            self.after.append(op.CreateVersionTrigger(table, token, schema=schema))
        return wanted

    def drop_others(self, key: Key, found: list[Found], wanted: str | None) -> None:
        """Drop triggers that move a version, except ``wanted``."""
        schema, table = key
        for one in found:
            column = moved_column(table, one.name, one.source)
            if column is not None and one.name != wanted and not one.of_parent:
                moved = RowVersion() if column == RowVersion().name else RowVersion(column=column)
                self.before.append(op.DropVersionTrigger(table, moved, schema=schema))

    def scopes(
        self, key: Key, found: list[Found], expected: ExpectedTable | None, remade: bool
    ) -> None:
        """Compare the triggers that move scopes."""
        schema, table = key
        wanted = None if expected is None else scope_trigger_of(expected.mapper)
        if wanted is not None:
            wanted = replace(wanted, schema=schema)
        marks = (read_scope_mark(one.source or "", table, schema) for one in found)
        stored = next((one for one in marks if one is not None), None)
        dialect = self.triggers.dialect
        made = database_of(dialect).scope_triggers(dialect)
        if wanted is not None and made.is_made(wanted, found) and not remade:
            return
        if stored is not None:
            self.before.append(DropScopeTrigger(stored))
        if wanted is not None:
            self.after.append(CreateScopeTrigger(wanted))

    def notices(self, key: Key, found: list[Found], expected: ExpectedTable | None) -> None:
        """Compare the triggers that notify of changed rows."""
        schema, table = key
        dialect = self.triggers.dialect
        made = database_of(dialect).change_notices(dialect)
        wanted = expected is not None and expected.mapper.class_.__version_notify__
        if wanted and made.is_made(ChangeNotice(table, schema), found):
            return
        if any(is_notice(one.name) and not one.of_parent for one in found):
            self.before.append(DropChangeNotice(table, schema=schema))
        if wanted:
            self.after.append(AddChangeNotice(table, schema=schema))

    def _hidden(self, key: Key, name: str) -> Found | None:
        schema, table = key
        return self.triggers.hidden(self.connection, table, name, schema)

    def _is_same(self, there: Found, expected: ExpectedTable, schema: str | None) -> bool:
        """Return whether the trigger is enabled and the one that we would create."""
        wanted = trigger_ddl(expected.table, expected.column, self.triggers.dialect, schema=schema)
        return there.enabled and there.is_made_by(wanted.source, wanted.fires)


def _stored(
    context: AutogenContext, triggers: GuardTriggers, schemas: Iterable[str | None]
) -> dict[Key, list[Found]]:
    stored: dict[Key, list[Found]] = {}
    assert context.connection is not None
    for schema in schemas:
        for found in triggers.found(context.connection, schema):
            stored.setdefault((schema, found.table), []).append(found)
    return stored


def _guards(
    comparison: _Comparison, wanted: dict[Key, ExpectedTable], dropped: set[tuple[Key, str]]
) -> Iterator[tuple[Key, GuardTrigger, GuardTrigger]]:
    """Yield each table's wanted guard trigger, and another one that is accepted.

    The accepted one also counts columns of the table that the mapping does not have.
    """
    guards = {key: expected.guard for key, expected in wanted.items()}
    by_schema: dict[str | None, list[str]] = {}
    for (schema, table), guard in guards.items():
        if guard is not None:
            by_schema.setdefault(schema, []).append(table)
    database = database_of(comparison.connection.dialect)
    for schema, tables in by_schema.items():
        stored = database.catalogue(comparison.connection, schema).tables(tables)
        for table in tables:
            guard, columns = guards[schema, table], wanted[schema, table].table.columns
            assert guard is not None
            there = stored[table].columns.values() if table in stored else ()
            kept = (c.name for c in there if ((schema, table), c.name) not in dropped)
            generated = stored[table].generated if table in stored else ()
            mapped = (column.name for column in columns)
            yield (schema, table), *guard.fitting(mapped, kept, generated)


def key_of(context: AutogenContext, table: Table) -> Key:
    """Return the table's key as Alembic names it."""
    assert context.dialect is not None
    default = context.dialect.default_schema_name
    return (None if table.schema == default else table.schema, table.name)


def tables_of(context: AutogenContext) -> list[Table]:
    """Return the tables of the models, without those that ``include_object`` leaves out."""
    return [
        table
        for table in context.table_key_to_table.values()
        if context.run_object_filters(table, table.name, "table", False, None)
    ]


def _dropped(upgrade: UpgradeOps) -> Iterator[Key]:
    """Yield dropped tables: their triggers are named, so that the downgrade creates them."""
    for operation in upgrade.ops:
        if isinstance(operation, DropTableOp):
            yield (operation.schema, str(operation.table_name))


def _dropped_columns(upgrade: UpgradeOps) -> set[tuple[Key, str]]:
    return {
        ((modify.schema, str(modify.table_name)), str(operation.column_name))
        for modify in upgrade.ops
        if isinstance(modify, ModifyTableOps)
        for operation in modify.ops
        if isinstance(operation, DropColumnOp)
    }


def _without_default(context: AutogenContext, wanted: dict[Key, ExpectedTable]) -> set[Key]:
    """Return tables whose version, so far made by Python, will be made by the database."""
    found: set[Key] = set()
    for (schema, table), expected in wanted.items():
        if not expected.moves_by_trigger or not context.inspector.has_table(table, schema=schema):
            continue
        for column in context.inspector.get_columns(table, schema=schema):
            if column["name"] == expected.column.name and column["default"] is None:
                found.add((schema, table))
    return found


def _remade(context: AutogenContext, upgrade: UpgradeOps) -> set[Key]:
    """Return tables that Alembic's batch mode makes again, without their triggers."""
    assert context.dialect is not None
    options: dict[str, Any] = context.opts
    remakes = database_of(context.dialect).rollout.makes_tables_anew
    if not remakes or not options.get("render_as_batch", False):
        return set()
    return {
        (operation.schema, str(operation.table_name))
        for operation in upgrade.ops
        if isinstance(operation, ModifyTableOps)
    }
