"""SQLite's catalogue: three statements for all tables of a database file.

A PRAGMA is joined with the list of tables as a function (https://sqlite.org/pragma.html#pragfunc).
The collation of a column stands in the text of its CREATE TABLE alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import pairwise

from optilock.dialects.catalogue import Catalogue, StoredColumn, StoredTable, keys_of
from optilock.dialects.quoting import quoted

_TABLES = "SELECT lower(m.name), m.name, m.type = 'view', m.sql FROM {master} m WHERE {wanted}"
_COLUMNS = (
    'SELECT lower(m.name), x.name, x.type, x."notnull", x.dflt_value, x.pk, x.hidden'
    " FROM {master} m JOIN pragma_table_xinfo(m.name, :schema) x WHERE {wanted} ORDER BY x.cid"
)
_KEYS = (
    "SELECT lower(m.name), l.name, i.name FROM {master} m"
    " JOIN pragma_index_list(m.name, :schema) l JOIN pragma_index_info(l.name, :schema) i"
    ' WHERE {wanted} AND l."unique" AND NOT l.partial'
)
_WANTED = "m.type IN ('table', 'view') AND lower(m.name) IN :names"


class SQLiteCatalogue(Catalogue):
    def _read(self, names: Collection[str]) -> dict[str, StoredTable]:
        """Without a schema as SQLAlchemy's inspector does: in the main file, or temporary."""
        found = self._of(self.schema or "main", names)
        missing = [name for name in names if name not in found]
        if self.schema is None and missing:
            found |= self._of("temp", missing)
        return found

    def _of(self, schema: str, names: Collection[str]) -> dict[str, StoredTable]:
        master = "sqlite_temp_master" if schema == "temp" else "sqlite_master"
        master = f"{quoted(self.connection.dialect, schema)}.{master}"
        lowered = {name.lower() for name in names}
        tables, columns, keys = (
            self.ask(sql.format(master=master, wanted=_WANTED), lowered, schema=schema)
            if ":schema" in sql
            else self.ask(sql.format(master=master, wanted=_WANTED), lowered)
            for sql in (_TABLES, _COLUMNS, _KEYS)
        )
        found = {}
        for name, [(real, is_view, sql)] in tables.items():
            # Of rows that a trigger writes INSTEAD OF the view, SQLite counts none.
            refuses = ("UPDATE", "DELETE") if is_view else ()
            rows, lax = columns.get(name, []), dict(lax_columns(sql or ""))
            key = [column for column, *_, place, _ in rows if place]
            found[name] = self.table(
                real,
                (_column(row, lax, key) for row in rows),
                [key, *keys_of(keys.get(name, ()))],
                is_view=bool(is_view),
                refuses=refuses,
            )
        return {name: found[name.lower()] for name in names if name.lower() in found}


def _column(
    row: tuple[str, str, int, str | None, int, int], lax: dict[str, str], key: list[str]
) -> StoredColumn:
    name, kind, required, default, _, hidden = row
    return StoredColumn(
        name,
        kind.lower(),
        not required,
        default,
        hidden in (2, 3),
        key == [name] and kind.upper() == "INTEGER",
        lax=lax.get(name.lower()),
    )


#: Quoted names and texts, comments, brackets, commas, words.
_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[(),]|[^\s(),]+",
    re.DOTALL,
)


def lax_columns(sql: str) -> Iterator[tuple[str, str]]:
    """Columns, in small letters, and their collations that do not compare every character."""
    for words in _definitions(sql):
        name = words[0].strip('"`[]').lower()
        for word, after in pairwise(words):
            if word.upper() == "COLLATE" and after.strip("\"`[]'").upper() in ("NOCASE", "RTRIM"):
                yield name, after.strip("\"`[]'").upper()


def _definitions(sql: str) -> Iterator[list[str]]:
    """What stands between the commas of a CREATE TABLE, as words."""
    depth, words = 0, list[str]()
    for token in _TOKEN.findall(sql):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if (token == "," and depth == 1) or (token == ")" and depth == 0):
            if words:
                yield words
            words = []
        elif depth == 1 and token not in "()" and not token.startswith(("--", "/*")):
            words.append(token)
