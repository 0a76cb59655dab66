"""After which errors a worker goes on."""

from __future__ import annotations

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from optilock.queue.worker_state import can_continue_after

LOST = {
    "psycopg": psycopg.OperationalError("server closed the connection unexpectedly"),
    "pymysql": pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"),
}


@pytest.mark.parametrize("statement", ["COMMIT", None, "SELECT 1"])
@pytest.mark.parametrize("driver", LOST)
def test_a_connection_that_is_lost_ends_no_worker(driver: str, statement: str | None) -> None:
    """Not in COMMIT either: what a worker sends, it may send twice."""
    error = OperationalError(statement, None, LOST[driver], connection_invalidated=True)
    assert can_continue_after(error)


def test_what_is_wrong_with_the_table_does() -> None:
    wrong = pymysql.err.OperationalError(1054, "Unknown column")
    assert not can_continue_after(OperationalError("SELECT x", None, wrong))
