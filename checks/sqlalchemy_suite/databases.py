"""Where SQLAlchemy's tests run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optilock_apps import servers
from sqlalchemy import create_engine, text

__all__ = ["NAMES", "database"]

NAMES = ("sqlite", "postgresql")

#: What SQLAlchemy's README.unittests.rst asks for.
_PREPARE = ("CREATE SCHEMA test_schema", "CREATE SCHEMA test_schema_2")


@contextmanager
def database(name: str) -> Iterator[str]:
    """The URL of an empty database that the tests may use up."""
    if name == "sqlite":
        yield "sqlite://"
        return
    with servers.postgresql({"max_connections": "200"}) as server:
        engine = create_engine(server.url)
        with engine.begin() as connection:
            for statement in _PREPARE:
                connection.execute(text(statement))
        engine.dispose()
        yield server.url
