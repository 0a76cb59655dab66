"""The triggers that move scopes when another program writes rows (:mod:`optilock._mapping.scopes`).

They make the same key of a scope as Python does. Each database's file has its statements.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from optilock.dialects.migrations import Found
from optilock.dialects.values import quote_name, quote_table, sql_literal
from optilock.errors import ConfigurationError
from optilock.tokens.guard_trigger import json_in_comment, short_name

#: The longest list of values that a key holds as it is (:mod:`optilock._mapping.scopes`).
LONGEST = 400


_PREFIX = "optilock_scope_"
_MARK = "/* optilock scopes "
_MARKED = ("scopes", "ignore", "columns", "uuids")


@dataclass(frozen=True)
class ScopeTrigger:
    """The task of the triggers of one table with scopes."""

    table: str
    #: The columns of each scope.
    scopes: tuple[tuple[str, ...], ...]
    #: Columns whose change does not count.
    ignore: tuple[str, ...] = ()
    #: Columns whose change does, where some do not; PostgreSQL needs no names.
    columns: tuple[str, ...] = ()
    #: Columns with UUIDs.
    uuids: tuple[str, ...] = ()
    schema: str | None = None

    @property
    def fullname(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    @property
    def any_key(self) -> str:
        return f"{self.fullname}(*)"

    def prefix(self, columns: Collection[str]) -> str:
        return f"{self.fullname}({','.join(columns)})="

    @property
    def mark(self) -> str:
        """A comment in the triggers that has all of this, so that it can be read back."""
        said = {name: getattr(self, name) for name in _MARKED}
        return f"{_MARK}{json_in_comment(said)} */"

    def name(self, event: str) -> str:
        """The name of the trigger of an event; of its function for no event."""
        return short_name(f"{_PREFIX}{event}{self.table}")


def read_scope_mark(source: str, table: str, schema: str | None) -> ScopeTrigger | None:
    """Return what a trigger with this source does; ``None`` for any other trigger."""
    start = source.find(_MARK)
    if start < 0:
        return None
    try:
        said: dict[str, Any] = json.loads(source[start + len(_MARK) :].partition(" */")[0])
        scopes = tuple(tuple(one) for one in said["scopes"])
        ignore, columns, uuids = (tuple(said[name]) for name in _MARKED[1:])
        return ScopeTrigger(table, scopes, ignore, columns, uuids, schema)
    except (ValueError, KeyError, TypeError):
        return None


class ScopeTriggers:
    """The statements of one database."""

    events: tuple[str, ...] = ("INSERT", "UPDATE", "DELETE")

    def __init__(self, dialect: sa.Dialect) -> None:
        self.dialect = dialect

    def create(self, made: ScopeTrigger) -> tuple[str, ...]:
        """Return statements that make the triggers, also in the place of others."""
        return (*self.drop(made), *(self._trigger(made, event) for event in self.events))

    def drop(self, made: ScopeTrigger) -> tuple[str, ...]:
        """Return statements that drop them, if they are there."""
        names = (made.name(f"{event.lower()}_") for event in self.events)
        return tuple(f"DROP TRIGGER IF EXISTS {self.schema_name(made, name)}" for name in names)

    def _trigger(self, made: ScopeTrigger, event: str) -> str:
        raise ConfigurationError(
            f"Scopes have no triggers on {self.dialect.name}: they work on PostgreSQL, MariaDB and"
            " SQLite."
        )

    def is_made(self, made: ScopeTrigger, found: Iterable[Found]) -> bool:
        """Return whether the table has these triggers, and all of them fire."""
        there = {one.name: one for one in found if one.enabled}
        names = [made.name(f"{event.lower()}_") for event in self.events]
        return all(name in there and made.mark in (there[name].source or "") for name in names)

    # -- words ---------------------------------------------------------------------------------

    def schema_name(self, made: ScopeTrigger, name: str) -> str:
        return quote_table(self.dialect, name, made.schema)

    def literal(self, text: str) -> str:
        """Return a text as SQL."""
        return sql_literal(text)

    def column(self, row: str, name: str) -> str:
        return f"{row}.{quote_name(self.dialect, name)}"

    def keys(self, made: ScopeTrigger, row: str) -> list[str]:
        """Return SQL of the keys of a row's scopes."""
        found = []
        for columns in made.scopes:
            texts = [self.text(made, row, one) for one in columns]
            found.append(self.key(made, made.prefix(columns), texts))
        return found

    def key(self, made: ScopeTrigger, prefix: str, texts: list[str]) -> str:
        """Return SQL of one key, from that of the values' texts."""
        start = self.literal(prefix)
        if not texts:
            return start
        parts = [self.part(text) for text in texts]
        whole = self.concat([one for part in parts for one in ("','", part)][1:])
        short = f"CASE WHEN {self.length(whole)} > {LONGEST}"
        long = self.digest(made, start, whole)
        return f"{short} THEN {long} ELSE {self.concat([start, whole])} END"

    def part(self, text: str) -> str:
        return f"COALESCE({self.concat([self.length(text), sql_literal(':'), text])}, '-')"

    def concat(self, parts: list[str]) -> str:
        return f"({' || '.join(parts)})"

    def length(self, text: str) -> str:
        return f"length({text})"

    def text(self, made: ScopeTrigger, row: str, column: str) -> str:
        """Return SQL of a value's text."""
        return f"CAST({self.column(row, column)} AS TEXT)"

    def digest(self, made: ScopeTrigger, start: str, whole: str) -> str:
        """Return SQL of the key of a list of values that is too long."""
        return self.literal(made.any_key)
