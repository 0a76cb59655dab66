"""The pytest plug-in: fixtures for tests of an application, and their options.

::

    # conftest.py
    @pytest.fixture
    def optilock_sessions(engine):
        return watch(sessionmaker(engine))

    # test_pages.py
    def test_no_like_is_lost(assert_no_lost_update):
        assert_no_lost_update(like, Page, 1, "likes")

=========================  =========================================================================
``optilock_sessions``      your sessionmaker: override this fixture, the next five need it
``interleave``             sessions that the test steps by hand, ended after it
``somebody_else``          another session commits: at once, or just before the n-th write of a row
``optilock_conflicts``     the entries of the test's conflicts, settled ones too
``assert_no_lost_update``  two runs at once: acknowledged commits must equal the movement
``count_statements``       what the engine of ``optilock_sessions`` sends
``optilock_url``           a database of the run: a file of SQLite, or a private server
``optilock_postgresql``    a private PostgreSQL server, for the whole run
``optilock_mariadb``       a private MariaDB server, for the whole run
``explore``                :func:`optilock.testing.explore` with the limit of the command line
``optilock_faults``        a function of an engine that gives its :class:`optilock.testing.Faults`
``optilock_hot_rows``      forgets the hot rows after each test, without being asked for
=========================  =========================================================================

``--optilock-server=postgresql`` or ``mariadb`` names the server of ``optilock_url``;
``--optilock-explore-limit`` is the limit of ``explore``. ``optilock_strict = true`` in the
configuration makes every watched session strict.

pytest loads the plug-in where optilock is installed; ``-p no:optilock`` switches it off. It imports
SQLAlchemy when a test first uses one of its fixtures, so other test runs do not pay for it. With
pytest-xdist each worker has its own servers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    import optilock.testing
    from optilock import Entry
    from optilock.testing import Exploration, Faults
    from optilock.testing.sessions_under_test import SessionsUnderTest

__all__ = [
    "assert_no_lost_update",
    "count_statements",
    "explore",
    "interleave",
    "optilock_conflicts",
    "optilock_faults",
    "optilock_hot_rows",
    "optilock_mariadb",
    "optilock_postgresql",
    "optilock_sessions",
    "optilock_url",
    "pytest_addoption",
    "pytest_configure",
    "somebody_else",
]

_LIMIT, _SERVER, _STRICT = "--optilock-explore-limit", "--optilock-server", "optilock_strict"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("optilock")
    group.addoption(
        _LIMIT,
        type=int,
        metavar="ORDERS",
        help="the most orders that the fixture explore runs of one set of units (5000)",
    )
    group.addoption(
        _SERVER,
        choices=("postgresql", "mariadb"),
        help="run tests with the fixture optilock_url on a private server, not on a SQLite file;"
        " they fail if it cannot be started",
    )
    parser.addini(_STRICT, "make every watched session strict", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Make watched sessions strict if the configuration demands it."""
    if config.getini(_STRICT):
        from optilock.testing.strict_sessions import strict_sessions

        stack = ExitStack()
        stack.enter_context(strict_sessions())
        config.add_cleanup(stack.close)


# -- the sessions of the application ---------------------------------------------------------------


@pytest.fixture
def optilock_sessions() -> Any:
    """Return what the application makes its sessions with: override this fixture."""
    pytest.fail(
        "Override the fixture optilock_sessions in your conftest.py: it returns the sessionmaker,"
        " or async_sessionmaker, of the code under test.\n\n"
        "    @pytest.fixture\n"
        "    def optilock_sessions(engine):\n"
        "        return watch(sessionmaker(engine))\n",
        pytrace=False,
    )


@pytest.fixture
def _optilock_under_test(optilock_sessions: Any) -> SessionsUnderTest:
    from optilock.testing.sessions_under_test import SessionsUnderTest

    return SessionsUnderTest(optilock_sessions)


@pytest.fixture
def interleave(_optilock_under_test: SessionsUnderTest) -> Iterator[Callable[..., Any]]:
    """Return a function of names that gives a side for each: ``ada, bob = interleave(...)``.

    The sides end with the test. With async sessions write ``async with interleave(...) as (ada,
    bob):``. ``sessions=lambda: unit_of_work(SessionLocal)`` steps units of work.
    """
    with ExitStack() as stack:

        def interleave_sessions(*names: str, sessions: Any = None) -> Any:
            sides = _optilock_under_test.sides(*names, sessions=sessions)
            is_async = _optilock_under_test.is_async
            return sides if is_async else stack.enter_context(sides)  # type: ignore[arg-type]

        yield interleave_sessions


