"""The table that will get a version, as the database has it now, and the triggers it lacks.

A token made by the database (``RowVersion``) has a trigger. A guard trigger is made on request: for
an UPDATE by a program without optilock it moves the version, or refuses the UPDATE. Both are made
before the rows are filled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import NoSuchTableError

from optilock._mapping.triggers import keys_without_rowid, trigger_ddl, trigger_name
from optilock.dialects import database_of
from optilock.dialects.migrations import Found, GuardTriggers, Target, Ways
from optilock.errors import ConfigurationError
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy

#: In ``info`` of a reflected column: its default, as the database writes it.
DEFAULT = "optilock_default"
_GENERATED = "optilock_generated"


def target_of(connection: sa.Connection, name: str, schema: str | None, token: Token) -> Target:
    """Return the table with its version column, if it has one.

    Raises:
        ConfigurationError: there is no such schema or table, it has no primary key, or a column of
            that name is of another type.
    """
    what = name if schema is None else f"{schema}.{name}"
    _require_schema(connection, schema)
    schema = schema or database_of(connection.dialect).rollout().schema_of(connection, name)
    try:
        table = _reflected(connection, name, schema)
    except NoSuchTableError:
        raise ConfigurationError(_unknown(connection, name, schema, what)) from None
    database_of(connection.dialect).tables.complete(connection, table)
    if name in sa.inspect(connection).get_view_names(schema=schema):
        raise ConfigurationError(
            f"{what} is a view: a version belongs to a row, and a view has none of its own. Nothing"
            " was changed; name the table that the view shows."
        )
    if not table.primary_key.columns:
        raise ConfigurationError(
            f"{what} has no primary key: a version belongs to a row that can be named, and the"
            " roll-out goes by the key. Add a primary key first."
        )
    column = table.columns.get(token.column_name)
    if column is not None and not _fits(connection, token, column):
        raise ConfigurationError(
            f"{what}.{column.name} exists and is {column.type!r}, which {type(token).__name__}"
            " cannot use. Nothing was changed. Give the version another name, or drop"
            " the column if it is not needed."
        )
    has_default = column is not None and column.info[DEFAULT] is not None
    return Target(table, token, column, has_default)


def _inspected(connection: sa.Connection) -> tuple[sa.Inspector, Callable[[str], str]]:
    return sa.inspect(connection), database_of(connection.dialect).tables.name_reflected


def _reflected(connection: sa.Connection, name: str, schema: str | None) -> sa.Table:
    """Return the table with columns and key only.

    ``autoload_with`` follows every foreign key to other tables, and fails at a CHECK that is not
    validated, which an interrupted roll-out leaves behind.
    """
    seen, name_of = _inspected(connection)
    columns = [
        sa.Column(
            name_of(found["name"]),
            found["type"],
            nullable=found["nullable"],
            comment=found.get("comment"),
            info={DEFAULT: found["default"], _GENERATED: "computed" in found},
        )
        for found in seen.get_columns(name, schema=schema)
    ]
    keys = seen.get_pk_constraint(name, schema=schema)["constrained_columns"]
    key = sa.PrimaryKeyConstraint(*map(name_of, keys))
    return sa.Table(name, sa.MetaData(), *columns, key, schema=schema)


def require_present(target: Target | None, table: str) -> None:
    """Refuse a table that does not have the version's column."""
    if target is not None and target.column is None:
        names = ", ".join(target.table.columns.keys())
        raise ConfigurationError(
            f"There is no column {table}.{target.name}. Nothing was changed. {table} has: {names}."
        )


def _fits(connection: sa.Connection, token: Token, column: sa.Column[Any]) -> bool:
    if token.accepts(column):
        return True
    dialect = connection.dialect
    return column.type.compile(dialect).upper() == token.type().compile(dialect).upper()


def _require_schema(connection: sa.Connection, schema: str | None) -> None:
    if schema is None or schema in (names := sa.inspect(connection).get_schema_names()):
        return
    raise ConfigurationError(
        f"There is no schema {schema!r} in this database. Nothing was changed. There are:"
        f" {', '.join(names)}."
    )


def _unknown(connection: sa.Connection, name: str, schema: str | None, what: str) -> str:
    names = sa.inspect(connection).get_table_names(schema=schema)
    near = [one for one in names if one.lower() == name.lower()]
    hint = f" There is {near[0]!r}: names are case-sensitive." if near else ""
    within, _, bare = name.rpartition(".")
    if schema is None and within and sa.inspect(connection).has_table(bare, schema=within):
        hint = (
            f" There is {bare!r} in the schema {within!r}: name the two by themselves, the schema"
        )
        hint += " with schema= (--schema)."
    return (
        f"There is no table {what!r} in this database.{hint} Nothing was changed; look at the name,"
        " the schema and the URL."
    )


