"""Values, SQL functions and the text of SQL on SQLite."""

from __future__ import annotations

from types import MappingProxyType

import sqlalchemy as sa

from optilock._columns.values import Limits
from optilock.dialects.quoting import SQLITE, Quoting
from optilock.dialects.values import Values
from optilock.tokens.sql_functions import (
    Later,
    NextServerTime,
    RandomUuid,
    ServerTime,
    StatementTime,
)

# %f is seconds with three digits, as fine as the clock is (https://sqlite.org/lang_datefunc.html);
# SQLAlchemy reads and writes six. 'now' is read when a statement first asks for it, and the
# statement has its locks by then.
_FORMAT = "'%Y-%m-%d %H:%M:%f000'"
_LIMITS = Limits(
    bits=(64, 64, 64),
    converts=True,
    bools=(sa.types.Integer, sa.types.Numeric, sa.types.Float),
    infinity=True,
    counts_digits=False,
    most_digits=308,  # of a float, which it makes of a Decimal
    lengths=False,
    nul=True,
    json_nan=True,
    json_surrogates=True,
)


class SQLiteValues(Values):
    def limits(self, dialect: sa.Dialect) -> Limits:
        """Its types are hints, but for the 64 bits of a number; NaN is stored as NULL."""
        return _LIMITS

    sql_functions = MappingProxyType(
        {
            ServerTime: f"strftime({_FORMAT}, 'now')",
            NextServerTime: f"max(strftime({_FORMAT}, 'now'),"
            f" strftime({_FORMAT}, {{0}}, '+0.001 seconds'))",
            StatementTime: f"strftime({_FORMAT}, 'now')",
            Later: f"strftime({_FORMAT}, {{0}}, ({{1}} / 1000.0) || ' seconds')",
            RandomUuid: "lower(hex(randomblob(16)))",
        }
    )
    exact_types = (*Values.exact_types, sa.types.String, sa.types.DateTime)

    # It has no type for times: a CAST gives 2026.
    rounded_types = (sa.types.Numeric, sa.types.Integer)

    def quotings(self, dialect: sa.Dialect) -> tuple[Quoting, ...]:
        return (SQLITE,)
