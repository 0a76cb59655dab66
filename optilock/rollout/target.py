"""The table that is to get a version, as the database has it now, and the triggers it lacks.

A token that the database makes (``RowVersion``) has a trigger. A guard trigger is there on request:
it moves the version that a program leaves alone which knows of none, or refuses its UPDATE. Both
are made before the rows are filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    inspect,
    select,
)
from sqlalchemy.exc import NoSuchTableError

from optilock.dialects import database_of
from optilock.dialects.migrations import Found, GuardTriggers, Target, Ways
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import keys_without_rowid, trigger_ddl, trigger_name
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy

#: In ``info`` of a reflected column: its default, as the database writes it.
DEFAULT = "optilock_default"
_GENERATED = "optilock_generated"


def target_of(connection: Connection, name: str, schema: str | None, token: Token) -> Target:
    """Look at the table.

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
    database_of(connection.dialect).complete(connection, table)
    if name in inspect(connection).get_view_names(schema=schema):
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
            " the column if nobody needs it."
        )
    has_default = column is not None and column.info[DEFAULT] is not None
    return Target(table, token, column, has_default)


def _reflected(connection: Connection, name: str, schema: str | None) -> Table:
    """Columns and key. Not more: ``autoload_with`` follows every foreign key to other tables, and
    stumbles over a CHECK that is not validated, which an interrupted roll-out leaves behind."""
    seen = inspect(connection)
    columns = [
        Column(
            found["name"],
            found["type"],
            nullable=found["nullable"],
            comment=found.get("comment"),
            info={DEFAULT: found["default"], _GENERATED: "computed" in found},
        )
        for found in seen.get_columns(name, schema=schema)
    ]
    key = PrimaryKeyConstraint(*seen.get_pk_constraint(name, schema=schema)["constrained_columns"])
    return Table(name, MetaData(), *columns, key, schema=schema)


def require_present(target: Target | None, table: str) -> None:
    """Refuse a table that does not have the version's column."""
    if target is not None and target.column is None:
        known = ", ".join(target.table.columns.keys())
        raise ConfigurationError(
            f"There is no column {table}.{target.name}. Nothing was changed. {table} has: {known}."
        )


def _fits(connection: Connection, token: Token, column: Column[Any]) -> bool:
    if token.accepts(column):
        return True
    dialect = connection.dialect
    return column.type.compile(dialect).upper() == token.type().compile(dialect).upper()


def _require_schema(connection: Connection, schema: str | None) -> None:
    if schema is None or schema in (known := inspect(connection).get_schema_names()):
        return
    raise ConfigurationError(
        f"There is no schema {schema!r} in this database. Nothing was changed. There are:"
        f" {', '.join(known)}."
    )


def _unknown(connection: Connection, name: str, schema: str | None, what: str) -> str:
    known = inspect(connection).get_table_names(schema=schema)
    near = [one for one in known if one.lower() == name.lower()]
    hint = f" There is {near[0]!r}: names are case-sensitive." if near else ""
    within, _, bare = name.rpartition(".")
    if schema is None and within and inspect(connection).has_table(bare, schema=within):
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
    """Refuse a name that the database would cut, or that is none."""
    name = token.column_name
    if not name.strip() or "\0" in name or not ways.takes_name(name):
        raise ConfigurationError(
            f"The column cannot be called {name!r}: this database takes names of 1 to"
            f" {ways.longest_name} {ways.letters}. Nothing was changed."
        )


def require_all_rows(connection: Connection, ways: Ways, target: Target) -> None:
    """Refuse a user who may not see every row: what he does not see would get no version."""
    if ways.hides_rows(connection, target):
        raise ConfigurationError(
            f"Row-level security may hide rows of {target.table.fullname} from this user, and they"
            " would get no version. Nothing was changed: run this as a user whom it does not"
            " concern (BYPASSRLS, or the table's owner unless it says FORCE ROW LEVEL SECURITY)."
        )


def require_version(connection: Connection, ways: Ways, target: Target) -> None:
    """Refuse a column that is there and has another meaning."""
    if target.column is None:
        return
    why = next(_other_meanings(connection, ways, target), None)
    if why is not None:
        raise ConfigurationError(
            f"{target.table.fullname}.{target.name} exists and is no version: {why}. Nothing was"
            " changed. Give the version another name."
        )


def _other_meanings(connection: Connection, ways: Ways, target: Target) -> Iterator[str]:
    name, table, schema = target.name, target.table.name, target.table.schema
    if name in target.table.primary_key.columns:
        yield "it belongs to the primary key"
    seen = inspect(connection)
    if any(name in key["constrained_columns"] for key in seen.get_foreign_keys(table, schema)):
        yield "it refers to another table"
    unique: list[Sequence[str | None]] = [
        one["column_names"] for one in seen.get_unique_constraints(table, schema)
    ]
    unique += [one["column_names"] for one in seen.get_indexes(table, schema) if one["unique"]]
    if any(name in columns for columns in unique):
        yield "it is unique"
    [found] = [one for one in seen.get_columns(table, schema) if one["name"] == name]
    if found.get("computed") or found.get("identity"):
        yield "the database makes its values"
    default, first = target.version.info[DEFAULT], ways.first_of(target.token)
    counts = isinstance(target.token.type(), Integer)
    if counts and default is not None and _number(default) != _number(first):
        yield f"its default is {default}, and the first version is {first}"
    chosen = name != Counter().column_name
    if chosen and default is None and target.version.nullable and not ways.makes_tables_anew:
        some = select(target.keys[0]).where(target.version.is_not(None)).limit(1)
        if connection.execute(some).first() is not None:
            yield f"it has values and no default (of a version that was begun it is {first})"


