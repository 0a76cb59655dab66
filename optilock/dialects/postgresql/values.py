"""Values, SQL functions and the text of SQL on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from sqlalchemy import Dialect, types

from optilock._columns.values import Limits
from optilock.dialects.quoting import ALL_OF_POSTGRESQL, Quoting
from optilock.dialects.values import Values
from optilock.tokens.sql_functions import (
    Later,
    NextServerTime,
    RandomUuid,
    ServerTime,
    StatementTime,
)

_OF_ASYNCPG = Limits(
    nan=True, infinity=True, most_digits=131_072, single="REAL", zones=True, json_surrogates=True
)
_OF_OTHERS = replace(
    _OF_ASYNCPG,
    converts=True,
    decimals=True,
    offsets=True,
    zones=False,
)


#: SQLAlchemy casts what it sends as an INTEGER, where True then is 1.
_OF_PSYCOPG = replace(
    _OF_OTHERS, bools=(types.Integer,), no_bools=(types.SmallInteger, types.BigInteger)
)


class PostgreSQLValues(Values):
    def limits(self, dialect: Dialect) -> Limits:
        """asyncpg encodes each value as its column's type, and converts nothing."""
        if dialect.driver == "asyncpg":
            return _OF_ASYNCPG
        return _OF_PSYCOPG if dialect.driver == "psycopg" else _OF_OTHERS

    #: Not ``now()``, which is the begin of the transaction. The UUID needs PostgreSQL 13.
    sql_functions = MappingProxyType(
        {
            ServerTime: "clock_timestamp()",
            NextServerTime: "greatest(clock_timestamp(), {0} + interval '1 microsecond')",
            StatementTime: "statement_timestamp()",
            Later: "({0} + {1} * interval '1 millisecond')",
            RandomUuid: "gen_random_uuid()",
        }
    )
    exact_types = (*Values.exact_types, types.String, types.DateTime)

    #: Or FLOAT of up to 24 bits.
    #: (https://www.postgresql.org/docs/current/datatype-numeric.html, section 8.1.3)
    single = "REAL"

    def quotings(self, dialect: Dialect) -> tuple[Quoting, ...]:
        return ALL_OF_POSTGRESQL
