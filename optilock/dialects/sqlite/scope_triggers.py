"""The triggers of scopes on SQLite, which has no MD5: a long list of values moves ``*``."""

from __future__ import annotations

from optilock.dialects.scope_triggers import ScopeTrigger, ScopeTriggers
from optilock.dialects.values import quote_name


class SQLiteScopeTriggers(ScopeTriggers):
    def _trigger(self, made: ScopeTrigger, event: str) -> str:
        rows = {"INSERT": ("NEW",), "DELETE": ("OLD",)}.get(event, ("OLD", "NEW"))
        keys = ", ".join(f"({key}, 1)" for row in rows for key in self.keys(made, row))
        changed = (
            f"{self.column('NEW', one)} COLLATE BINARY IS NOT {self.column('OLD', one)}"
            for one in made.columns
        )
        when = f" WHEN {' OR '.join(changed)}" if event == "UPDATE" and made.columns else ""
        return (
            f"CREATE TRIGGER {self.schema_name(made, made.name(f'{event.lower()}_'))}"
            f" AFTER {event} ON {quote_name(self.dialect, made.table)} FOR EACH ROW{when} BEGIN"
            f" {made.mark} INSERT INTO optilock_scopes (scope, version) VALUES {keys}"
            " ON CONFLICT (scope) DO UPDATE SET version = version + 1; END"
        )
