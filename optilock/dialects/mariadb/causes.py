"""The meaning of the error codes of MariaDB and of MySQL: 3101, 3572 and 4031 are MySQL's alone."""

from __future__ import annotations

from collections.abc import Iterator

from optilock.dialects.causes import Cause, by_code
from optilock.dialects.refusals import Refusals


class MariaDBCodes(Refusals):
    drivers = ("pymysql", "MySQLdb", "mysql", "mariadb", "asyncmy", "aiomysql", "cymysql")
    causes = by_code(
        # innodb_snapshot_isolation: SQLSTATE is only HY000, and the transaction is gone;
        # group replication refused to certify
        (Cause.CONFLICT, (1020, 3101)),
        (Cause.DEADLOCK, (1213, 1614)),
        (Cause.LOCK_TIMEOUT, (1205, 1613, 3572)),
        # the snapshot, or the prepared statement, is older than the table's newest form
        (Cause.ALTERED_TABLE, (1412, 1615)),
        (Cause.UNKNOWN_OUTCOME, (1180,)),
        (Cause.CONNECTION_LOST, (2002, 2003, 2006, 2013, 2055, 1053, 1927, 4031)),
        # too many connections, of all or of this user
        (Cause.CONNECTION_LOST, (1040, 1203)),
        # Galera: the node has lost the others, and another one may answer
        (Cause.CONNECTION_LOST, (1047,)),
        # the drivers' own "already closed": PyMySQL and mysqlclient 0, mysql-connector -1
        (Cause.CONNECTION_LOST, (0, -1)),
    )
    #: Access denied, to a database, a table, or an operation.
    forbidden = frozenset({1044, 1142, 1143, 1227, 1419})
    #: A transaction, or a server; the code of the second one is also that of other options.
    read_only = frozenset({1792, 1290, 1836})
    #: A full disk or table, twice; errors of a file; KILL QUERY and limits of time.
    hindrances = frozenset({1021, 1114, 3, 1026, 1317, 1969, 3024})
    #: CHECK of MariaDB and of MySQL, out of range in a column and in an expression, SIGNAL.
    unstorable = frozenset({4025, 3819, 1264, 1690, 1644})
    causes_at_commit = by_code(
        (Cause.CONFLICT, (1213,)),  # Galera certifies at COMMIT: another node's commit was first
        (Cause.UNKNOWN_OUTCOME, (1047,)),  # Galera: it has lost the others while it asked
    )
    # Never connected, or thrown out while idle.
    lost_before_commit = frozenset({2002, 2003, 4031, 1040, 1203})
    # KILL QUERY and limits of time, between COMMIT and the end of the compound statement it is in.
    interrupts_commit = frozenset({1317, 1969, 3024})

    def codes(self, error: BaseException) -> Iterator[str | int]:
        """The number alone: the same SQLSTATE stands for different things here."""
        number = getattr(error, "errno", None)
        if number is None and error.args:
            number = error.args[0]
        if isinstance(number, int):
            yield number


#: Errors that roll back their statement alone, in any setting of the server: rules about values,
#: duplicate keys, parents that are missing or in use, names and syntax.
OF_ONE_STATEMENT = frozenset(
    {1048, 1054, 1062, 1064, 1146, 1264, 1305, 1364, 1366, 1406, 1451, 1452, 1644, 1690, 4025}
)


def number_of(error: BaseException | None) -> object:
    """The number that every driver has first in ``args``."""
    return error.args[0] if error is not None and error.args else None
