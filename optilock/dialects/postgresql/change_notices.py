"""Notices of changed rows on PostgreSQL: NOTIFY, once for each statement.

The payload is JSON: the table, and for each row its key and the names of its changed columns. With
too many rows, or too long for a payload (8,000 bytes,
https://www.postgresql.org/docs/current/sql-notify.html), it names the table alone, and listeners
ask for all rows that they follow. That is also so if a row cannot be shown as ``jsonb``. One write
fails by a notice: that of a two-phase commit, which PostgreSQL does not prepare after a NOTIFY.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from optilock.dialects.change_notices import CHANNEL, ChangeNotice, ChangeNotices
from optilock.dialects.migrations import Found
from optilock.dialects.values import quote_name, quote_table

_TABLES = {
    "UPDATE": "REFERENCING OLD TABLE AS optilock_old NEW TABLE AS optilock_new",
    "DELETE": "REFERENCING OLD TABLE AS optilock_old",
    "TRUNCATE": "",
}
#: The most rows that a notice names.
_MOST = 100
_KEYED = (
    "SELECT (SELECT jsonb_object_agg(k, content -> k) FROM unnest(keys) AS k) AS key, content"
    " FROM (SELECT to_jsonb(r) AS content FROM optilock_{} AS r) AS whole"
)
_SOURCE = f"""
/* optilock change notice */
DECLARE
    keys text[]; many bigint; changed jsonb; payload text;
BEGIN
    IF TG_OP <> 'TRUNCATE' THEN
        many := (SELECT count(*) FROM (SELECT FROM optilock_old LIMIT {_MOST + 1}) AS few);
        IF many = 0 THEN RETURN NULL; END IF;
        IF many <= {_MOST} THEN
        BEGIN
            keys := (SELECT array_agg(a.attname::text) FROM pg_catalog.pg_index AS i
                JOIN pg_catalog.pg_attribute AS a
                ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                WHERE i.indrelid = TG_RELID AND i.indisprimary);
            IF TG_OP = 'UPDATE' THEN
                changed := (SELECT jsonb_agg(jsonb_build_array(coalesce(o.key, n.key),
                    (SELECT jsonb_agg(f.key) FROM jsonb_each(n.content) AS f
                        WHERE f.value IS DISTINCT FROM o.content -> f.key)))
                    FROM ({_KEYED.format("old")}) AS o
                    FULL JOIN ({_KEYED.format("new")}) AS n ON o.key = n.key);
            ELSE
                changed := (SELECT jsonb_agg(jsonb_build_array(o.key, NULL))
                    FROM ({_KEYED.format("old")}) AS o);
            END IF;
        EXCEPTION WHEN OTHERS THEN changed := NULL;
        END;
        END IF;
    END IF;
    payload := jsonb_build_object('table', TG_TABLE_NAME, 'rows', changed)::text;
    IF octet_length(payload) > 7999 THEN
        payload := jsonb_build_object('table', TG_TABLE_NAME, 'rows', NULL)::text;
    END IF;
    PERFORM pg_notify('{CHANNEL}', payload);
    RETURN NULL;
END
"""


class PostgreSQLChangeNotices(ChangeNotices):
    def create(self, made: ChangeNotice) -> tuple[str, ...]:
        function, table = self._function(made), quote_table(self.dialect, made.table, made.schema)
        return (
            *self.drop(made),
            f"CREATE FUNCTION {function}() RETURNS trigger"
            f" LANGUAGE plpgsql AS $optilock${_SOURCE}$optilock$",
            *(
                f"CREATE TRIGGER {self._trigger(made, event)} AFTER {event} ON {table} {tables}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
                for event, tables in _TABLES.items()
            ),
        )

    def drop(self, made: ChangeNotice) -> tuple[str, ...]:
        table = quote_table(self.dialect, made.table, made.schema)
        triggers = (self._trigger(made, event) for event in _TABLES)
        return (
            *(f"DROP TRIGGER IF EXISTS {trigger} ON {table}" for trigger in triggers),
            f"DROP FUNCTION IF EXISTS {self._function(made)}()",
        )

    def _function(self, made: ChangeNotice) -> str:
        return quote_table(self.dialect, made.name(""), made.schema)

    def _trigger(self, made: ChangeNotice, event: str) -> str:
        return quote_name(self.dialect, made.name(event))

    def is_made(self, made: ChangeNotice, found: Iterable[Found]) -> bool:
        there = {one.name: one for one in found if one.enabled}
        wanted = {made.name(event): f"AFTER {event} FOR EACH STATEMENT" for event in _TABLES}
        return all(
            name in there and there[name].is_made_by(_SOURCE, fires)
            for name, fires in wanted.items()
        )

    def notifies(self, connection: sa.Connection, table: sa.Table) -> bool:
        made = ChangeNotice(table.name, table.schema)
        asked = sa.text(
            "SELECT count(*) FROM pg_catalog.pg_trigger WHERE tgrelid = to_regclass(:name)"
            " AND tgname = ANY (:names) AND tgenabled IN ('O', 'A')"
        )
        names = [made.name(event) for event in _TABLES]
        name = quote_table(self.dialect, table.name, table.schema)
        return bool(connection.scalar(asked, {"name": name, "names": names}) == len(names))
