"""Triggers that versions depend on: what they are made of, and the SQL of the guard trigger.

One class, and each engine's file overrides what differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, literal_column, text

from optilock.dialects.quoting import quoted, quoted_table, sql_of
from optilock.errors import ConfigurationError, OptilockError
from optilock.tokens.guard_trigger import GuardTrigger

__all__ = ["Found", "GuardTriggers", "Names", "TriggerDDL"]


class Names(NamedTuple):
    """Quoted for the database."""

    #: With its schema.
    table: str
    #: Without it.
    bare_table: str
    column: str
    trigger: str
    #: The trigger's name with the table's schema.
    qualified_trigger: str
    #: Columns that find a row, where SQLite has no ``rowid`` for it.
    keys: tuple[str, ...]


class TriggerDDL(NamedTuple):
    """Statements, in order."""

    create: tuple[str, ...]
    drop: tuple[str, ...]
    #: What the catalogue of the database keeps of the trigger.
    source: str


@dataclass(frozen=True)
class Found:
    """A trigger that the database has."""

    table: str
    name: str
    #: What it does, as the database keeps it; None where the user of the connection may not see it.
    source: str | None
    #: Does it fire?
    enabled: bool = True
    #: Is it there because the partitioned table has it? Then it comes and goes with that one.
    of_parent: bool = False

    def read(self) -> str:
        """What it does.

        Raises:
            OptilockError: the user may not see that (MariaDB, without the right TRIGGER).
        """
        if self.source is None:
            raise OptilockError(
                f"The user of this connection may not see what the trigger {self.name} of"
                f" {self.table} does, so nobody can tell whether it is the right one. Nothing was"
                " changed: give the user the right TRIGGER on the table, or run this as another."
            )
        return self.source


class GuardTriggers:
    """How one database guards a table."""

    #: Must the columns that count be named where some do not?
    names_columns = True
    #: SQL that gives the fields of ``Found``, for ``:schema``.
    catalogue: str | None = None

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        """Statements that make the trigger, also in the place of another one."""
        raise _unknown(self.dialect)

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        """Statements that drop it, if it is there."""
        raise _unknown(self.dialect)

    def source(self, guard: GuardTrigger) -> str:
        """What the database keeps of the trigger."""
        raise _unknown(self.dialect)

    def found(self, connection: Connection, schema: str | None) -> list[Found]:
        """All triggers of a schema, whoever made them."""
        if self.catalogue is None:
            return []
        rows = connection.execute(text(self.catalogue), {"schema": schema})
        return [Found(*row) for row in rows]

    def hidden(
        self, connection: Connection, table: str, name: str, schema: str | None
    ) -> Found | None:
        """A trigger that is there although the catalogue does not show it to this user."""
        return None

    # -- words ---------------------------------------------------------------------------------

    def new(self, column: str) -> str:
        return f"NEW.{quoted(self.dialect, column)}"

    def old(self, column: str) -> str:
        return f"OLD.{quoted(self.dialect, column)}"

    def table(self, guard: GuardTrigger) -> str:
        return quoted_table(self.dialect, guard.table, guard.schema)

    def trigger(self, guard: GuardTrigger) -> str:
        """The trigger's, or its function's, name with its schema."""
        return quoted_table(self.dialect, guard.name, guard.schema)

    def following(self, guard: GuardTrigger) -> str:
        """SQL of the version that comes after the old one."""
        following: Any = guard.token.following(literal_column("optilock_old_version"))
        # The name goes in last: the compiler would read signs in it.
        made = sql_of(self.dialect, following)
        return made.replace("optilock_old_version", self.old(guard.column))

    def refusal(self, guard: GuardTrigger) -> str:
        """What a foreign writer is told; 128 characters, the limit of MariaDB."""
        name = guard.table if len(guard.table) < 40 else f"{guard.table[:37]}..."
        return f"optilock: this UPDATE of {name} leaves its version as it was; it has to move it"


def _unknown(dialect: Dialect) -> ConfigurationError:
    return ConfigurationError(
        f"optilock knows no guard trigger for {dialect.name}: it works on PostgreSQL, MariaDB and"
        " SQLite. Leave __version_guard__ out, and let every program move the version."
    )
