"""Fixtures: every database test runs on SQLite, PostgreSQL and MariaDB.

With ``@pytest.mark.modes`` it runs in their other modes, too: SQLite with a rollback journal, and
MariaDB with snapshot isolation, where the database itself ends a transaction at a conflict.

``database``      the :class:`tests.engines.Target` under test, empty
``engine``        a sync engine on it, disposed afterwards
``async_engine``  an async engine (aiosqlite, psycopg, asyncpg, asyncmy)
``store``, ``watched``, ``other``, ``gone``, ``stored``, ``refused``: see :mod:`tests.two_writers`

Choose engines with ``-k postgresql``, or for one test with
``@pytest.mark.engines("postgresql", "mariadb")`` or ``@pytest.mark.needs("row-locks")``. Where a
server cannot be started the test is skipped with the reason; under ``CI=true`` that is a failure.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine

from optilock.testing.servers import ServerMissing
from tests.engines import ASYNC, MODES, NAMES, Target, Targets, running
from tests.oldest import add_get_one
from tests.two_writers import gone as gone
from tests.two_writers import other as other
from tests.two_writers import refused as refused
from tests.two_writers import store as store
from tests.two_writers import stored as stored
from tests.two_writers import tables as tables
from tests.two_writers import watched as watched
from tests.two_writers import watched_on as watched_on

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def pytest_configure() -> None:
    """Who is asked to end, ends as by Ctrl-C: the fixtures then stop their servers."""
    add_get_one()
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Ten thousand tests live until the end: nobody need look among them for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """SQLAlchemy's asyncio half is asyncio's alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def targets() -> Iterator[Targets]:
    yield from running()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database" in metafunc.fixturenames and not _is_an_argument(metafunc.definition):
        metafunc.parametrize("database", _names(metafunc.definition), indirect=True)


def _is_an_argument(test: pytest.Item) -> bool:
    """Is ``database`` a parameter of the test's own?"""
    return any("database" in mark.args[0] for mark in test.iter_markers("parametrize"))


def _names(test: pytest.Item) -> tuple[str, ...]:
    """The engines that the test runs on; their other modes where it, or its module, asks."""
    if test.get_closest_marker("modes"):
        return NAMES
    named = test.get_closest_marker("engines")
    asked = set(named.args) if named else set()
    return tuple(name for name in NAMES if name not in MODES or name in asked)


@pytest.fixture
def database(request: pytest.FixtureRequest, targets: Targets, tmp_path: Path) -> Target:
    return _target(request, targets.get, tmp_path, request.param)


@pytest.fixture
def engine(database: Target) -> Iterator[Engine]:
    made = database.engine()
    yield made
    made.dispose()


@pytest.fixture(params=ASYNC)
def async_database(request: pytest.FixtureRequest, targets: Targets, tmp_path: Path) -> Target:
    return _target(request, targets.get_async, tmp_path, request.param)


@pytest.fixture
def async_engine(async_database: Target) -> AsyncEngine:
    """Made outside of any event loop: the test's own loop opens, and disposes."""
    from sqlalchemy.ext.asyncio import create_async_engine

    assert async_database.async_url is not None
    made = create_async_engine(async_database.async_url, **async_database.options)
    async_database.prepare(made.sync_engine)
    return made


def _target(
    request: pytest.FixtureRequest, get: Callable[[str, Path], Target], folder: Path, name: str
) -> Target:
    only = request.node.get_closest_marker("engines")
    if only is not None and not any(name.startswith(wanted) for wanted in only.args):
        pytest.skip(f"this is about {', '.join(only.args)} only")
    try:
        found = get(name, folder)
    except ServerMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    needed = request.node.get_closest_marker("needs")
    missing = set(needed.args if needed else ()) - found.capabilities
    if missing:
        pytest.skip(f"{name} has no {', '.join(sorted(missing))}")
    return found
