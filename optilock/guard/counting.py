"""Row counts are the answer to every guarded write: a driver that has none is refused."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Dialect

from optilock.errors import ConfigurationError

__all__ = ["require_row_counts", "require_row_counts_of"]


def require_row_counts(dialect: Dialect) -> None:
    """Raise ``ConfigurationError`` when the driver cannot tell how many rows were matched."""
    if not dialect.supports_sane_rowcount:
        raise ConfigurationError(
            f"The driver {dialect.driver!r} cannot tell how many rows a statement matched, so a"
            " lost update could not be seen. Use a driver that counts rows (psycopg, asyncpg,"
            " sqlite3, pymysql); nothing was written."
        )


def require_row_counts_of(sessions: Any) -> None:
    """The same for the engines of a session factory, or an engine, as far as known already."""
    factory = getattr(sessions, "session_factory", sessions)
    options = getattr(factory, "kw", {})
    for bind in (options.get("bind", factory), *(options.get("binds") or {}).values()):
        dialect = getattr(getattr(bind, "sync_engine", bind), "dialect", None)
        if dialect is not None:
            require_row_counts(dialect)
