"""Versions that SQLite makes: its time, the trigger that moves one, and the guard trigger.

A trigger cannot change the row that is being written, so the version moves in a second UPDATE after
it. That one moves the version, so the trigger does not fire for it, with or without
``recursive_triggers`` (https://sqlite.org/lang_createtrigger.html).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.ext.compiler import compiles

from optilock.dialects.quoting import literal, quoted
from optilock.dialects.triggers import Found, GuardTriggers, Names, TriggerDDL
from optilock.tokens.guard_trigger import GuardTrigger
from optilock.tokens.timestamp import NextServerTime, ServerTime
from optilock.tokens.unique import RandomUuid
from optilock.undocumented import double_percents

__all__ = ["SQLiteGuard"]


@compiles(RandomUuid, "sqlite")
def _random_uuid(element: RandomUuid, compiler: Any, **options: Any) -> str:
    return "lower(hex(randomblob(16)))"


class SQLiteGuard(GuardTriggers):
    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (*self.drop(guard), f"CREATE TRIGGER {self.trigger(guard)} {self._does(guard)}")

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (f"DROP TRIGGER IF EXISTS {self.trigger(guard)}",)

    def source(self, guard: GuardTrigger) -> str:
        """SQLite keeps the statement, without the schema."""
        return f"CREATE TRIGGER {quoted(self.dialect, guard.name)} {self._does(guard)}"

    def _does(self, guard: GuardTrigger) -> str:
        table = quoted(self.dialect, guard.table)
        when = "AFTER" if guard.policy == "bump" else "BEFORE"
        return (
            f"{when} UPDATE ON {table} FOR EACH ROW"
            f" WHEN {self._left_alone(guard)} BEGIN {guard.mark} {self._act(guard, table)}; END"
        )

    def found(self, connection: Connection, schema: str | None) -> list[Found]:
        """Every database file that is attached has a catalogue of its own."""
        master = f"{quoted(self.dialect, schema)}.sqlite_master" if schema else "sqlite_master"
        rows = connection.execute(
            text(f"SELECT tbl_name, name, sql FROM {master} WHERE type = 'trigger'")
        )
        return [Found(*row) for row in rows]

    def _act(self, guard: GuardTrigger, table: str) -> str:
        if guard.policy == "reject":
            return f"SELECT RAISE(ABORT, {literal(self.refusal(guard))})"
        version = quoted(self.dialect, guard.column)
        row = " AND ".join(
            f"{quoted(self.dialect, key)} IS {self.new(key)}" for key in guard.keys or ("_rowid_",)
        )
        return f"UPDATE {table} SET {version} = {self.following(guard)} WHERE {row}"

    def _left_alone(self, guard: GuardTrigger) -> str:
        same = f"{self.new(guard.column)} = {self.old(guard.column)}"
        if not guard.ignore:
            return same
        changed = (
            f"{self.new(name)} COLLATE BINARY IS NOT {self.old(name)}" for name in guard.columns
        )
        return f"{same} AND ({' OR '.join(changed)})"


# %f is seconds with three digits, as fine as the clock is (https://sqlite.org/lang_datefunc.html);
# SQLAlchemy reads and writes six.
_FORMAT = "'%Y-%m-%d %H:%M:%f000'"


@compiles(ServerTime, "sqlite")
def _server_time(element: ServerTime, compiler: Any, **options: Any) -> str:
    return _moment(compiler, "'now'")


@compiles(NextServerTime, "sqlite")
def _next_server_time(element: NextServerTime, compiler: Any, **options: Any) -> str:
    old = compiler.process(element.clauses, **options)
    now, after = _moment(compiler, "'now'"), _moment(compiler, old, "'+0.001 seconds'")
    return f"max({now}, {after})"


def _moment(compiler: Any, *when: str) -> str:
    """``%`` is written twice for drivers whose parameters begin with it."""
    text = _FORMAT.replace("%", "%%") if double_percents(compiler.dialect) else _FORMAT
    return f"strftime({', '.join((text, *when))})"


def version_trigger(names: Names) -> TriggerDDL:
    """After the UPDATE, because SQLite's triggers cannot change the row that is being written.

    The inner UPDATE moves the version itself, so the condition also ends the recursion where
    ``recursive_triggers`` is on (https://sqlite.org/pragma.html#pragma_recursive_triggers).
    """
    row = " AND ".join(f"{key} = NEW.{key}" for key in names.keys or ("_rowid_",))
    column, table = names.column, names.bare_table
    does = (
        f"AFTER UPDATE ON {table}"
        f" FOR EACH ROW WHEN NEW.{column} IS OLD.{column}"
        f" BEGIN UPDATE {table} SET {column} = COALESCE(OLD.{column}, 0) + 1 WHERE {row}; END"
    )
    return TriggerDDL(
        create=(f"CREATE TRIGGER {names.qualified_trigger} {does}",),
        drop=(f"DROP TRIGGER IF EXISTS {names.qualified_trigger}",),
        source=f"CREATE TRIGGER {names.trigger} {does}",  # kept without a schema
    )
