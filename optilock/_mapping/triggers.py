"""The triggers of a ``RowVersion`` and of a guard, made and dropped with their tables.

::

    ddl = trigger_ddl(Item.__table__, Item.__table__.c.version, postgresql.dialect())
    for statement in ddl.create:
        op.execute(statement)

``metadata.create_all()`` and ``drop_all()`` do it themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Column, Dialect, Table, event

from optilock.dialects import database_of
from optilock.dialects.migrations import GuardTriggers, Names, TriggerDDL
from optilock.dialects.values import plain_ddl, quote_name
from optilock.errors import ConfigurationError
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, short_name


def trigger_ddl(
    table: Table, column: Column[Any], dialect: Dialect, *, schema: str | None = None
) -> TriggerDDL:
    """Return the statements that create and drop the trigger which moves ``column`` of ``table``.

    ``schema`` overrides the table's own.

    Raises:
        ConfigurationError: no trigger is known for the database.
    """
    quote = partial(quote_name, dialect)
    schema = schema or table.schema
    prefix = f"{quote(schema)}." if schema else ""
    trigger = quote(trigger_name(table.name, column.name))
    names = Names(
        table=prefix + quote(table.name),
        bare_table=quote(table.name),
        column=quote(column.name),
        trigger=trigger,
        qualified_trigger=prefix + trigger,
        keys=tuple(map(quote, keys_without_rowid(table))),
    )
    made = database_of(dialect).guard_triggers(dialect).of_version(names)
    if made is None:
        raise ConfigurationError(
            f"RowVersion() works on PostgreSQL, MariaDB and SQLite, not on {dialect.name}: use"
            " Counter() or Unique(), which work everywhere."
        )
    return made


def keys_without_rowid(table: Table) -> tuple[str, ...]:
    """Return the primary key of a table without a ``rowid`` on SQLite; otherwise no names."""
    with_rowid = table.dialect_options["sqlite"].get("with_rowid", True)
    return () if with_rowid else tuple(column.name for column in table.primary_key)


def trigger_name(table: str, column: str) -> str:
    """Return the trigger's name, within every database's limit."""
    return short_name(f"{table}_{column}_moves")


def moved_column(table: str, name: str, source: str | None) -> str | None:
    """Return the column that a stored trigger of optilock moves; None for another trigger."""
    found = re.search(r"COALESCE\(OLD\.(.+?), 0\) \+ 1", source or "")
    if found is None:
        return None
    column = found.group(1)
    if column[0] in '"`':
        column = column[1:-1].replace(column[0] * 2, column[0])
    return column if trigger_name(table, column) == name else None


def create_with_table(table: Table, column: Column[Any], token: Token) -> None:
    """Make the token's trigger when ``table`` is created, and drop it before the table is."""
    if token.is_system:
        event.listen(table, "before_create", partial(_require_column, column))
    if token.has_trigger and "optilock_row_version" not in table.info:  # it may be mapped twice
        table.info["optilock_row_version"] = column.key
        event.listen(table, "after_create", _after_create)
        event.listen(table, "before_drop", _before_drop)


def guard_with_table(table: Table, guard: Callable[[], GuardTrigger | None]) -> None:
    """Make the guard trigger of a class when ``table`` is created; drop it before the table is.

    ``guard`` is asked then, when the class has all its columns. A second class of the table
    replaces the trigger by its own.
    """
    event.listen(table, "after_create", partial(_create_guard, guard))
    event.listen(table, "before_drop", partial(_drop_guard, guard))


def _create_guard(guard: Callable[[], Any], table: Table, connection: Any, **_: Any) -> None:
    wanted = _on_table(guard(), table, connection)
    if wanted is not None:
        _run(connection, _guards(connection).create(wanted))


def _drop_guard(guard: Callable[[], Any], table: Table, connection: Any, **_: Any) -> None:
    wanted = _on_table(guard(), table, connection)
    if wanted is not None:
        _run(connection, _guards(connection).drop(wanted))


def _on_table(guard: GuardTrigger | None, table: Table, connection: Any) -> GuardTrigger | None:
    """Return the same for the table, which may be a copy in another schema."""
    schema = _schema_of(table, connection)
    return None if guard is None else replace(guard, table=table.name, schema=schema)


def _guards(connection: Any) -> GuardTriggers:
    return database_of(connection.dialect).guard_triggers(connection.dialect)


def _require_column(column: Column[Any], table: Table, connection: Any, **_: Any) -> None:
    """Let the type of a system column refuse a database that has no such column."""
    column.type.dialect_impl(connection.dialect)


def _after_create(table: Table, connection: Any, **_: Any) -> None:
    _run(connection, _ddl_for(table, connection).create)


def _before_drop(table: Table, connection: Any, **_: Any) -> None:
    _run(connection, _ddl_for(table, connection).drop)


def _run(connection: Any, statements: tuple[str, ...]) -> None:
    for statement in statements:
        connection.execute(plain_ddl(statement))


def _ddl_for(table: Table, connection: Any) -> TriggerDDL:
    column = table.c[table.info["optilock_row_version"]]
    return trigger_ddl(table, column, connection.dialect, schema=_schema_of(table, connection))


def _schema_of(table: Table, connection: Any) -> str | None:
    found: str | None = getattr(connection, "schema_for_object", lambda one: one.schema)(table)
    return found
