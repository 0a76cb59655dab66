"""PostgreSQL's catalogue: four statements for all tables of a schema.

A name without a schema is looked for in the whole ``search_path``, as a statement does
(https://www.postgresql.org/docs/current/functions-info.html, ``pg_table_is_visible``).
"""

from __future__ import annotations

from collections.abc import Collection

from optilock.dialects.catalogue import Catalogue, StoredColumn, StoredTable, keys_of
from optilock.dialects.postgresql.weak import RELATION, Relation

#: A relation of ``:schema``, or, without one, that which a bare name stands for.
HERE = (
    "CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(c.oid)"
    " ELSE n.nspname = CAST(:schema AS text) END"
)
_FROM = "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
_WANTED = f"c.relname IN :names AND c.relkind IN ('r', 'p', 'f', 'v', 'm') AND {HERE}"

#: Bits of the statements that a view, or a foreign table, takes; triggers INSTEAD OF count.
_TAKES = "CASE WHEN c.relkind IN ('v', 'm', 'f') THEN pg_relation_is_updatable(c.oid, true) END"
_BITS = {"UPDATE": 4, "DELETE": 16}
_TABLES = f"SELECT c.relname, c.relkind IN ('v', 'm'), {_TAKES}, {RELATION} {_FROM} WHERE {_WANTED}"

_COLUMNS = (
    "SELECT c.relname, a.attname, lower(format_type(a.atttypid, a.atttypmod)), NOT a.attnotnull,"
    " pg_get_expr(d.adbin, d.adrelid), a.attgenerated <> '', a.attidentity <> '',"
    " CASE WHEN y.typname = 'citext' THEN 'citext' WHEN NOT o.collisdeterministic THEN o.collname"
    " END, c.relkind = 'v' AND NOT pg_column_is_updatable(c.oid, a.attnum, true)"
    f" {_FROM} JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type y ON y.oid = a.atttypid"
    " LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
    " LEFT JOIN pg_collation o ON o.oid = a.attcollation"
    f" WHERE {_WANTED} AND a.attnum > 0 AND NOT a.attisdropped"
)

# Columns that an index only carries (INCLUDE) come after those that it is unique by.
_KEYS = (
    f"SELECT c.relname, i.indexrelid, a.attname {_FROM} JOIN pg_index i ON i.indrelid = c.oid"
    " JOIN LATERAL unnest(CAST(i.indkey AS int2[])) WITH ORDINALITY AS k(number, place)"
    " ON k.place <= i.indnkeyatts"
    " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number"
    f" WHERE {_WANTED} AND i.indisunique AND i.indisvalid"
    " AND i.indpred IS NULL AND i.indexprs IS NULL"
)

#: Rules of tables that do something else than UPDATE ('2') and DELETE ('4') say.
_RULES = (
    f"SELECT c.relname, r.rulename, CASE r.ev_type WHEN '2' THEN 'UPDATE' ELSE 'DELETE' END"
    f" {_FROM} JOIN pg_rewrite r ON r.ev_class = c.oid WHERE {_WANTED} AND r.is_instead"
    " AND r.ev_type IN ('2', '4') AND r.ev_enabled <> 'D' AND c.relkind NOT IN ('v', 'm')"
    " ORDER BY 2"
)


class PostgreSQLCatalogue(Catalogue):
    def _read(self, names: Collection[str]) -> dict[str, StoredTable]:
        tables, columns, keys, rules = (
            self.ask(sql, names, schema=self.schema) for sql in (_TABLES, _COLUMNS, _KEYS, _RULES)
        )
        found = {}
        for name, [(is_view, takes, has_policies, is_hidden)] in tables.items():
            relation = Relation(name, has_policies, is_hidden, tuple(rules.get(name, ())))
            found[name] = self.table(
                name,
                (_column(row) for row in columns.get(name, ())),
                keys_of(keys.get(name, ())),
                is_view=is_view,
                refuses=tuple(
                    v for v, bit in _BITS.items() if takes is not None and not takes & bit
                ),
                weaknesses=tuple(relation.weaknesses()),
            )
        return found


def _column(row: tuple[str, str, bool, str | None, bool, bool, str | None, bool]) -> StoredColumn:
    name, kind, nullable, default, generated, numbered, lax, fixed = row
    return StoredColumn(name, kind, nullable, default, generated, numbered, lax=lax, fixed=fixed)
