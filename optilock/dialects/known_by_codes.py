"""Engines that are known by the codes of their errors alone, as their documentation lists them.

A retry recognises their conflicts, and versions are compared as everywhere. The rest is not tested,
so :class:`~optilock.dialects.base.KnownByCodes` refuses it and names an alternative: triggers,
roll-outs, read-only transactions, and levels of isolation that the engine does not promise by that
name.

One more engine is one more class here, with its row in ``MODULES`` of
:mod:`optilock.dialects.registry`, or a class in a program of your own::

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
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Dialect, Select, Table

from optilock.dialects.base import KnownByCodes
from optilock.dialects.causes import Cause, by_code
from optilock.dialects.ends import Ends
from optilock.dialects.locks import RowLocks
from optilock.dialects.postgresql.database import PostgreSQL
from optilock.dialects.postgresql.ends import PostgreSQLEnds
from optilock.dialects.registry import register


class _OfPostgreSQLsDrivers(PostgreSQLEnds):
    """Without a savepoint of optilock's own, which not each of these engines has."""

    may_restart = Ends.may_restart


class OverPostgreSQLsDrivers(KnownByCodes):
    """PostgreSQL's codes and protocol, through PostgreSQL's drivers.

    An error shows only the driver, so at run time PostgreSQL's class reads its codes. The engine's
    own class knows the effects of an error on a transaction: COMMIT after an error that a program
    has swallowed is answered with ROLLBACK here, too, and RELEASE may report a conflict.
    """

    causes = PostgreSQL.causes
    lost_before_commit = PostgreSQL.lost_before_commit
    ends = cached_property(_OfPostgreSQLsDrivers)
    codes = PostgreSQL.codes


@register
class CockroachDB(OverPostgreSQLsDrivers):
    """CockroachDB: 40001 is "restart transaction", 40003 "result is ambiguous".

    (Its "Transaction Retry Error Reference" and "Common Errors".)
    """

    names = ("cockroachdb",)
    levels = ("READ COMMITTED", "SERIALIZABLE")


@register
class YugabyteDB(OverPostgreSQLsDrivers):
    """YugabyteDB: 40001 is a conflict or a read that must restart, 40P01 a deadlock.

    (Its "Transaction error codes in YSQL".)

    Its REPEATABLE READ is a snapshot that refuses to write over newer rows. Where the servers do
    not allow READ COMMITTED, that is what runs in its place ("Isolation levels").
    """

    names = ("yugabytedb",)
    levels = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


class _NoLocks(RowLocks):
    def locks_rows(self, dialect: Dialect) -> bool:
        return False


@register
class AuroraDSQL(OverPostgreSQLsDrivers):
    """Aurora DSQL, with one level, looks for conflicts at COMMIT alone ("Concurrency control").

    40001 is a row (OC000 in its text) or a schema (OC001) that another transaction has changed. It
    has no locks that keep others waiting, and its FOR UPDATE takes one row by its whole key. So
    many rows are written one by one, and features that rely on a lock are refused.
    """

    names = ("auroradsql",)
    levels = ("REPEATABLE READ",)

    locks = cached_property(_NoLocks)


_TRANSACTION = "TransactionContext Error"
# "Conflict on update!", "Conflict on tuple deletion!", "Transaction conflict: …", "write-write
# conflict"; two inserts of one key meet at COMMIT as "PRIMARY KEY or UNIQUE constraint violation".
_CONFLICT = re.compile(rf"{_TRANSACTION}:.*([Cc]onflict|PRIMARY KEY or UNIQUE)")


@register
class DuckDB(KnownByCodes):
    """DuckDB: optimistic itself, and the one engine whose errors carry no code."""

    names = ("duckdb",)
    levels = ()  # a transaction has a snapshot, and no level
    drivers = ("duckdb", "_duckdb")
    causes = by_code((Cause.CONFLICT, ("conflict",)))

    def codes(self, error: BaseException) -> Iterator[str | int]:
        text = str(error)
        if _CONFLICT.match(text):
            yield "conflict"
        if text.startswith(_TRANSACTION):
            yield _TRANSACTION


class _FirebirdEnds(Ends):
    def ended_by(self, error: BaseException, connection: Connection | None = None) -> bool | None:
        """Return False for errors of the server: they undo their statement alone."""
        return False if any(_firebird_codes(error)) else None


@register
class Firebird(KnownByCodes):
    """Firebird: a committed change and a deadlock share one code, and differ in the next one.

    (Firebird language reference, appendix B.)
    """

    names = ("firebird",)
    ends = cached_property(_FirebirdEnds)
    drivers = ("firebird.driver", "fdb")
    # In order: an error carries several, and the first of this table decides.
    causes = by_code(
        # lock conflict on no wait transaction, lock time-out on wait transaction
        (Cause.LOCK_TIMEOUT, (335544345, 335544510)),
        # update conflicts with concurrent update, concurrent transaction number is …
        (Cause.CONFLICT, (335544451, 335544878)),
        (Cause.DEADLOCK, (335544336,)),
        (
            Cause.CONNECTION_LOST,
            (335544648, 335544721, 335544726, 335544727, 335544741, 335544856),
        ),
        (Cause.CONFLICT, ("40001", -913)),
    )

    def codes(self, error: BaseException) -> Iterator[str | int]:
        found = _firebird_codes(error)
        yield from (code for code in self.causes if code in found)
        yield from found.difference(self.causes)


