"""Engines that are known by the codes of their errors alone, as their documentation tells them.

A retry knows their conflicts, and versions are compared as everywhere. Nobody has tried more, so
more is refused, with what to write instead: triggers, roll-outs, read-only transactions, and levels
of isolation that the engine does not promise by that name.

One more engine is one more class, in a file that ``dialects/__init__.py`` imports, or in a program
of your own::

    from optilock.dialects import Cause, KnownByCodes, register

    @register
    class Exasol(KnownByCodes):
        names = ("exa",)  # of SQLAlchemy's dialects
        drivers = ("pyexasol",)  # packages that define the errors
        causes = {"40001": Cause.CONFLICT}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Dialect, Select, Table

from optilock.dialects.base import Database, register
from optilock.dialects.causes import Cause
from optilock.dialects.postgresql.database import PostgreSQL
from optilock.errors import ConfigurationError


class KnownByCodes(Database):
    """What nobody has tried is refused."""

    #: Levels of isolation that the engine keeps as the SQL standard, and optilock, mean them.
    levels: tuple[str, ...] = ("READ COMMITTED",)

    def level_options(self, level: str) -> dict[str, Any]:
        """Or transactions would run at something that has the level's name and keeps less."""
        if level in self.levels:
            return super().level_options(level)
        kept = " or ".join(f"Isolation.{one.replace(' ', '_')}" for one in self.levels)
        raise ConfigurationError(
            f"optilock knows {self.names[0]} by the codes of its errors alone, and cannot promise"
            f" {level} there: {f'write isolation={kept}, or ' if kept else ''}leave isolation= out,"
            " and give the rows versions. verify() checks what was only read."
        )


class OverPostgreSQLsDrivers(KnownByCodes):
    """PostgreSQL's codes and protocol, through PostgreSQL's drivers.

    An error shows only the driver, so at run time its codes are read by PostgreSQL's file. What an
    error does to a transaction is asked of the engine: COMMIT after an error that a program has
    swallowed is answered with ROLLBACK here, too, and RELEASE may report a conflict.
    """

    causes = PostgreSQL.causes
    lost_before_commit = PostgreSQL.lost_before_commit
    errors_end = PostgreSQL.errors_end
    release_may_fail_all = PostgreSQL.release_may_fail_all
    commits_in_silence = PostgreSQL.commits_in_silence

    def codes(self, error: BaseException) -> Iterator[str | int]:
        return PostgreSQL().codes(error)

    def transaction_failed(self, connection: Connection) -> bool:
        return PostgreSQL().transaction_failed(connection)


@register
class CockroachDB(OverPostgreSQLsDrivers):
    """40001 is "restart transaction", 40003 "result is ambiguous" (its "Transaction Retry Error
    Reference" and "Common Errors")."""

    names = ("cockroachdb",)
    levels = ("READ COMMITTED", "SERIALIZABLE")


@register
class YugabyteDB(OverPostgreSQLsDrivers):
    """40001 is a conflict or a read that must restart, 40P01 a deadlock ("Transaction error codes
    in YSQL").

    Its REPEATABLE READ is a snapshot that refuses to write over newer rows. Where the servers do
    not allow READ COMMITTED, that is what runs in its place ("Isolation levels").
    """

    names = ("yugabytedb",)
    levels = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@register
class AuroraDSQL(OverPostgreSQLsDrivers):
    """It looks for conflicts at COMMIT alone, and has one level ("Concurrency control").

    40001 is a row that somebody else has changed (OC000 in its text), or a schema (OC001). It has
    no locks that keep others waiting, and its FOR UPDATE takes one row by its whole key, so many
    rows are written one by one, and what would rely on a lock is refused.
    """

    names = ("auroradsql",)
    levels = ("REPEATABLE READ",)

    def locks_rows(self, dialect: Dialect) -> bool:
        return False


_TRANSACTION = "TransactionContext Error"
# "Conflict on update!", "Conflict on tuple deletion!", "Transaction conflict: …", "write-write
# conflict"; two inserts of one key meet at COMMIT as "PRIMARY KEY or UNIQUE constraint violation".
_CONFLICT = re.compile(rf"{_TRANSACTION}:.*([Cc]onflict|PRIMARY KEY or UNIQUE)")


@register
class DuckDB(KnownByCodes):
    """Optimistic by itself, and the one engine whose errors carry no code."""

    names = ("duckdb",)
    levels = ()  # a transaction has a snapshot, and no level
    drivers = ("duckdb", "_duckdb")
    causes = MappingProxyType({"conflict": Cause.CONFLICT})

    def codes(self, error: BaseException) -> Iterator[str | int]:
        text = str(error)
        if _CONFLICT.match(text):
            yield "conflict"
        if text.startswith(_TRANSACTION):
            yield _TRANSACTION


