"""The engine of a unit: the caller's, whose connections begin with the unit's own options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

__all__ = ["with_options"]


def with_options(engine: Engine, options: Mapping[str, Any]) -> Engine:
    """``engine.execution_options(**options)``, and no connection is lost on the way.

    SQLAlchemy sets an isolation level while it makes the ``Connection``. What ends it there (a task
    that is cancelled, an error of the server) leaves nobody who could give the driver's connection
    back to the pool, and it would wait there for the garbage collector.
    """
    routed: Engine = engine.execution_options()

    @event.listens_for(routed, "engine_connect")
    def engine_connect(connection: Connection) -> None:
        try:
            connection.execution_options(**options)
        except BaseException as error:
            if not isinstance(error, Exception):  # the answer of the server may be half read
                connection.invalidate(error)
            connection.close()
            raise

    return routed
