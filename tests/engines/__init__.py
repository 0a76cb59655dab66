"""The databases that tests run on: one small file an engine, all of them as :class:`Target`.

What a database can do is said in words, which tests ask for with ``@pytest.mark.needs(...)``:

``resolves-in-place``  its transaction survives a conflict, so that resolvers run
``row-locks``          it locks rows: two writers at a time
``server``             connections go over a socket and can be ended from elsewhere
``batch-statement``    rows of several sets of columns go in one statement

Each is emptied before a test; :mod:`tests.engines.kept_tables` says what may stay.
``OPTILOCK_TEST_POSTGRESQL_URL`` and ``OPTILOCK_TEST_MARIADB_URL`` name servers to use in place of
our own. Each process makes a database there, beside the named one, and drops it at its end.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest
from optilock_apps.servers import ServerMissing
from sqlalchemy import Engine

from optilock import OptilockError
from tests.engines import mariadb, postgresql, sqlite
from tests.engines.target import Target

__all__ = [
    "ASYNC",
    "CAPABILITIES",
    "MODES",
    "NAMES",
    "Target",
    "Targets",
    "missing",
    "running",
    "skip_without",
]

_MODULES: tuple[Any, ...] = (sqlite, postgresql, mariadb)
NAMES: tuple[str, ...] = tuple(name for module in _MODULES for name in module.NAMES)
CAPABILITIES: dict[str, frozenset[str]] = {
    name: can for module in _MODULES for name, can in module.CAPABILITIES.items()
}
#: Other modes of an engine: for tests of what the modes do differently (``@pytest.mark.modes``).
MODES = frozenset({"sqlite-journal", "mariadb-snapshot"})
#: What async tests run on: the database, and the driver.
ASYNC: dict[str, tuple[str, str]] = {
    "sqlite-wal": ("sqlite-wal", "sqlite+aiosqlite"),
    "postgresql": ("postgresql", "postgresql+psycopg"),
    "postgresql-asyncpg": ("postgresql", "postgresql+asyncpg"),
    "mariadb-asyncmy": ("mariadb", "mysql+asyncmy"),
}


class Targets:
    """Servers are started when a test first asks for them, and stopped with the session.

    One that could not be started is not tried again: whoever asks next gets the same error.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._servers: dict[str, Engine | None] = {}
        self._failed: dict[str, OptilockError] = {}

    def get(self, name: str, folder: Path, module: Path | None = None) -> Target:
        """The empty database ``name``; raises ``ServerMissing`` where it cannot run.

        For a test of ``module`` it may have empty tables (:mod:`tests.engines.kept_tables`).
        """
        engine = next(engine for engine in _MODULES if name in engine.NAMES)
        return engine.target(name, self._server(engine), folder, module)

    def _server(self, module: Any) -> Engine | None:
        family = module.FAMILY
        if family in self._failed:
            raise self._failed[family].with_traceback(None)
        if family not in self._servers:
            try:
                self._servers[family] = module.start(self._stack)
            except OptilockError as error:
                self._failed[family] = error
                raise
        return self._servers[family]

    def get_async(self, name: str, folder: Path) -> Target:
        """The empty database behind an async engine."""
        database, driver = ASYNC[name]
        return self.get(database, folder).asynchronous(name, driver)


@functools.cache
def missing(engine: str) -> str | None:
    """Why no test of the engine can run on this machine; nothing else is started to find out.

    Under ``CI=true`` they are to run, and to fail.
    """
    module = next(module for module in _MODULES if engine.startswith(module.FAMILY))
    if os.environ.get("CI") == "true":
        return None
    try:
        module.look()
    except ServerMissing as error:
        return _why(module, error)
    return None


def skip_without(engine: str, missing: ServerMissing) -> NoReturn:
    """Skip the test; under ``CI=true`` a missing engine is a failure."""
    if os.environ.get("CI") == "true":
        raise missing
    module = next(module for module in _MODULES if engine.startswith(module.FAMILY))
    pytest.skip(_why(module, missing))


def _why(module: Any, missing: ServerMissing) -> str:
    return (
        f"{module.TITLE} cannot be started. {missing}; or start Docker; or name a server on which"
        f" tests may make databases in {module.VARIABLE}"
    )


def running() -> Iterator[Targets]:
    with ExitStack() as stack:
        yield Targets(stack)