@register
class Firebird(KnownByCodes):
    """A committed change and a real deadlock share one code, and tell apart by the next.

    (Firebird language reference, appendix B.)
    """

    names = ("firebird",)
    drivers = ("firebird.driver", "fdb")
    # In order: an error carries several, and the first of this table decides.
    causes = MappingProxyType(
        {
            # lock conflict on no wait transaction, lock time-out on wait transaction
            335544345: Cause.LOCK_TIMEOUT,
            335544510: Cause.LOCK_TIMEOUT,
            # update conflicts with concurrent update, concurrent transaction number is …
            335544451: Cause.CONFLICT,
            335544878: Cause.CONFLICT,
            335544336: Cause.DEADLOCK,
            335544648: Cause.CONNECTION_LOST,
            335544721: Cause.CONNECTION_LOST,
            335544726: Cause.CONNECTION_LOST,
            335544727: Cause.CONNECTION_LOST,
            335544741: Cause.CONNECTION_LOST,
            335544856: Cause.CONNECTION_LOST,
            "40001": Cause.CONFLICT,
            -913: Cause.CONFLICT,
        }
    )

    def codes(self, error: BaseException) -> Iterator[str | int]:
        found = set(_firebird_codes(error))
        yield from (code for code in self.causes if code in found)
        yield from found.difference(self.causes)


def _firebird_codes(error: BaseException) -> Iterator[str | int]:
    """firebird-driver has attributes; fdb puts text, SQLCODE and the first code into ``args``."""
    yield from (code for code in getattr(error, "gds_codes", ()) if isinstance(code, int))
    named = (getattr(error, "sqlcode", None), getattr(error, "sqlstate", None))
    yield from (code for code in (*named, *error.args[1:]) if isinstance(code, (int, str)))


# ODBC: "[42000] [Microsoft][…] text (3960) (SQLExecDirectW)": the number is the driver
# manager's own field, whatever the language of the text.
_ODBC_NUMBER = re.compile(r"\((-?\d+)\) \(SQL\w+\)")


@register
class SQLServer(KnownByCodes):
    """Microsoft SQL Server ("Database Engine events and errors", "Table hints")."""

    names = ("mssql",)
    levels = ("READ COMMITTED", "SERIALIZABLE")

    def locks_rows(self, dialect: Dialect) -> bool:
        return True

    def lock(self, query: Select[Any], table: Table, *, deleting: bool) -> Select[Any]:
        """SQLAlchemy leaves FOR UPDATE out; a table hint locks until the transaction ends."""
        return query.with_hint(table, "WITH (UPDLOCK, ROWLOCK)", "mssql")

    def share(self, query: Select[Any], table: Table) -> Select[Any]:
        return query.with_hint(table, "WITH (REPEATABLEREAD, ROWLOCK)", "mssql")

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

    errors_end = True
    ends_transactions = True

    def ends_transaction(self, error: BaseException) -> bool:
        """A deadlock or a conflict rolls back everything, and the next statement begins anew."""
        return any(
            self.causes.get(code) in (Cause.CONFLICT, Cause.DEADLOCK) for code in self.codes(error)
        )


@register
class Oracle(KnownByCodes):
    """Its SERIALIZABLE is a snapshot: two transactions may each write what the other has read.

    (Database Error Messages; python-oracledb.)
    """

    names = ("oracle",)
    drivers = ("oracledb", "cx_Oracle", "sqlalchemy.dialects.oracle")
    causes = MappingProxyType(
        {
            # ORA-08177: can't serialize access for this transaction
            8177: Cause.CONFLICT,
            60: Cause.DEADLOCK,
            # NOWAIT, WAIT n, distributed_lock_timeout
            54: Cause.LOCK_TIMEOUT,
            30006: Cause.LOCK_TIMEOUT,
            2049: Cause.LOCK_TIMEOUT,
            28: Cause.CONNECTION_LOST,
            1012: Cause.CONNECTION_LOST,
            3113: Cause.CONNECTION_LOST,
            3114: Cause.CONNECTION_LOST,
            3135: Cause.CONNECTION_LOST,
            12537: Cause.CONNECTION_LOST,
            "DPI-1010": Cause.CONNECTION_LOST,
            "DPI-1080": Cause.CONNECTION_LOST,
            "DPY-1001": Cause.CONNECTION_LOST,
            "DPY-4011": Cause.CONNECTION_LOST,
        }
    )

    def codes(self, error: BaseException) -> Iterator[str | int]:
        """The drivers put an object into ``args``; their own errors have number 0 and a name."""
        detail = error.args[0] if error.args else None
        name, number = getattr(detail, "full_code", None), getattr(detail, "code", None)
        if isinstance(name, str) and name:
            yield name
        if isinstance(number, int) and number:
            yield number
