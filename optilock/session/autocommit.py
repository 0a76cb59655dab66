"""Connections in AUTOCOMMIT mode, on which nothing is guarded.

There every statement is stored at once: a row that is locked and looked at is free again before
it is written, and a flush that is refused half-way leaves its first half behind.
:func:`optilock.watch` refuses an engine that is known to be in that mode; what only a connection
knows (an option of the driver, ``session.connection(execution_options=...)``) is refused by the
first flush that would write guarded rows over it, before anything is sent. Reading over such a
connection is no problem.

What writes by one guarded statement and needs no transaction need not ask here.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.undocumented import has_begin_listeners, level_on_connect

__all__ = ["INSTEAD", "autocommits", "refuse_autocommit", "refuse_autocommit_of"]


def autocommits(connection: Any) -> bool:
    """Does every statement on it commit by itself? Asked once its transaction has begun."""
    return isinstance(connection, Connection) and database_of(connection.dialect).autocommits(
        connection
    )


def refuse_autocommit(connection: Connection, what: str) -> None:
    """Refuse to do ``what`` over a connection in AUTOCOMMIT mode.

    Raises:
        ConfigurationError: so it is; nothing was sent.
    """
    if autocommits(connection):
        raise ConfigurationError(
            f"{what} over a connection in AUTOCOMMIT mode is refused: every statement is stored at"
            " once, locked rows are free again at once, and half of the work could not be taken"
            f" back. {INSTEAD} Nothing was sent."
        )


def refuse_autocommit_of(target: Any) -> None:
    """Refuse a session factory whose engine, or connection, is known to be in that mode.

    Engines of single classes (``binds=``) may hold classes without a version: they are asked when
    a flush writes over them.

    Raises:
        ConfigurationError: so it is.
    """
    factory = getattr(target, "session_factory", target)
    bind: Any = getattr(factory, "kw", {}).get("bind")
    bind = getattr(bind, "sync_engine", None) or getattr(bind, "sync_connection", None) or bind
    if bind is None or not hasattr(bind, "get_execution_options"):
        return
    level = bind.get_execution_options().get("isolation_level") or level_on_connect(bind.dialect)
    # A listener that sends BEGIN makes transactions in this mode, too: asked again by a flush.
    if _is_autocommit(level) and not has_begin_listeners(bind.engine):
        raise ConfigurationError(
            "watch() got sessions of an engine in AUTOCOMMIT mode: every statement is stored at"
            f" once, and a refused flush could not be taken back. {INSTEAD}"
        )


def _is_autocommit(level: object) -> bool:
    return isinstance(level, str) and level.replace("_", " ").upper() == "AUTOCOMMIT"


INSTEAD = (
    'Give the sessions an engine without isolation_level="AUTOCOMMIT", and without the autocommit'
    " of its driver. For statements that need it, such as VACUUM, connect by"
    ' engine.execution_options(isolation_level="AUTOCOMMIT").'
)
