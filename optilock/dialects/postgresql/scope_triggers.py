"""The triggers of scopes on PostgreSQL: one step for each statement, in the order of the keys.

Rows are compared as ``jsonb``, because some types have no equality. A statement changes the scopes
of the rows that are in one of its transition tables more often than in the other.
"""

from __future__ import annotations

from optilock.dialects.scope_triggers import ScopeTrigger, ScopeTriggers
from optilock.dialects.values import quote_name, sql_literal

_TABLES = {
    "INSERT": "REFERENCING NEW TABLE AS optilock_new",
    "UPDATE": "REFERENCING OLD TABLE AS optilock_old NEW TABLE AS optilock_new",
    "DELETE": "REFERENCING OLD TABLE AS optilock_old",
    "TRUNCATE": "",
}
_STEP = (
    "INSERT INTO optilock_scopes AS stored (scope, version)"
    ' SELECT DISTINCT key COLLATE "C", 1 FROM ({}) AS keys (key) ORDER BY 1'
    " ON CONFLICT (scope) DO UPDATE SET version = stored.version + 1"
)


class PostgreSQLScopeTriggers(ScopeTriggers):
    events = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")

    def create(self, made: ScopeTrigger) -> tuple[str, ...]:
        source = self._source(made)
        tag = "$optilock$" if "$optilock$" not in source else "$optilock_scope$"
        function = (
            f"CREATE FUNCTION {self.schema_name(made, made.name(''))}() RETURNS trigger"
            f" LANGUAGE plpgsql AS {tag}{source}{tag}"
        )
        triggers = (self._trigger(made, event) for event in self.events)
        return (*self.drop(made), function, *triggers)

    def drop(self, made: ScopeTrigger) -> tuple[str, ...]:
        table = self.schema_name(made, made.table)
        names = (quote_name(self.dialect, made.name(f"{one.lower()}_")) for one in self.events)
        return (
            *(f"DROP TRIGGER IF EXISTS {name} ON {table}" for name in names),
            f"DROP FUNCTION IF EXISTS {self.schema_name(made, made.name(''))}()",
        )

    def _trigger(self, made: ScopeTrigger, event: str) -> str:
        return (
            f"CREATE TRIGGER {quote_name(self.dialect, made.name(f'{event.lower()}_'))}"
            f" AFTER {event} ON {self.schema_name(made, made.table)} {_TABLES[event]}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {self.schema_name(made, made.name(''))}()"
        )

    def _source(self, made: ScopeTrigger) -> str:
        keys = f"unnest(ARRAY[{', '.join(self.keys(made, 'r'))}])"
        ignore = ", ".join(map(sql_literal, made.ignore))
        row = f"to_jsonb(r) - ARRAY[{ignore}]::text[]"
        old, new = (f"SELECT {keys}, {row} FROM optilock_{side} AS r" for side in ("old", "new"))
        changed = f"({old} EXCEPT ALL {new}) UNION ALL ({new} EXCEPT ALL {old})"
        steps = {
            "INSERT": f"SELECT {keys} FROM optilock_new AS r",
            "DELETE": f"SELECT {keys} FROM optilock_old AS r",
            "UPDATE": f"SELECT changed.key FROM ({changed}) AS changed (key, content)",
            "TRUNCATE": f"SELECT {self.literal(made.any_key)}",
        }
        acts = (
            f"    IF TG_OP = '{event}' THEN {_STEP.format(rows)}; END IF;\n"
            for event, rows in steps.items()
        )
        return f"\n{made.mark}\nBEGIN\n{''.join(acts)}    RETURN NULL;\nEND\n"

    def length(self, text: str) -> str:
        return f"char_length({text})::text"

    def key(self, made: ScopeTrigger, prefix: str, texts: list[str]) -> str:
        return super().key(made, prefix, texts).replace("::text > ", " > ")

    def text(self, made: ScopeTrigger, row: str, column: str) -> str:
        value = self.column(row, column)
        return (
            f"CASE pg_typeof({value})::text"
            f" WHEN 'boolean' THEN translate(left({value}::text, 1), 'tf', '10')"
            f" WHEN 'uuid' THEN replace({value}::text, '-', '')"
            f" WHEN 'date' THEN to_jsonb({value}) #>> '{{}}'"
            f" ELSE {value}::text END"
        )

    def digest(self, made: ScopeTrigger, start: str, whole: str) -> str:
        return self.concat([start, "'#'", f"md5(convert_to({whole}, 'UTF8'))"])
