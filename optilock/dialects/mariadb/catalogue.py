"""MariaDB's catalogue: three statements for all tables of a schema (``information_schema``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from optilock.dialects.catalogue import Catalogue, StoredColumn, StoredTable, keys_of
from optilock.dialects.mariadb.weak import Stored

_WANTED = "table_schema = COALESCE(:schema, DATABASE()) AND table_name IN :names"

_TABLES = (
    "SELECT table_name, table_type LIKE '%VIEW', engine, @@lower_case_table_names,"
    " (SELECT v.is_updatable FROM information_schema.views v"
    " WHERE v.table_schema = t.table_schema AND v.table_name = t.table_name)"
    f" FROM information_schema.tables t WHERE {_WANTED}"
)
_COLUMNS = (
    "SELECT table_name, column_name, column_type, is_nullable, column_default, extra,"
    f" collation_name FROM information_schema.columns WHERE {_WANTED} ORDER BY ordinal_position"
)
_KEYS = (
    "SELECT table_name, index_name, column_name FROM information_schema.statistics"
    f" WHERE {_WANTED} AND non_unique = 0"
)


class MariaDBCatalogue(Catalogue):
    def _read(self, names: Collection[str]) -> dict[str, StoredTable]:
        tables, columns, keys = (
            self.ask(sql, names, schema=self.schema) for sql in (_TABLES, _COLUMNS, _KEYS)
        )
        found = {
            name: self.table(
                name,
                map(_column, columns.get(name, ())),
                keys_of(keys.get(name, ())),
                is_view=bool(is_view),
                refuses=("UPDATE", "DELETE") if takes == "NO" else (),
                weaknesses=tuple(Stored(name, engine).weaknesses()),
            )
            for name, [(is_view, engine, _, takes)] in tables.items()
        }
        return dict(_as_asked(names, found, cased=not any(row[0][2] for row in tables.values())))


def _as_asked(
    names: Iterable[str], found: dict[str, StoredTable], *, cased: bool
) -> Iterator[tuple[str, StoredTable]]:
    """By the names that were asked for: on some servers names of tables have no case."""
    lowered = {} if cased else {name.lower(): table for name, table in found.items()}
    for name in names:
        table = found.get(name) or lowered.get(name.lower())
        if table is not None:
            yield name, table


def _column(row: tuple[str, str, str, str | None, str, str | None]) -> StoredColumn:
    name, kind, nullable, default, extra, collation = row
    said = (extra or "").upper()
    return StoredColumn(
        name,
        _with_digits(_text(kind).lower()),
        nullable == "YES",
        None if default in (None, "NULL") else _text(default),
        "GENERATED" in said and "DEFAULT_GENERATED" not in said,
        "AUTO_INCREMENT" in said,
        "ON UPDATE" in said,
        collation if collation and not _tells_case(collation) else None,
    )


def _with_digits(kind: str) -> str:
    """A time that says no number of digits keeps none."""
    return f"{kind}(0)" if kind in ("datetime", "timestamp") else kind


def _tells_case(collation: str) -> bool:
    """``utf8mb4_bin``, ``utf8mb4_0900_as_cs``, ``binary``."""
    return collation == "binary" or collation.endswith(("_bin", "_cs"))


def _text(value: Any) -> str:
    """Some drivers give long texts of the catalogue as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
