"""Values, SQL functions and the text of SQL on MariaDB."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from optilock._columns.values import Limits
from optilock.dialects.quoting import ALL_OF_MARIADB, ALL_OF_MARIADB_ANSI, Quoting
from optilock.dialects.values import Values
from optilock.tokens.sql_functions import (
    Later,
    NextServerTime,
    RandomUuid,
    ServerTime,
    StatementTime,
)

_SCALE = re.compile(r"\(\d+, ?(\d+)\)")
_SIZED = re.compile(r"(TINY|MEDIUM|LONG)?(TEXT|BLOB)(?:\((\d+)\))?")


#: Bytes (https://mariadb.com/kb/en/data-type-storage-requirements/#string-data-types).
_SIZES = {"TINY": (1 << 8) - 1, None: (1 << 16) - 1, "MEDIUM": (1 << 24) - 1, "LONG": (1 << 32) - 1}


def _octets(kind: TypeEngine[Any], dialect: sa.Dialect) -> int | None:
    """How many bytes a TEXT or BLOB holds; with a length it is the smallest that has room."""
    declared = _SIZED.match(kind.compile(dialect=dialect).upper())
    if declared is None:
        return None
    size, what, length = declared.groups()
    if length is None:
        return _SIZES[size]
    least = int(length) * (4 if what == "TEXT" else 1)
    return next((most for most in _SIZES.values() if most >= least), None)


_LIMITS = Limits(
    converts=True,
    decimals=True,
    bools=(sa.types.Integer, sa.types.Numeric, sa.types.Float),
    digits=(10, 0),
    single="FLOAT",
    nul=True,
    octets=_octets,
)


class MariaDBValues(Values):
    def limits(self, dialect: sa.Dialect) -> Limits:
        """As in its strict mode, which is the usual one."""
        return _LIMITS

    #: ``UTC_TIMESTAMP`` and ``NOW`` are the begin of the statement, ``SYSDATE`` is now, in the time
    #: zone of the session. So ``ServerTime`` adds the time that the statement has taken to its
    #: begin. The UUID is not random, but never repeated; the writes that follow make random ones.
    sql_functions = MappingProxyType(
        {
            ServerTime: "timestampadd(microsecond, timestampdiff(microsecond, now(6), sysdate(6)),"
            " utc_timestamp(6))",
            NextServerTime: "greatest(utc_timestamp(6), {0} + interval 1 microsecond)",
            StatementTime: "utc_timestamp(6)",
            Later: "timestampadd(microsecond, 1000 * {1}, {0})",
            RandomUuid: "replace(uuid(), '-', '')",
        }
    )

    def quotings(self, dialect: sa.Dialect) -> tuple[Quoting, ...]:
        ansi = dialect.identifier_preparer.initial_quote == '"'  # SQLAlchemy asks for the sql_mode
        return ALL_OF_MARIADB_ANSI if ansi else ALL_OF_MARIADB

    single = "FLOAT"

    def kept_of(self, value: float, declared: str) -> object:
        """``(M, D)`` rounds to D places (https://mariadb.com/kb/en/float/)."""
        scale = _SCALE.search(declared)
        return f"{value:.{scale[1]}f}" if scale else super().kept_of(value, declared)

    def kept_short(self, value: float) -> object:
        """Return the text of six digits that MariaDB shows."""
        return f"{super().kept_short(value):.6g}"

    def is_exact(self, column: sa.Column[Any], dialect: sa.Dialect) -> bool:
        """Return whether the mapping has such a collation; that of the server may be any."""
        kind = column.type.dialect_impl(dialect)
        if not isinstance(kind, sa.String) or isinstance(column.type, (sa.Enum, sa.Uuid)):
            return True
        options = column.table.kwargs
        of_table = options.get("mariadb_collate") or options.get("mysql_collate")
        name = str(getattr(kind, "collation", None) or of_table or "")
        return name.endswith(("_nopad_bin", "_0900_bin"))
