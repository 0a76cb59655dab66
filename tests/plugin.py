"""Fixtures of all tests: every database test runs on SQLite, PostgreSQL and MariaDB.

``conftest.py`` of the whole tree loads this plugin, for ``tests``, ``apps/tests`` and ``checks``.

With ``@pytest.mark.modes`` it runs in their other modes, too: SQLite with a rollback journal, and
MariaDB with snapshot isolation, where the database itself ends a transaction at a conflict. Where
the mode changes nothing that the test is about, ``modes(full=True)`` keeps them for ``--full``.
:mod:`tests.support.selection` says which of a test's executions run.

``database``      the :class:`tests.engines.Target` under test, empty
``engine``        a sync engine on it, disposed afterwards
``async_engine``  an async engine (aiosqlite, psycopg, asyncpg, asyncmy)
``collect``       collects the test's own garbage
``tries``         chooses how often chance is tried
``store``, ``account``, ``watched``, ``other``, ``gone``, ``stored``, ``refused``, and for async
tests ``async_store``: see :mod:`tests.support.two_writers`

Choose engines with ``-k postgresql``, or for one test with
``@pytest.mark.engines("postgresql", "mariadb")`` or ``@pytest.mark.needs("row-locks")``. Where a
server cannot be started its tests are left out, and the summary says why in one line; under
``CI=true`` they fail.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from optilock_apps.servers import ServerMissing
from sqlalchemy import Engine
from sqlalchemy.orm.mapper import _all_registries

from checks import deployments
from optilock.exactly_once.keys import option_in_use
from tests.engines import ASYNC, MODES, NAMES, Target, Targets, running, skip_without
from tests.support import summary
from tests.support.oldest import add_get_one
from tests.support.reached import Reached, function_of
from tests.support.selection import (
    Execution,
    cannot_run,
    chosen,
    executions,
    in_part,
    repeats,
    suits,
)
from tests.support.summary import LEFT, MISSING
from tests.support.times import Times
from tests.support.two_writers import account as account
from tests.support.two_writers import async_store as async_store
from tests.support.two_writers import async_tables as async_tables
from tests.support.two_writers import gone as gone
from tests.support.two_writers import line as line
from tests.support.two_writers import other as other
from tests.support.two_writers import refused as refused
from tests.support.two_writers import store as store
from tests.support.two_writers import stored as stored
from tests.support.two_writers import tables as tables
from tests.support.two_writers import watched as watched
from tests.support.two_writers import watched_on as watched_on

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def pytest_configure(config: pytest.Config) -> None:
    """Who is asked to end, ends as by Ctrl-C: the fixtures then stop their servers."""
    add_get_one()
    # Or each of the many programs that tests start would compile the library again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    workers = config.option.numprocesses or 0
    if workers == 0 or "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.pop("PYTEST_ADDOPTS", None)  # is for this run, not for those that tests start
    config.pluginmanager.register(summary)
    if config.option.times or config.option.budget:
        config.pluginmanager.register(Times(budget=config.option.budget))
    if config.option.reached and (workers == 0 or "PYTEST_XDIST_WORKER" in os.environ):
        config.pluginmanager.register(Reached(config.option.reached))
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests live until the end: nobody need look among them for garbage, or often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let every second process of pytest-xdist read the files from the last to the first.

    pytest compiles a test file when a process first reads it, and stores the result. Two processes
    that begin at both ends compile half of the files each.
    """
    report = yield
    if isinstance(collector, pytest.Session | pytest.Directory) and _reads_backwards():
        report.result = [*reversed(report.result)]
    return report


def _reads_backwards() -> bool:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2 == 1


@pytest.fixture
def tries(pytestconfig: pytest.Config) -> Callable[[int, int, int], int]:
    """Chooses how often chance is tried: by default, with ``--full``, with ``--product``."""
    product, full = pytestconfig.option.product, pytestconfig.option.full
    return lambda *amounts: amounts[2 if product else int(full)]


@pytest.fixture
def collect() -> Callable[[], int]:
    """Collects the test's own garbage: among that of all tests before it would take a second."""
    gc.freeze()
    return gc.collect


@pytest.fixture(autouse=True)
def no_broken_mappings() -> Iterator[None]:
    """Forgets the classes of this test that cannot be configured.

    SQLAlchemy configures all mappings of the process together: until such classes are collected as
    garbage, whenever that is, every test that follows would fail.
    """
    before = _all_registries()
    yield
    for registry in _all_registries() - before:
        try:
            registry.configure(cascade=True)
        except Exception:  # a class that is mapped by half raises anything
            registry.dispose(cascade=True)


