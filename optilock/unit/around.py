"""A unit inside another one on the same database that it does not join: two transactions.

Units join when they are opened on the same sessions. On another factory, or the engine itself, the
inner one is a transaction of its own, without anybody having said so: what it commits stays when
the outer one fails, and a row that both write is a lock for which the inner one waits for ever,
because the outer one waits for the inner one. No database sees that: one half of the circle is in
the program.
"""

from __future__ import annotations

import warnings
from typing import Any

from sqlalchemy import Connection, Engine

from optilock.errors import SeparateUnitWarning
from optilock.session.caller import level_of_caller
from optilock.session.connections import binds_of_sessions
from optilock.unit import running

__all__ = ["tell_of_units_around"]


def tell_of_units_around(sessions: Any) -> None:
    """Warn where a unit on other sessions of the same database runs here already."""
    around = [one for one in running.opened_with() if one is not sessions]
    if not around:
        return
    ours, theirs = binds_of_sessions(sessions), [b for s in around for b in binds_of_sessions(s)]
    if any(_same_database(one, other) for one in ours for other in theirs):
        warnings.warn(
            "this unit of work does not join the one that runs already, because it was opened on"
            " other sessions of the same database: it commits on its own, and where both write a"
            " row it waits for ever for the unit around it. Open both on one sessionmaker, or give"
            " the inner one independent=True if two transactions are meant.",
            SeparateUnitWarning,
            stacklevel=level_of_caller(),
        )


def _same_database(one: Engine | Connection, other: Engine | Connection) -> bool:
    """Is it one pool, or one address? Databases in the memory of the process have none.

    On one connection the two are no two transactions.
    """
    if one is other and isinstance(one, Connection):
        return False
    if one.engine.pool is other.engine.pool:
        return True
    a, b = one.engine.url, other.engine.url
    if not a.database or "memory" in a.database:
        return False
    return (a.get_backend_name(), a.host, a.port, a.database) == (
        b.get_backend_name(),
        b.host,
        b.port,
        b.database,
    )
