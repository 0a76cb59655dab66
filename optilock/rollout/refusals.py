"""What is refused before anything is changed: names, and columns of another meaning.

A column that is there already is filled and becomes NOT NULL, so it must be a version: one that
somebody has begun. A key, a reference, a unique or generated column is none, nor is a number whose
default is not that of a first version. Values that are there under a name of the caller's choosing
are those of a version only if the column has the default of one, which the roll-out gives it before
it fills any row (SQLite has no such step, so nothing can be told from it there).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Integer, inspect, select

from optilock.dialects.migrations import Target, Ways
from optilock.errors import ConfigurationError
from optilock.tokens import Counter, Token

__all__ = ["DEFAULT", "require_all_rows", "require_name", "require_version"]

#: In ``info`` of a reflected column: its default, as the database writes it.
DEFAULT = "optilock_default"


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