# -- names, and columns of another meaning, are refused before anything is changed ---------------
#
# A column that is there already is filled and becomes NOT NULL, so it must be a version that an
# earlier roll-out began. A key, a reference, a unique or generated column is no version, nor is a
# number with another default than a first version. Values under a name of the caller's choosing are
# versions only if the column has such a default, which the roll-out sets before it fills any row.
# (SQLite has no such step, so this is not checked there.)


def require_name(ways: Ways, token: Token) -> None:
    """Refuse an empty name, and one that the database would cut."""
    name = token.column_name
    if not name.strip() or "\0" in name or not ways.takes_name(name):
        raise ConfigurationError(
            f"The column cannot be called {name!r}: this database takes names of 1 to"
            f" {ways.longest_name} {ways.letters}. Nothing was changed."
        )


def require_all_rows(connection: sa.Connection, ways: Ways, target: Target) -> None:
    """Refuse a user with hidden rows: they would get no version."""
    if ways.hides_rows(connection, target):
        raise ConfigurationError(
            f"Row-level security may hide rows of {target.table.fullname} from this user, and they"
            " would get no version. Nothing was changed: run this as a user without that"
            " restriction (BYPASSRLS, or the table's owner without FORCE ROW LEVEL SECURITY)."
        )


def require_version(connection: sa.Connection, ways: Ways, target: Target) -> None:
    """Refuse an existing column with another meaning."""
    if target.column is None:
        return
    why = next(_other_meanings(connection, ways, target), None)
    if why is not None:
        raise ConfigurationError(
            f"{target.table.fullname}.{target.name} exists and is no version: {why}. Nothing was"
            " changed. Give the version another name."
        )


def _other_meanings(connection: sa.Connection, ways: Ways, target: Target) -> Iterator[str]:
    name, table, schema = target.name, target.table.name, target.table.schema
    if name in target.table.primary_key.columns:
        yield "it belongs to the primary key"
    inspector, name_of = _inspected(connection)
    keys = inspector.get_foreign_keys(table, schema)
    if any(name in map(name_of, key["constrained_columns"]) for key in keys):
        yield "it refers to another table"
    if any(name in columns for columns in _unique_keys(connection, target.table)):
        yield "it is unique"
    columns = inspector.get_columns(table, schema)
    [found] = [one for one in columns if name_of(one["name"]) == name]
    if found.get("computed") or found.get("identity"):
        yield "the database makes its values"
    yield from _other_values(connection, ways, target)


def _unique_keys(connection: sa.Connection, table: sa.Table) -> Iterator[Sequence[str | None]]:
    inspector, name_of = _inspected(connection)
    unique: list[Any] = [
        *inspector.get_unique_constraints(table.name, table.schema),
        *(one for one in inspector.get_indexes(table.name, table.schema) if one["unique"]),
    ]
    for one in unique:
        yield [None if name is None else name_of(name) for name in one["column_names"]]


def _other_values(connection: sa.Connection, ways: Ways, target: Target) -> Iterator[str]:
    default, first = target.version.info[DEFAULT], ways.first_of(target.token)
    counts = isinstance(target.token.type(), sa.Integer)
    if counts and default is not None and _number(default) != _number(first):
        yield f"its default is {default}, and the first version is {first}"
    chosen = target.name != Counter().column_name
    if chosen and default is None and target.version.nullable and not ways.makes_tables_anew:
        some = sa.select(target.keys[0]).where(target.version.is_not(None)).limit(1)
        if connection.execute(some).first() is not None:
            yield f"it has values and no default (of a version that was begun it is {first})"


def _number(default: str) -> str:
    """Return a default without casts and quotes: ``1`` for ``'1'::bigint``."""
    return re.sub(r"::[\w ]+$", "", default.strip("() ")).strip("'() ")


# -- triggers ------------------------------------------------------------------------------------


def guard_of(
    table: str, token: Token, schema: str | None, policy: Policy | None, ignore: Iterable[str]
) -> GuardTrigger | None:
    """Return the guard trigger to create, if one is requested.

    Raises:
        ConfigurationError: an unknown policy, or a token that a trigger cannot move.
    """
    # A text stays a text: GuardTrigger refuses it.
    ignored: Any = ignore if isinstance(ignore, str) else tuple(ignore)
    if policy is not None:
        return GuardTrigger(table, token, policy, ignored, schema=schema)
    if ignored:
        raise ConfigurationError(
            f"ignore={ignored!r} without guard=: it is the guard trigger that ignores columns."
            " Write guard='bump' or guard='reject' beside it."
        )
    return None


@dataclass(frozen=True)
class MissingTrigger:
    """A missing trigger: the name of its step, and its statements."""

    step: str
    statements: tuple[str, ...]