@pytest.fixture(autouse=True)
def no_units_of_other_tests() -> Iterator[None]:
    """Lets ``check`` look for the table of commit tokens for units of this test alone."""
    yield
    option_in_use.seen = False


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """SQLAlchemy's asyncio half is asyncio's alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def targets() -> Iterator[Targets]:
    yield from running()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Let pytest make the executions that run, and no item for any other one.

    Its private ``_calls`` are the only place for that: an item takes a third of a millisecond, of
    each process. A test of which nothing runs keeps one, which is then deselected.
    """
    if "database" in metafunc.fixturenames and not _is_an_argument(metafunc.definition):
        metafunc.parametrize("database", _names(metafunc.definition), indirect=True)
    yield
    if not metafunc._calls:
        return
    about = [one for one in executions(metafunc) if suits(one)]
    run = about if _is_whole(metafunc.config) else chosen(about, full=metafunc.config.option.full)
    _note_left(metafunc.config, len(about) - len(run))
    first = metafunc._calls[0]
    metafunc._calls[:] = [one.parameters for one in run] or [first]
    if not run:
        first.marks.append(pytest.mark.left_out.mark)


def _is_an_argument(test: pytest.Item) -> bool:
    """Is ``database`` a parameter of the test's own?"""
    return any("database" in mark.args[0] for mark in test.iter_markers("parametrize"))


def _names(test: pytest.Item) -> list[Any]:
    """The engines that the test runs on; their other modes where it, or its module, asks."""
    named, modes = test.get_closest_marker("engines"), test.get_closest_marker("modes")
    usual = {*NAMES} - MODES | ({*named.args} if named else set())
    if modes is None:
        return [name for name in NAMES if name in usual]
    later = [pytest.mark.full] if modes.kwargs.get("full") else []
    return [pytest.param(name, marks=[] if name in usual else later) for name in NAMES]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # All processes have to list the tests in one order.
        items.sort(key=lambda item: str(item.path))
    for item in items:
        if name := deployments.of(item):
            item.add_marker(name)
    before, only = _written(config.option.not_in), _written(config.option.functions)
    every = config.option.functions is None
    run = [item for item in items if _is_run(config, item) and item.nodeid not in before]
    run = [item for item in run if every or function_of(item.nodeid) in only]
    run = [item for item in run if in_part(function_of(item.nodeid), config.option.part)]
    reasons = {item: why for item in run if (why := cannot_run(_execution(item)))}
    config.stash[MISSING] = dict(Counter(reasons.values()))
    now = {item for item in run if item not in reasons}
    config.hook.pytest_deselected(items=[item for item in items if item not in now])
    items[:] = [item for item in items if item in now]
    _write(config, items)


def _execution(item: pytest.Item) -> Execution:
    return Execution(item, getattr(item, "callspec", None))


def _is_run(config: pytest.Config, item: pytest.Item) -> bool:
    """What has parameters was chosen when its items were made."""
    if item.get_closest_marker("left_out"):
        return False
    one = _execution(item)
    if one.parameters is None and not (_is_whole(config) or chosen([one], full=config.option.full)):
        _note_left(config, 1)
        return False
    return True


def _is_whole(config: pytest.Config) -> bool:
    return config.option.product or any("::" in named for named in config.args)


def _note_left(config: pytest.Config, count: int) -> None:
    config.stash[LEFT] = config.stash.get(LEFT, 0) + count


def _written(file: Path | None) -> set[str]:
    return set(file.read_text(encoding="utf-8").splitlines()) if file else set()


def _write(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The first process alone: all of them list the same tests."""
    worker = getattr(config, "workerinput", {"workerid": "gw0"})["workerid"]
    if config.option.write_ids and worker == "gw0":
        ids = [item.nodeid for item in items if not repeats(_execution(item))]
        config.option.write_ids.write_text("\n".join(ids), encoding="utf-8")


@pytest.fixture
def database(request: pytest.FixtureRequest, targets: Targets) -> Target:
    # Tests of migrations and checks look at all tables there are.
    keeps = "tables" in request.fixturenames and request.path.parent.name not in _LOOK_AT_ALL
    module = request.path if keeps else None
    # A server needs no folder, and pytest takes longer to make one than to delete a test's rows.
    on_file = request.param.startswith("sqlite")
    folder = request.getfixturevalue("tmp_path") if on_file else Path()
    return _target(functools.partial(targets.get, module=module), folder, request.param)


_LOOK_AT_ALL = {"check", "migrations"}


@pytest.fixture
def engine(database: Target) -> Iterator[Engine]:
    """As of an application that has run for long: what tests before it compiled is compiled."""
    made = database.engine()
    database.share(made)
    yield made
    made.dispose()


@pytest.fixture(params=ASYNC)
def async_database(request: pytest.FixtureRequest, targets: Targets, tmp_path: Path) -> Target:
    return _target(targets.get_async, tmp_path, request.param)


@pytest.fixture
async def async_engine(async_database: Target, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    """Disposed in the event loop of the test; one that begins a loop itself disposes there, too."""
    from sqlalchemy.ext.asyncio import create_async_engine

    assert async_database.async_url is not None
    made = create_async_engine(async_database.async_url, **async_database.options)
    async_database.prepare(made.sync_engine)
    yield made
    await made.dispose()


def _target(get: Callable[[str, Path], Target], folder: Path, name: str) -> Target:
    try:
        return get(name, folder)
    except ServerMissing as error:
        skip_without(name, error)
