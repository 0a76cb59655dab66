"""An engine from what a user wrote on a command line."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from optilock.errors import ConfigurationError

__all__ = ["engine_of"]


def engine_of(url: str) -> Engine:
    """A sync engine; nothing is connected yet.

    Raises:
        ConfigurationError: the text is no URL, its driver is not installed, or is async. The text
            is not repeated: it may hold a password.
    """
    try:
        engine = create_engine(make_url(url))
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise ConfigurationError(
            f"The database URL cannot be read ({type(error).__name__}): write for example"
            " postgresql+psycopg://me@host/database."
        ) from None
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"The driver {error.name} is not installed.") from None
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"{engine.dialect.driver} is an async driver: name a sync one of the same database,"
            " for example psycopg, pymysql, or plain sqlite."
        )
    return engine