@pytest.fixture
def somebody_else(
    _optilock_under_test: SessionsUnderTest, optilock_faults: Callable[[Any], Faults]
) -> Callable[..., Any]:
    """Return a function that lets another session change a row and commit.

    ``somebody_else(Page, 1, title="Theirs")`` does so at once, and is awaited with async sessions.
    With ``at_write=2`` it is done just before the second statement from now that changes, deletes
    or locks rows of the table; the test ends in an error if there is none. Call it before your code
    begins its transaction. Without values the version of the row moves.
    """

    def change(
        cls: type[Any], key: object, /, *, at_write: int | None = None, **values: Any
    ) -> Any:
        if at_write is None:
            return _optilock_under_test.change(cls, key, values)
        faults = optilock_faults(_optilock_under_test.engine(cls))
        faults.conflict(cls, key, at_write=at_write, **values)
        return _optilock_under_test.result_of(_nothing())

    return change


async def _nothing() -> None:
    """Let a call be awaited that has done its work."""


@pytest.fixture
def optilock_conflicts() -> Iterator[list[Entry[Any]]]:
    """Return the list of entries of all conflicts so far, also of those that were settled.

    A row is in it once for each conflict: once for each attempt of a retry.
    """
    from optilock import events

    entries: list[Entry[Any]] = []

    def collect(event: events.Event) -> None:
        if isinstance(event, events.Conflict):
            entries.extend(event.entries)

    with events.listening(collect):
        yield entries


@pytest.fixture
def assert_no_lost_update(_optilock_under_test: SessionsUnderTest) -> Callable[..., Any]:
    """Return a function that runs a piece of work twice at once, and compares.

    ``assert_no_lost_update(like, Page, 1, "likes")`` calls ``like(session)`` in two sessions, and
    commits both. ``likes`` must have moved by 1, or by ``by=``, for each acknowledged COMMIT. It is
    awaited with async sessions; ``sessions=lambda: unit_of_work(SessionLocal)`` runs units of work.
    """
    from optilock.testing.lost_updates import assert_no_lost_update as judge

    def assert_of_sessions(
        work: Callable[[Any], Any], cls: type[Any], key: object, attribute: str, **options: Any
    ) -> Any:
        return judge(_optilock_under_test, work, cls, key, attribute, **options)

    return assert_of_sessions


@pytest.fixture
def count_statements(
    _optilock_under_test: SessionsUnderTest,
) -> Callable[[], AbstractContextManager[optilock.testing.Sent]]:
    """Return a function for ``with count_statements() as sent``."""
    from optilock.testing import count_statements as count

    return lambda: count(_optilock_under_test.engine())


# -- databases -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def optilock_postgresql(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a private PostgreSQL server (``.url``); skip with the reason if there is none."""
    yield from _server(request.config, "postgresql")


@pytest.fixture(scope="session")
def optilock_mariadb(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a private MariaDB server (``.url``); skip with the reason if there is none."""
    yield from _server(request.config, "mariadb")


@pytest.fixture(scope="session")
def optilock_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of an empty database: of the server that ``--optilock-server`` names.

    Without the option it is a file of SQLite.
    """
    name = request.config.getoption(_SERVER)
    if name is None:
        return f"sqlite:///{tmp_path_factory.mktemp('optilock') / 'test.db'}"
    url: str = request.getfixturevalue(f"optilock_{name}").url
    return url


def _server(config: pytest.Config, name: str) -> Iterator[Any]:
    """Run a server of ``optilock_apps``, which the library does not import."""
    start, missing = (
        resolve_name(f"optilock_apps.servers:{one}") for one in (name, "ServerMissing")
    )
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start())
        except (missing, ModuleNotFoundError) as error:
            if config.getoption(_SERVER) == name:
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
        yield server


# -- orders, faults and hot rows -------------------------------------------------------------------


@pytest.fixture
def explore(request: pytest.FixtureRequest) -> Callable[..., Exploration]:
    """Return ``explore``; ``--optilock-explore-limit`` is its limit, unless the call names one."""
    from optilock.testing import explore as explore_units

    limit = request.config.getoption(_LIMIT)

    def explore_with_limit(*units: Callable[[], Any], **options: Any) -> Exploration:
        if limit is not None:
            options.setdefault("limit", limit)
        return explore_units(*units, **options)

    return explore_with_limit


@pytest.fixture(autouse=True)
def optilock_hot_rows() -> Iterator[None]:
    """Forget the hot rows after each test (``strategy="adaptive"`` locks them)."""
    yield
    units = sys.modules.get("optilock.unit")
    if units is not None:
        units.forget_hot_rows()


@pytest.fixture
def optilock_faults() -> Iterator[Callable[[Engine | AsyncEngine], Faults]]:
    """Return a function of an engine that gives its :class:`~optilock.testing.Faults`.

    An engine has one, however often the function is called. They end with the test, and raise
    ``FaultNotMet`` if an armed fault was not met.
    """
    from optilock.testing import Faults

    known: dict[Any, Faults] = {}
    with ExitStack() as stack:

        def faults_of(engine: Engine | AsyncEngine) -> Faults:
            sync = getattr(engine, "sync_engine", engine)
            if sync not in known:
                known[sync] = stack.enter_context(Faults(engine))
            return known[sync]

        yield faults_of
