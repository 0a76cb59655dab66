"""The databases that tests run on: one small file an engine, all of them as :class:`Target`.

What a database can do is said in words, which tests ask for with ``@pytest.mark.needs(...)``:

``resolves-in-place``  its transaction survives a conflict, so that resolvers run
``row-locks``          it locks rows: two writers at a time
``server``             connections go over a socket and can be ended from elsewhere
``batch-statement``    rows of several sets of columns go in one statement

Each is emptied before a test. ``OPTILOCK_TEST_POSTGRESQL_URL`` and ``OPTILOCK_TEST_MARIADB_URL``
name databases to use in place of our own; tests drop everything in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.engines import mariadb, postgresql, sqlite
from tests.engines.target import Target

__all__ = ["ASYNC", "MODES", "NAMES", "Target", "Targets"]

_MODULES = (sqlite, postgresql, mariadb)
NAMES: tuple[str, ...] = tuple(name for module in _MODULES for name in module.NAMES)
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
    """Servers are started when a test first asks for them, and stopped with the session."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._servers: dict[str, str] = {}

    def get(self, name: str, folder: Path) -> Target:
        """The empty database ``name``; raises ``ServerMissing`` where it cannot run."""
        module = next(module for module in _MODULES if name in module.NAMES)
        family = module.FAMILY
        if family not in self._servers:
            self._servers[family] = module.start(self._stack)
        return module.target(name, self._servers[family], folder)

    def get_async(self, name: str, folder: Path) -> Target:
        """The empty database behind an async engine."""
        database, driver = ASYNC[name]
        return self.get(database, folder).asynchronous(name, driver)


def running() -> Iterator[Targets]:
    with ExitStack() as stack:
        yield Targets(stack)
