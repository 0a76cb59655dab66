"""The triggers that move scopes when another program writes rows (:mod:`optilock.mapping.scopes`).

They make the same key of a scope as Python does. Each database's file has its statements.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from optilock.dialects.values import quote_name, quote_table, sql_literal
from optilock.errors import ConfigurationError
from optilock.tokens.guard_trigger import short_name

#: The longest list of values that a key holds as it is (:mod:`optilock.mapping.scopes`).
LONGEST = 400


@dataclass(frozen=True)
class ScopeTrigger:
    """What the triggers of one table with scopes are to do."""

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

    def name(self, event: str) -> str:
        """The name of the trigger of an event; of its function for no event."""
        return short_name(f"optilock_scope_{event}{self.table}")


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

    # -- words ---------------------------------------------------------------------------------

    def schema_name(self, made: ScopeTrigger, name: str) -> str:
        return quote_table(self.dialect, name, made.schema)

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
        start = sql_literal(prefix)
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
        return sql_literal(made.any_key)