def missing_triggers(
    connection: sa.Connection, target: Target, guard: GuardTrigger | None
) -> tuple[MissingTrigger, ...]:
    """Return the triggers that the table lacks, or has switched off."""
    triggers = database_of(connection.dialect).guard_triggers(connection.dialect)
    found = [
        one
        for one in triggers.found(connection, target.table.schema)
        if one.table == target.table.name and one.enabled
    ]
    return (*_of_the_token(connection, target, found), *_guarding(triggers, target, guard, found))


def _of_the_token(
    connection: sa.Connection, target: Target, found: list[Found]
) -> tuple[MissingTrigger, ...]:
    if not target.token.has_trigger:
        return ()
    wanted = trigger_name(target.table.name, target.name)
    if any(one.name == wanted for one in found):
        return ()
    ddl = trigger_ddl(target.table, target.version, connection.dialect)
    return (MissingTrigger("create its trigger", (*ddl.drop, *ddl.create)),)


def _guarding(
    triggers: GuardTriggers, target: Target, guard: GuardTrigger | None, found: list[Found]
) -> tuple[MissingTrigger, ...]:
    if guard is None:
        return ()
    guard = complete_guard(guard, target)
    made = triggers.source(guard), triggers.fires(guard)
    if any(one.name == guard.name and one.is_made_by(*made) for one in found):
        return ()
    return (MissingTrigger("create the guard trigger", triggers.create(guard)),)


def complete_from_table(guard: GuardTrigger, target: Target) -> GuardTrigger:
    """Return the guard trigger completed with the table's columns."""
    names = require_guarded_columns(guard, target)
    generated = (c.name for c in target.table.columns if c.info.get(_GENERATED))
    guard = replace(
        guard, schema=target.table.schema, keys=keys_without_rowid(target.table)
    ).ignoring(generated, names)
    if guard.ignore and not guard.columns:
        return replace(guard, columns=tuple(n for n in names if n not in guard.ignore))
    return guard


def complete_guard(guard: GuardTrigger, target: Target | None) -> GuardTrigger:
    """Return the guard trigger completed with the columns that count and the key.

    Without a database (``target`` is None) the trigger must name them already.

    Raises:
        ConfigurationError: no such column.
    """
    if target is not None:
        require_present(target, guard.table)
        guard = complete_from_table(guard, target)
    elif guard.ignore and not guard.columns:
        raise ConfigurationError(
            f"The guard trigger of {guard.table} ignores columns, so it has to name those that"
            " count: say which, columns=[...], where there is no database (--sql). Without"
            " them it would be another trigger than the one that is made on a connection."
        )
    return guard


def require_counted(guard: GuardTrigger, target: Target) -> None:
    """Refuse ``columns`` that differ from the table's: they would make another trigger."""
    if not guard.columns:
        return
    whole = complete_from_table(replace(guard, columns=()), target)
    counted = whole.columns or tuple(sorted(_other_columns(guard, target)))
    if guard.columns != counted:
        raise ConfigurationError(
            f"columns={list(guard.columns)} of the roll-out of {guard.table}, and the columns of"
            f" the table that count are {list(counted)}: a script (--sql) would make another"
            " trigger. Nothing was changed."
        )


def require_guarded_columns(guard: GuardTrigger, target: Target) -> list[str]:
    """Return the columns besides the version; refuse a guard trigger that names another one."""
    names = _other_columns(guard, target)
    for name in (*guard.ignore, *guard.columns):
        if name not in names:
            raise ConfigurationError(
                f"The guard trigger of {guard.table} names the column {name!r}, which the"
                f" table does not have. Nothing was changed. It has: {', '.join(names)}."
            )
    return names


def _other_columns(guard: GuardTrigger, target: Target) -> list[str]:
    return [column.name for column in target.table.columns if column.name != guard.column]


def look_at_table(
    connection: sa.Connection,
    ways: Ways,
    table: str,
    schema: str | None,
    token: Token,
    guard: GuardTrigger | None = None,
) -> Target:
    """Return the table with its version column, after all checks of a roll-out.

    Raises:
        ConfigurationError: the table cannot have the version.
    """
    ways.first_of(token)
    require_name(ways, token)
    target = target_of(connection, table, schema, token)
    require_version(connection, ways, target)
    ways.check(target)
    if guard is not None:
        require_guarded_columns(guard, target)
    require_all_rows(connection, ways, target)
    return target


def require_column(token: object) -> None:
    """Refuse anything but a token that needs a column."""
    if not isinstance(token, Token):
        raise ConfigurationError(
            f"roll_out() got {token!r}, which has no column: name a token that has, Counter() or"
            " Unique()."
        )
    if token.is_system:
        raise ConfigurationError(
            f"{token!r} is a column that every table of PostgreSQL has: nothing has to be rolled"
            " out. Map the class with it, and be done."
        )