def _number(default: str) -> str:
    """``'1'::bigint`` -> ``1``"""
    return re.sub(r"::[\w ]+$", "", default.strip("() ")).strip("'() ")


# -- triggers ------------------------------------------------------------------------------------


def guard_of(
    table: str, token: Token, schema: str | None, policy: Policy | None, ignore: Iterable[str]
) -> GuardTrigger | None:
    """The guard trigger that is asked for, if one is.

    Raises:
        ConfigurationError: an unknown policy, or a token that a trigger cannot move.
    """
    # A text stays one: it is refused there, with the right words.
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
class Missing:
    """A trigger that is not there: the name of the step, and its statements."""

    step: str
    statements: tuple[str, ...]


def missing(
    connection: Connection, target: Target, guard: GuardTrigger | None
) -> tuple[Missing, ...]:
    """The triggers that the table should have and has not, or has switched off."""
    triggers = database_of(connection.dialect).guard_triggers(connection.dialect)
    found = [
        one
        for one in triggers.found(connection, target.table.schema)
        if one.table == target.table.name and one.enabled
    ]
    return (*_of_the_token(connection, target, found), *_guarding(triggers, target, guard, found))


def _of_the_token(
    connection: Connection, target: Target, found: list[Found]
) -> tuple[Missing, ...]:
    if not target.token.has_trigger:
        return ()
    wanted = trigger_name(target.table.name, target.name)
    if any(one.name == wanted for one in found):
        return ()
    ddl = trigger_ddl(target.table, target.version, connection.dialect)
    return (Missing("create its trigger", (*ddl.drop, *ddl.create)),)


def _guarding(
    triggers: GuardTriggers, target: Target, guard: GuardTrigger | None, found: list[Found]
) -> tuple[Missing, ...]:
    if guard is None:
        return ()
    guard = completed(guard, target)
    made = triggers.source(guard), triggers.fires(guard)
    if any(one.name == guard.name and one.is_made_by(*made) for one in found):
        return ()
    return (Missing("create the guard trigger", triggers.create(guard)),)


def completed_by(guard: GuardTrigger, target: Target) -> GuardTrigger:
    """With the columns of the table, as it is there."""
    known = require_known(guard, target)
    generated = (c.name for c in target.table.columns if c.info.get(_GENERATED))
    guard = replace(
        guard, schema=target.table.schema, keys=keys_without_rowid(target.table)
    ).ignoring(generated, known)
    if guard.ignore and not guard.columns:
        return replace(guard, columns=tuple(n for n in known if n not in guard.ignore))
    return guard


def completed(guard: GuardTrigger, target: Target | None) -> GuardTrigger:
    """With what the table itself says: the columns that count, and how a row is found.

    Without a database to ask (``target`` is None) they have to be there already.

    Raises:
        ConfigurationError: no such column.
    """
    if target is not None:
        require_present(target, guard.table)
        guard = completed_by(guard, target)
    elif guard.ignore and not guard.columns:
        raise ConfigurationError(
            f"The guard trigger of {guard.table} ignores columns, so it has to name those that"
            " count: say which, columns=[...], where there is no database to ask (--sql). Without"
            " them it would be another trigger than the one that is made on a connection."
        )
    return guard


def require_counted(guard: GuardTrigger, target: Target) -> None:
    """Refuse ``columns`` that are not those which the table says, so would make another trigger."""
    if not guard.columns:
        return
    whole = completed_by(replace(guard, columns=()), target)
    counted = whole.columns or tuple(sorted(_known(guard, target)))
    if guard.columns != counted:
        raise ConfigurationError(
            f"columns={list(guard.columns)} of the roll-out of {guard.table}, and the columns of"
            f" the table that count are {list(counted)}: a script (--sql) would make another"
            " trigger. Nothing was changed."
        )


def require_known(guard: GuardTrigger, target: Target) -> list[str]:
    """The columns beside the version; those that ``guard`` names must be among them."""
    known = _known(guard, target)
    for name in (*guard.ignore, *guard.columns):
        if name not in known:
            raise ConfigurationError(
                f"The guard trigger of {guard.table} names the column {name!r}, which the"
                f" table does not have. Nothing was changed. It has: {', '.join(known)}."
            )
    return known


def _known(guard: GuardTrigger, target: Target) -> list[str]:
    return [column.name for column in target.table.columns if column.name != guard.column]