def _firebird_codes(error: BaseException) -> set[Any]:
    """firebird-driver has attributes; fdb puts text, SQLCODE and the first code into ``args``."""
    named = (getattr(error, "sqlcode", None), getattr(error, "sqlstate", None))
    return {*getattr(error, "gds_codes", ()), *named, *error.args[1:]} - {None}


# ODBC: "[42000] [Microsoft][…] text (3960) (SQLExecDirectW)": the number is the driver
# manager's own field, whatever the language of the text.
_ODBC_NUMBER = re.compile(r"\((-?\d+)\) \(SQL\w+\)")


class _SQLServerEnds(Ends):
    def ended_by(self, error: BaseException, connection: Connection | None = None) -> bool | None:
        """A deadlock or a conflict does; for other errors, which depend on XACT_ABORT, it is asked.

        A question about no table begins no transaction ("SET IMPLICIT_TRANSACTIONS").
        """
        causes = {self.database.causes.get(code) for code in self.database.codes(error)}
        if causes & {Cause.CONFLICT, Cause.DEADLOCK}:
            return True
        if connection is None:
            return False
        cursor = connection.connection.cursor()
        try:
            cursor.execute("SELECT @@TRANCOUNT")
            answer: Any = cursor.fetchone()
            return not answer[0]
        finally:
            cursor.close()


class _SQLServerLocks(RowLocks):
    def locks_rows(self, dialect: Dialect) -> bool:
        return True

    def lock(self, query: Select[Any], table: Table, *, deleting: bool) -> Select[Any]:
        """SQLAlchemy leaves FOR UPDATE out; a table hint locks until the transaction ends."""
        return query.with_hint(table, "WITH (UPDLOCK, ROWLOCK)", "mssql")

    def share(self, query: Select[Any], table: Table, *, briefly: bool = False) -> Select[Any]:
        return query.with_hint(table, "WITH (REPEATABLEREAD, ROWLOCK)", "mssql")


@register
class SQLServer(KnownByCodes):
    """Microsoft SQL Server ("Database Engine events and errors", "Table hints")."""

    names = ("mssql",)
    ends = cached_property(_SQLServerEnds)
    levels = ("READ COMMITTED", "SERIALIZABLE")

    locks = cached_property(_SQLServerLocks)
    drivers = ("pyodbc", "pymssql", "_mssql", "mssql_python", "sqlalchemy.connectors.aioodbc")
    causes = by_code(
        # snapshot update conflict, and those of memory-optimized tables
        (Cause.CONFLICT, (3960, 41301, 41302, 41305, 41325)),
        (Cause.DEADLOCK, (1205, "40001")),  # ODBC gives 1205 this SQLSTATE
        (Cause.LOCK_TIMEOUT, (1222,)),
        # DB-Library: read failed, write failed, dead process
        (Cause.CONNECTION_LOST, (20004, 20006, 20047, "08")),
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


class _OracleEnds(Ends):
    def ended_by(self, error: BaseException, connection: Connection | None = None) -> bool | None:
        """Return False for numbered errors: they undo their statement alone.

        ("Statement-level rollback" in the concepts; ORA-02091 reports that all is rolled back.)
        """
        found = set(self.database.codes(error))
        return None if not found or 2091 in found else False


@register
class Oracle(KnownByCodes):
    """Oracle: its SERIALIZABLE is a snapshot.

    So two transactions may each write rows that the other has read.

    (Database Error Messages; python-oracledb.)
    """

    names = ("oracle",)
    ends = cached_property(_OracleEnds)
    drivers = ("oracledb", "cx_Oracle", "sqlalchemy.dialects.oracle")
    causes = by_code(
        (Cause.CONFLICT, (8177,)),  # ORA-08177: can't serialize access for this transaction
        (Cause.DEADLOCK, (60,)),
        (Cause.LOCK_TIMEOUT, (54, 30006, 2049)),  # NOWAIT, WAIT n, distributed_lock_timeout
        (Cause.CONNECTION_LOST, (28, 1012, 3113, 3114, 3135, 12537, "DPI-1010", "DPI-1080")),
        (Cause.CONNECTION_LOST, ("DPY-1001", "DPY-4011")),
    )

    def codes(self, error: BaseException) -> Iterator[str | int]:
        """The drivers put an object into ``args``; their own errors have number 0 and a name."""
        detail = error.args[0] if error.args else None
        name, number = getattr(detail, "full_code", None), getattr(detail, "code", None)
        if isinstance(name, str) and name:
            yield name
        if isinstance(number, int) and number:
            yield number
