"""The triggers of scopes on MariaDB: one for each kind of write, called for each row.

A row whose scope stays moves it twice, for the old and the new values.
"""

from __future__ import annotations

from optilock.dialects.mariadb.commit_tokens import literal
from optilock.dialects.scope_triggers import ScopeTrigger, ScopeTriggers
from optilock.dialects.values import sql_literal


class MariaDBScopeTriggers(ScopeTriggers):
    def _trigger(self, made: ScopeTrigger, event: str) -> str:
        rows = {"INSERT": ("NEW",), "DELETE": ("OLD",)}.get(event, ("OLD", "NEW"))
        keys = ", ".join(f"({key}, 1)" for row in rows for key in self.keys(made, row))
        act = (
            f"INSERT {made.mark} INTO optilock_scopes (scope, version) VALUES {keys}"
            " ON DUPLICATE KEY UPDATE version = version + 1"
        )
        if event == "UPDATE" and made.columns:
            same = " AND ".join(
                f"{self.column('NEW', one)} <=> {self.column('OLD', one)} AND"
                f" BINARY {self.column('NEW', one)} <=> BINARY {self.column('OLD', one)}"
                for one in made.columns
            )
            act = f"IF NOT ({same}) THEN {act}; END IF"
        name = self.schema_name(made, made.name(f"{event.lower()}_"))
        table = self.schema_name(made, made.table)
        return f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {act}"

    def literal(self, text: str) -> str:
        """Return a text as SQL; a backslash in it means something to some settings."""
        return literal(text) if "\\" in text else sql_literal(text)

    def concat(self, parts: list[str]) -> str:
        return f"CONCAT({', '.join(parts)})"

    def length(self, text: str) -> str:
        return f"CHAR_LENGTH({text})"

    def text(self, made: ScopeTrigger, row: str, column: str) -> str:
        value = f"CAST({self.column(row, column)} AS CHAR CHARACTER SET utf8mb4)"
        if column in made.uuids:
            value = f"REPLACE({value}, '-', '')"
        return f"{value} COLLATE utf8mb4_bin"

    def digest(self, made: ScopeTrigger, start: str, whole: str) -> str:
        return self.concat([start, "'#'", f"MD5({whole})"])
