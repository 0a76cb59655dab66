"""How a version column is put on a table, changed and dropped, online and as text.

The difference between the databases is whether they give a default that differs from row to row to
the rows that are there: PostgreSQL and MariaDB do, in one statement; SQLite makes a new table
(:mod:`optilock.dialects.sqlite.rollout`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from alembic.operations import Operations
from sqlalchemy import Column, MetaData, Table, literal_column, text, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from optilock.dialects import database_of
from optilock.dialects.quoting import plain, quoted, quoted_table
from optilock.dialects.rollout import Target, Ways
from optilock.errors import ConfigurationError, OptilockError
from optilock.mapping.triggers import trigger_name
from optilock.rollout.target import require_present, target_of
from optilock.tokens import Token
from optilock.tokens.guard_trigger import is_guard, read_mark, short_name

__all__ = [
    "add_column",
    "change_column",
    "connection_of",
    "drop_column",
    "look",
    "permitted",
]


def add_column(
    operations: Operations, table: str, schema: str | None, token: Token, fill: str | None
) -> None:
    """The column, filled and NOT NULL."""
    _check_token(token)
    ways = _ways(operations)
    _require_first(ways, table, token, fill)
    target = look(operations, table, schema, token)
    _require_absent(target, table)
    if target is not None:
        ways.check(target)
    with (
        permitted(operations, f"add {table}.{token.column_name}"),
        _taken_back(operations, table, schema, token),
    ):
        _begin(operations, ways, table, token, fill)
        if fill is None and ways.fills_as_it_adds(token):
            operations.add_column(table, _column(ways, token, nullable=False), schema=schema)
        else:
            _require_connection(operations, ways, table, token)
            operations.add_column(table, _column(ways, token, nullable=True), schema=schema)
            _fill(operations, table, schema, token, fill)
            _close(operations, ways, table, schema, token)


def drop_column(operations: Operations, table: str, schema: str | None, token: Token) -> None:
    """The column goes."""
    _check_token(token)
    require_present(look(operations, table, schema, token), table)
    _require_unguarded(operations, table, schema, token)
    with permitted(operations, f"drop {table}.{token.column_name}"):
        operations.drop_column(table, token.column_name, schema=schema)


def change_column(
    operations: Operations,
    table: str,
    schema: str | None,
    old: Token,
    new: Token,
    fill: str | None,
) -> None:
    """Another token in the place of one; a column of the same type keeps its versions.

    Otherwise the new column is there and filled before the old one goes, so that nothing is lost
    where it cannot be made.
    """
    for token in (old, new):
        _check_token(token)
    ways = _ways(operations)
    same = fill is None and _type(operations, old) == _type(operations, new)
    if not same:
        _require_first(ways, table, new, fill)
    require_present(look(operations, table, schema, old), table)
    _require_unguarded(operations, table, schema, old)
    if old.column_name != new.column_name:
        _require_absent(look(operations, table, schema, new), table)
    if same:
        with permitted(operations, f"change {table}.{old.column_name}"):
            _begin(operations, ways, table, new, None)
            _rename(operations, table, schema, old, new)
            if type(old) is not type(new):
                _set_default(operations, table, schema, new)
        return
    added = _beside(new) if old.column_name == new.column_name else new
    _begin(operations, ways, table, new, fill)
    add_column(operations, table, schema, added, fill)
    with _taken_back(operations, table, schema, added):
        drop_column(operations, table, schema, old)
    _rename(operations, table, schema, added, new)


def look(operations: Operations, table: str, schema: str | None, token: Token) -> Target | None:
    """The table as the database has it; None where there is no database (``--sql``)."""
    connection = connection_of(operations)
    return None if connection is None else target_of(connection, table, schema, token)


def connection_of(operations: Operations) -> Connection | None:
    """The connection that is being migrated; None where SQL is only written down."""
    return None if operations.get_context().as_sql else operations.get_bind()


@contextmanager
def permitted(operations: Operations, what: str) -> Iterator[None]:
    """Say in words that the user of the connection may not do that."""
    try:
        yield
    except DBAPIError as error:
        if not database_of(operations.get_context().dialect).forbids(error):
            raise
        raise OptilockError(
            f"The user of this connection may not {what}. Nothing was changed by this operation:"
            " run the migration as the table's owner, or give the user that right."
            + _stays(operations)
        ) from error


def _stays(operations: Operations) -> str:
    if not _ways(operations).commits_each_step:
        return ""
    return (
        " What operations before it in the same revision have done is stored, because"
        f" {operations.get_context().dialect.name} commits each of them: take it back, or go on"
        " from here."
    )


@contextmanager
def _taken_back(
    operations: Operations, table: str, schema: str | None, token: Token
) -> Iterator[None]:
    """Drop the column again if a later step fails and the database has stored the first ones."""
    try:
        yield
    except BaseException:
        if connection_of(operations) is not None and _ways(operations).commits_each_step:
            with suppress(Exception):  # what went wrong first is what the caller has to know
                target = look(operations, table, schema, token)
                if target is not None and target.column is not None:
                    operations.drop_column(table, token.column_name, schema=schema)
        raise


def _begin(operations: Operations, ways: Ways, table: str, token: Token, fill: str | None) -> None:
    connection = connection_of(operations)
    if connection is not None:
        anew = ways.makes_tables_anew and not (fill is None and ways.fills_as_it_adds(token))
        ways.begin_in_migration(connection, table, anew=anew)


def _rename(operations: Operations, table: str, schema: str | None, old: Token, new: Token) -> None:
    if old.column_name == new.column_name:
        return
    dialect = operations.get_context().dialect
    # Spelled out, because alter_column() would make the table anew on SQLite, or want its type.
    operations.execute(
        plain(
            f"ALTER TABLE {quoted_table(dialect, table, schema)}"
            f" RENAME COLUMN {quoted(dialect, old.column_name)}"
            f" TO {quoted(dialect, new.column_name)}"
        )
    )


def _set_default(operations: Operations, table: str, schema: str | None, token: Token) -> None:
    """Another default; the versions stay, because a number must not come twice."""
    ways, name = _ways(operations), token.column_name
    default = ways.default_of(token)
    if not ways.makes_tables_anew:
        operations.alter_column(
            table,
            name,
            existing_type=token.type(),
            existing_nullable=False,
            server_default=False if default is None else text(default),
            schema=schema,
        )
        return
    beside = _beside(token)
    named = Table(table, MetaData(), Column(name), Column(beside.column_name), schema=schema)
    operations.add_column(table, _column(ways, beside, nullable=False), schema=schema)
    operations.execute(update(named).values({beside.column_name: named.c[name]}))
    operations.drop_column(table, name, schema=schema)
    _rename(operations, table, schema, beside, token)


def _fill(
    operations: Operations, table: str, schema: str | None, token: Token, fill: str | None
) -> None:
    if fill is None:
        return  # closing does it
    named = Table(table, MetaData(), Column(token.column_name, token.type()), schema=schema)
    operations.execute(update(named).values({token.column_name: literal_column(fill)}))


def _close(
    operations: Operations, ways: Ways, table: str, schema: str | None, token: Token
) -> None:
    """NOT NULL, and the default; what is NULL gets the default first."""
    target = look(operations, table, schema, token)
    if target is not None and ways.makes_tables_anew:
        for step in ways.require(target, operations.get_context().dialect):
            step(operations.get_bind())
        return
    default = ways.default_of(token)
    operations.alter_column(
        table,
        token.column_name,
        existing_type=token.type(),
        nullable=False,
        server_default=False if default is None else text(default),
        schema=schema,
    )


def _column(ways: Ways, token: Token, *, nullable: bool) -> Column[Any]:
    default = None if nullable else ways.default_of(token)
    return Column(
        token.column_name,
        token.type(),
        nullable=nullable,
        server_default=None if default is None else text(default),
    )


def _require_unguarded(
    operations: Operations, table: str, schema: str | None, token: Token
) -> None:
    """The column would be dropped, and every later UPDATE would fail at the trigger."""
    connection = connection_of(operations)
    if connection is None:
        return
    triggers = database_of(connection.dialect).guard_triggers(connection.dialect)
    for found in triggers.found(connection, schema):
        if found.table != table:
            continue
        if found.name == trigger_name(table, token.column_name):
            raise ConfigurationError(
                f"A trigger moves {table}.{token.column_name}, and without the column every UPDATE"
                " would fail. Nothing was changed: drop it first, with op.drop_version_trigger."
            )
        guard = read_mark(found.read(), table, schema) if is_guard(found.name) else None
        if guard is not None and guard.column == token.column_name:
            raise ConfigurationError(
                f"A guard trigger stands on {table}.{token.column_name}. Nothing was changed: drop"
                " it first, with op.drop_guard_trigger."
            )


def _require_absent(target: Target | None, table: str) -> None:
    if target is not None and target.column is not None:
        raise ConfigurationError(
            f"{table}.{target.name} exists already and is {target.column.type!r}. Nothing was"
            " changed. If a roll-out has made it, this operation has nothing to do: remove it from"
            " the script, or stamp the revision."
        )


def _require_connection(operations: Operations, ways: Ways, table: str, token: Token) -> None:
    if ways.makes_tables_anew and connection_of(operations) is None:
        raise ConfigurationError(
            f"{token!r} cannot be added to {table} as text (--sql) on"
            f" {operations.get_context().dialect.name}, where the table has to be made anew from"
            " what it is: run the migration on the database, or use Counter()."
        )


def _check_token(token: Token) -> None:
    if not isinstance(token, Token) or token.is_system:
        raise ConfigurationError(
            f"{token!r} has no column: name a token that has, for example Counter() or Unique()."
        )


def _require_first(ways: Ways, table: str, token: Token, fill: str | None) -> None:
    if fill is None and ways.default_of(token) is None:
        raise ConfigurationError(
            f"{token!r} cannot make a version for the rows that {table} has already: say which"
            " one, as an SQL expression: fill=\"'first'\". Nothing was changed."
        )


def _beside(token: Token) -> Token:
    """The same under another name, while the old column is still there."""
    beside = copy.copy(token)
    object.__setattr__(beside, "column", short_name(f"optilock_{token.column_name}"))
    return beside


def _ways(operations: Operations) -> Ways:
    return database_of(operations.get_context().dialect).rollout()


def _type(operations: Operations, token: Token) -> str:
    return token.type().compile(operations.get_context().dialect)
