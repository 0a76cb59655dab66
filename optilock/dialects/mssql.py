"""Microsoft SQL Server, known from its documentation ("Database Engine events and errors")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from sqlalchemy import Select, Table
from sqlalchemy.engine import Dialect

from optilock.dialects.base import Database
from optilock.dialects.cause import Cause

# ODBC: "[42000] [Microsoft][…] text (3960) (SQLExecDirectW)": the number is the driver
# manager's own field, whatever the language of the text.
_ODBC_NUMBER = re.compile(r"\((-?\d+)\) \(SQL\w+\)")


class SQLServer(Database):
    names = ("mssql",)

    # -- how rows are written (Transact-SQL, "Table hints") --------------------------------------

    def locks_rows(self, dialect: Dialect) -> bool:
        return True

    def lock(self, query: Select[Any], table: Table, *, deleting: bool) -> Select[Any]:
        """SQLAlchemy leaves FOR UPDATE out; a table hint locks until the transaction ends."""
        return query.with_hint(table, "WITH (UPDLOCK, ROWLOCK)", "mssql")

    def share(self, query: Select[Any], table: Table) -> Select[Any]:
        return query.with_hint(table, "WITH (REPEATABLEREAD, ROWLOCK)", "mssql")

    # -- what an error means ---------------------------------------------------------------------

    drivers = ("pyodbc", "pymssql", "_mssql", "mssql_python", "sqlalchemy.connectors.aioodbc")
    causes = MappingProxyType(
        {
            # snapshot update conflict, and those of memory-optimized tables
            3960: Cause.CONFLICT,
            41301: Cause.CONFLICT,
            41302: Cause.CONFLICT,
            41305: Cause.CONFLICT,
            41325: Cause.CONFLICT,
            1205: Cause.DEADLOCK,
            1222: Cause.LOCK_TIMEOUT,
            # DB-Library: read failed, write failed, dead process
            20004: Cause.CONNECTION_LOST,
            20006: Cause.CONNECTION_LOST,
            20047: Cause.CONNECTION_LOST,
            # ODBC gives 1205 this SQLSTATE
            "40001": Cause.DEADLOCK,
            "08": Cause.CONNECTION_LOST,
        }
    )

    def codes(self, error: BaseException) -> Iterator[str | int]:
        first = error.args[0] if error.args else None
        if isinstance(first, tuple) and first:
            first = first[0]
        if isinstance(first, int):
            yield first
        elif isinstance(first, str) and len(first) == 5:
            yield from (int(found) for found in _ODBC_NUMBER.findall(str(error)))
            yield first
            yield first[:2]
