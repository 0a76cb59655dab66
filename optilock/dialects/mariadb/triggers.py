"""Versions that MariaDB makes: its time, the trigger that moves one, and the guard trigger.

There is no comparison of whole rows, so a table without ignored columns is guarded whatever an
UPDATE changes, and one with some by the names of those that count. Values are compared as bytes
too, because a collation takes 'a' and 'A' for the same.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

from optilock.dialects.quoting import literal, plain, quoted_table
from optilock.dialects.triggers import Found, GuardTriggers, Names, TriggerDDL
from optilock.tokens.guard_trigger import GuardTrigger
from optilock.tokens.timestamp import NextServerTime, ServerTime
from optilock.tokens.unique import RandomUuid

__all__ = ["MariaDBGuard"]


#: ER_SPECIFIC_ACCESS_DENIED_ERROR
_ACCESS_DENIED = 1227


@compiles(RandomUuid, "mysql", "mariadb")
def _random_uuid(element: RandomUuid, compiler: Any, **options: Any) -> str:
    """Not random, but never twice the same; the writes that follow make random ones."""
    return "replace(uuid(), '-', '')"


class MariaDBGuard(GuardTriggers):
    catalogue = (
        "SELECT event_object_table, trigger_name, action_statement, 1"
        " FROM information_schema.triggers WHERE trigger_schema = COALESCE(:schema, DATABASE())"
    )

    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (
            f"CREATE OR REPLACE TRIGGER {self.trigger(guard)} BEFORE UPDATE ON"
            f" {self.table(guard)} FOR EACH ROW {self.source(guard)}",
        )

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (f"DROP TRIGGER IF EXISTS {self.trigger(guard)}",)

    def hidden(
        self, connection: Connection, table: str, name: str, schema: str | None
    ) -> Found | None:
        """Without the right TRIGGER it is not in the catalogue, and asked for by name refused."""
        try:
            trigger = quoted_table(self.dialect, name, schema)
            connection.execute(plain(f"SHOW CREATE TRIGGER {trigger}"))
        except DBAPIError as error:
            code = error.orig.args[0] if error.orig is not None and error.orig.args else None
            return Found(table, name, None) if code == _ACCESS_DENIED else None
        return None

    def source(self, guard: GuardTrigger) -> str:
        version, alone = self.new(guard.column), self._left_alone(guard)
        if guard.policy == "bump":
            return f"SET {guard.mark} {version} = IF({alone}, {self.following(guard)}, {version})"
        return (
            f"IF {guard.mark} {alone} THEN SIGNAL SQLSTATE '45000'"
            f" SET MESSAGE_TEXT = {literal(self.refusal(guard))}; END IF"
        )

    def _left_alone(self, guard: GuardTrigger) -> str:
        same = f"{self.new(guard.column)} = {self.old(guard.column)}"
        if not guard.ignore:
            return same
        return f"{same} AND NOT ({' AND '.join(map(self._same_bytes, guard.columns))})"

    def _same(self, column: str) -> str:
        return f"{self.new(column)} <=> {self.old(column)}"

    def _same_bytes(self, column: str) -> str:
        return f"{self._same(column)} AND BINARY {self.new(column)} <=> BINARY {self.old(column)}"


@compiles(ServerTime, "mysql", "mariadb")
def _server_time(element: ServerTime, compiler: Any, **options: Any) -> str:
    return "utc_timestamp(6)"


@compiles(NextServerTime, "mysql", "mariadb")
def _next_server_time(element: NextServerTime, compiler: Any, **options: Any) -> str:
    old = compiler.process(element.clauses, **options)
    return f"greatest(utc_timestamp(6), {old} + interval 1 microsecond)"


def version_trigger(names: Names) -> TriggerDDL:
    source = f"SET NEW.{names.column} = COALESCE(OLD.{names.column}, 0) + 1"
    return TriggerDDL(
        create=(
            f"CREATE TRIGGER {names.qualified_trigger} BEFORE UPDATE ON {names.table}"
            f" FOR EACH ROW {source}",
        ),
        drop=(f"DROP TRIGGER IF EXISTS {names.qualified_trigger}",),
        source=source,
    )
