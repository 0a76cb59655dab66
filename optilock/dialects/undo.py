"""What a unit of work sets on a connection, and how it is undone before the connection is pooled.

Whatever path the connection takes back (commit, rollback, an error, a session that was only
closed), the pool's ``checkin`` event comes last and before anybody else can have it. A connection
that cannot be put right is thrown away.
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.pool import Pool

__all__ = ["undo_with"]

_KEY = "optilock.undo"
_log = logging.getLogger("optilock")
#: Not asked of ``event.contains``, which knows a pool by its address, and so takes a new pool now
#: and then for one that is gone.
_pools: WeakSet[Pool] = WeakSet()


def undo_with(connection: Connection, statement: str) -> None:
    """Send ``statement`` when ``connection`` goes back to its pool; the last asked for first."""
    connection.info.setdefault(_KEY, []).append(statement)
    pool = connection.engine.pool
    if pool not in _pools:
        event.listen(pool, "checkin", _checkin)
        _pools.add(pool)


def _checkin(dbapi_connection: Any, record: Any) -> None:
    statements = record.info.pop(_KEY, None)
    if not statements or dbapi_connection is None:
        return
    try:
        _send(dbapi_connection, reversed(statements))
    except Exception:
        _log.warning("a connection could not be put right and is thrown away", exc_info=True)
        record.invalidate()
    except BaseException:
        record.invalidate()
        raise


def _send(dbapi_connection: Any, statements: Any) -> None:
    cursor = dbapi_connection.cursor()
    try:
        for statement in statements:
            cursor.execute(statement)
    finally:
        cursor.close()
