"""Connections of MariaDB that wait for a lock."""

from __future__ import annotations

from collections.abc import Collection
from time import sleep
from typing import Any

from optilock.dialects.watching import Watching


class MariaDBWatching(Watching):
    lock_question = (
        "SELECT count(*) > 0 FROM information_schema.innodb_trx"
        " WHERE trx_mysql_thread_id = {} AND trx_state = 'LOCK WAIT'"
    )

    # InnoDB renews the table only if no query has read it for 0.1 s (INNODB_TRX in its manual).
    lock_question_pause = 0.11

    def number_of(self, connection: Any) -> int | None:
        number = getattr(connection, "thread_id", None)  # PyMySQL, mysqlclient
        return number() if callable(number) else None

    def who_waits(self, cursor: Any, numbers: Collection[int]) -> frozenset[int] | None:
        """The count of waits is fresh, and ``innodb_trx`` is up to 0.1 s old.

        The count is one of the whole server. It is ours where no other connection runs a statement.
        """
        listed = ", ".join(map(str, numbers))
        cursor.execute(
            "SELECT count(*) FROM information_schema.processlist WHERE id <> connection_id()"
            f" AND command IN ('Query', 'Execute') AND id NOT IN ({listed})"
        )
        if cursor.fetchone()[0]:
            sleep(self.lock_question_pause)
            cursor.execute(
                "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx"
                f" WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id IN ({listed})"
            )
            return frozenset(number for (number,) in cursor.fetchall())
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        waits = int(cursor.fetchone()[1])
        if waits >= len(numbers):
            return frozenset(numbers)
        return None if waits else frozenset()
