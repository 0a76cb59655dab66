"""The fixtures of the pytest plug-in, in small projects that pytest runs for these tests."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, make_url, update
from sqlalchemy.orm import sessionmaker

from optilock import ConfigurationError
from optilock._watched.guard import installation
from optilock.testing.lost_updates import assert_no_lost_update
from optilock.testing.sessions_under_test import SessionsUnderTest
from tests.engines import Target
from tests.support.models import Account
from tests.support.needed import needed

Project = Callable[..., "Done"]

MODELS = """
import pytest
from sqlalchemy import String, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from optilock import ConcurrencyError, ConfigurationError, UnitOfWork, Versioned, watch
from optilock import merge_fields
from sqlalchemy.exc import DBAPIError
from optilock.asyncio import AsyncUnitOfWork

class Base(DeclarativeBase):
    pass

class Page(Versioned, Base):
    __tablename__ = "plugin_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(20))
    likes: Mapped[int]
    stock: Mapped[int]

def pages():
    return [Page(id=n, title="Home", likes=0, stock=9) for n in (1, 2)]
"""
SYNC = """
@pytest.fixture
def engine():
    engine = create_engine({url!r})
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with sessionmaker(engine).begin() as session:
        session.add_all(pages())
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()

@pytest.fixture
def optilock_sessions(engine):
    return watch(sessionmaker(engine))
"""
SYNC_TESTS = """
def like(session):
    session.get_one(Page, 1).likes += 1

def flushed_like(session):
    like(session)
    session.flush()

def sell(session):
    session.get_one(Page, 1).stock -= 3

def rename(sessions, *keys):
    for key in keys:
        with sessions.begin() as session:
            session.get_one(Page, key).title = "Mine"

def titles(sessions):
    with sessions() as session:
        return [session.get_one(Page, key).title for key in (1, 2)]

def test_interleave(interleave, optilock_conflicts):
    ada, bob = interleave("ada", "bob")
    ada.do(like)
    bob.do(like)
    ada.commit()
    with pytest.raises(ConcurrencyError):
        bob.commit()
    assert [entry.database["likes"] for entry in optilock_conflicts] == [1]

def test_units_in_interleave(interleave, optilock_sessions, optilock_conflicts):
    unit = lambda: UnitOfWork(optilock_sessions, on_conflict=merge_fields)
    ada, bob = interleave("ada", "bob", sessions=unit)
    ada.do(like)
    bob.do(lambda session: setattr(session.get_one(Page, 1), "title", "Bob's"))
    ada.leave()
    bob.leave()
    (settled,) = optilock_conflicts
    assert settled.database["likes"] == 1

def test_at_once(somebody_else, optilock_sessions):
    with optilock_sessions() as session:
        session.get_one(Page, 1).title = "Mine"
        assert somebody_else(Page, 1, title="Theirs") is None
        with pytest.raises(ConcurrencyError) as refused:
            session.commit()
    assert refused.value.entries[0].database["title"] == "Theirs"

def test_at_the_first_write(somebody_else, optilock_sessions):
    somebody_else(Page, 1, at_write=1, title="Theirs")
    with pytest.raises(ConcurrencyError):
        rename(optilock_sessions, 1)
    assert titles(optilock_sessions) == ["Theirs", "Home"]

def test_at_the_second_write(somebody_else, optilock_sessions):
    somebody_else(Page, 1, at_write=2, title="Theirs")
    with pytest.raises(ConcurrencyError):
        rename(optilock_sessions, 2, 1)
    assert titles(optilock_sessions) == ["Theirs", "Mine"]

def test_beside_faults(somebody_else, optilock_faults, engine, optilock_sessions):
    optilock_faults(engine).deadlock()
    somebody_else(Page, 1, at_write=2, title="Theirs")
    for error in (DBAPIError, ConcurrencyError):
        with pytest.raises(error):
            rename(optilock_sessions, 1)
    assert titles(optilock_sessions) == ["Theirs", "Home"]

@pytest.mark.parametrize("work", [like, flushed_like])
def test_no_like_is_lost(assert_no_lost_update, work):
    assert_no_lost_update(work, Page, 1, "likes")

def test_nothing_is_sold_twice(assert_no_lost_update, optilock_sessions):
    assert_no_lost_update(sell, Page, 1, "stock", by=-3)
    unit = lambda: UnitOfWork(optilock_sessions)
    assert_no_lost_update(sell, Page, 1, "stock", by=-3, sessions=unit)
    with optilock_sessions() as session:
        assert session.get_one(Page, 1).stock == 3

def test_statements(count_statements, optilock_sessions):
    with optilock_sessions() as session, count_statements() as sent:
        session.get_one(Page, 1)
    assert sent.count == 1
"""
ASYNC = """
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def optilock_sessions():
    return watch(async_sessionmaker(create_async_engine({url!r})))
"""
ASYNC_TESTS = """
pytestmark = pytest.mark.{mark}

async def like(session):
    (await session.get_one(Page, 1)).likes += 1

async def rename(sessions):
    async with sessions.begin() as session:
        (await session.get_one(Page, 1)).title = "Mine"

async def test_all(
    optilock_sessions, interleave, somebody_else, optilock_conflicts, assert_no_lost_update,
    count_statements,
):
    engine = optilock_sessions.kw["bind"]
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    async with optilock_sessions.begin() as session:
        session.add_all(pages())
    try:
        await assert_no_lost_update(like, Page, 1, "likes")
        await assert_no_lost_update(
            like, Page, 1, "likes", sessions=lambda: AsyncUnitOfWork(optilock_sessions)
        )
        async with interleave("ada", "bob") as (ada, bob):
            await ada.do(like)
            await bob.do(like)
            await ada.commit()
            with pytest.raises(ConcurrencyError):
                await bob.commit()
        assert len(optilock_conflicts) == 3
        async with optilock_sessions() as session:
            (await session.get_one(Page, 1)).title = "Mine"
            await somebody_else(Page, 1, title="Theirs")
            with pytest.raises(ConcurrencyError):
                await session.commit()
        await somebody_else(Page, 1, at_write=1, title="Theirs again")
        with pytest.raises(ConcurrencyError):
            await rename(optilock_sessions)
        async with optilock_sessions() as session:
            with count_statements() as sent:
                assert (await session.get_one(Page, 1)).title == "Theirs again"
        assert sent.count == 1
    finally:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
        await engine.dispose()
"""


class Done:
    """A run of pytest: how often a test had an outcome, and the output."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.output = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when != "call":
            self.outcomes["errors"] += 1
        elif report.when == "call" or not report.passed:
            self.outcomes[report.outcome] += 1

    def require(self, *texts: str, **outcomes: int) -> None:
        assert self.outcomes == outcomes, self.output
        assert [text for text in texts if text not in self.output] == [], self.output


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Runs pytest on one file, in this process, with warnings as errors.

    ``pytester`` would load modules of SQLAlchemy and optilock again that the run has loaded.
    """
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(
        *sources: str, options: Sequence[str] = (), ini: str = "", by_entry_point: bool = False
    ) -> Done:
        done, name = Done(), f"test_inner_{next(_numbers)}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{ini}")
        (folder / f"{name}.py").write_text("\n".join(sources))
        fixed = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-rs", "--capture=no"]
        if by_entry_point:
            monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
            fixed += ["-p", "no:asyncio"]  # it warns of an option that is not set
        else:
            fixed += ["-p", "optilock.pytest_plugin"]
        where = [f"--rootdir={folder}", f"-c{folder / 'pytest.ini'}", str(folder)]
        monkeypatch.setattr(sys, "path", [*sys.path])
        with redirect_stdout(StringIO()) as output:
            pytest.main([*fixed, *options, *where], plugins=[done])
        sys.modules.pop(name, None)
        done.output = output.getvalue()
        return done

    return run


_numbers = itertools.count()


def url_of(database: Target) -> str:
    return make_url(database.url).render_as_string(hide_password=False)


# -- the fixtures of one test ----------------------------------------------------------------------


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_the_fixtures_find_conflicts(project: Project, database: Target) -> None:
    done = project(MODELS, SYNC.format(url=url_of(database)), SYNC_TESTS)

    done.require(passed=SYNC_TESTS.count("def test_") + 1)


@pytest.mark.engines("sqlite-wal", "postgresql")
@pytest.mark.full
def test_without_a_version_they_find_what_is_lost(project: Project, database: Target) -> None:
    models = MODELS.replace("Versioned, Base", "Base")

    done = project(models, SYNC.format(url=url_of(database)), SYNC_TESTS)

    done.require(
        "AssertionError: 2 commits were acknowledged, likes moved by 1. ",
        "AssertionError: 2 commits were acknowledged, stock moved by -3 instead of -3 for each. ",
        passed=1,
        failed=SYNC_TESTS.count("def test_"),
    )


@pytest.mark.parametrize("plugin", ["anyio", "asyncio"])
@pytest.mark.full
def test_the_fixtures_are_awaited_with_async_sessions(
    project: Project, async_database: Target, plugin: str
) -> None:
    module = {"anyio": "anyio.pytest_plugin", "asyncio": "pytest_asyncio.plugin"}[plugin]
    sources = ASYNC.format(url=async_database.async_url), ASYNC_TESTS.format(mark=plugin)
    ini = "asyncio_default_fixture_loop_scope = function" if plugin == "asyncio" else ""

    project(MODELS, *sources, options=["-p", module], ini=ini).require(passed=1)

    models = MODELS.replace("Versioned, Base", "Base")
    lost = project(models, *sources, options=["-p", module], ini=ini)
    lost.require("2 commits were acknowledged, likes moved by 1. ", failed=1)


@pytest.mark.full
def test_the_examples_of_the_page_pass(project: Project) -> None:
    page = Path(__file__).parents[3].joinpath("docs/how-to/test/testing.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    examples = "\n".join(blocks).replace("from models import Base, Page\n", "")

    project(examples).require(passed=examples.count("def test_"))
    unprotected = examples.replace("class Page(Versioned, Base)", "class Page(Base)")
    project(unprotected).require(
        "2 commits were acknowledged, likes moved by 1. An update of Page 1 was lost or repeated: ",
        passed=2,
        failed=4,
    )


FAULT = """
def test_none(somebody_else):
    somebody_else(Page, 1, at_write=2)
"""


def test_a_fault_that_does_not_come_is_an_error(project: Project, tmp_path: Path) -> None:
    done = project(MODELS, SYNC.format(url=f"sqlite:///{tmp_path / 'a.db'}"), FAULT)

    done.require("FaultNotMet: conflict(Page, 1) happened 0 of 1 times", passed=1, errors=1)


# -- what is refused -------------------------------------------------------------------------------


NEED_SESSIONS = ["interleave", "somebody_else", "assert_no_lost_update", "count_statements"]


def test_without_sessions_a_test_fails_and_shows_the_fixture_to_write(project: Project) -> None:
    done = project(*(f"def test_{fixture}({fixture}): pass" for fixture in NEED_SESSIONS))

    done.require("Override the fixture optilock_sessions in your conftest.py", errors=4)


def test_an_object_that_makes_no_sessions_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="optilock_sessions returned 'object'"):
        SessionsUnderTest(object())


def test_sessions_that_share_one_connection_are_refused() -> None:
    in_memory = create_engine("sqlite://", poolclass=StaticPool)
    with pytest.raises(ConfigurationError, match="SQLite in memory"):
        SessionsUnderTest(sessionmaker(in_memory)).sides("ada", "bob")
    with in_memory.connect() as one, pytest.raises(ConfigurationError, match="over one Connection"):
        SessionsUnderTest(sessionmaker(one)).sides("ada", "bob")
    in_memory.dispose()


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize(
    ("cls", "key", "attribute", "message"),
    [
        (Account, 7, "balance", "There is no Account 7"),
        (Account, 1, "balances", "Account has no attribute 'balances'"),
        (str, 1, "balance", "pass a mapped class"),
        (Account, 1, "owner", "owner of Account 1 is None"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(
    engine: Engine, account: Any, cls: type[Any], key: int, attribute: str, message: str
) -> None:
    with engine.begin() as connection:
        connection.execute(update(Account.__table__).values(owner=None))

    with pytest.raises(ConfigurationError, match=message):
        assert_no_lost_update(SessionsUnderTest(engine), pytest.fail, cls, key, attribute)


# -- options ---------------------------------------------------------------------------------------


STRICT_TESTS = """
early = watch(sessionmaker())

@pytest.mark.parametrize("late", [False, True])
def test_watched(engine, late):
    sessions = watch(sessionmaker()) if late else early
    with sessions(bind=engine) as session:
        session.get_one(Page, 1).title = "Mine"
        with pytest.raises(ConfigurationError, match="has no version"):
            session.commit()

def test_unit(engine):
    with pytest.raises(ConfigurationError, match="has no version"):
        with UnitOfWork(engine) as session:
            session.get_one(Page, 1).title = "Mine"
"""


@pytest.mark.parametrize("strict", [True, False])
def test_the_configuration_makes_every_watched_session_strict(
    project: Project, tmp_path: Path, strict: bool
) -> None:
    sources = (
        MODELS.replace("Versioned, Base", "Base"),
        SYNC.format(url=f"sqlite:///{tmp_path / 'a'}"),
    )

    done = project(*sources, STRICT_TESTS, ini=f"optilock_strict = {strict}".lower())

    done.require(**{"passed" if strict else "failed": 3})
    assert not installation.strict_by_default


@pytest.mark.parametrize("off", [False, True])
def test_pytest_loads_it_by_its_entry_point_unless_it_is_switched_off(
    project: Project, off: bool
) -> None:
    if not any(one.name == "optilock" for one in entry_points(group="pytest11")):
        needed("this source tree is not installed")
    options = ["-p", "no:optilock"] if off else []

    done = project("def test_it(interleave): pass", options=options, by_entry_point=True)

    reason = "fixture 'interleave' not found" if off else "Override the fixture optilock_sessions"
    done.require(reason, errors=1)


# -- databases -------------------------------------------------------------------------------------


URL_TESTS = """
from sqlalchemy import create_engine, text

def test_url(optilock_url):
    engine = create_engine(optilock_url)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    engine.dispose()
    print("it runs on", engine.dialect.name)
"""


def test_the_database_of_the_run_is_a_file_by_default(project: Project) -> None:
    project(URL_TESTS).require("it runs on sqlite", passed=1)


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.full
def test_the_command_line_names_the_server_of_the_run(project: Project, database: Target) -> None:
    name = database.url.split(":")[0].split("+")[0].replace("mysql", "mariadb")

    done = project(URL_TESTS, options=[f"--optilock-server={name}"])

    done.require(f"it runs on {name}".replace("mariadb", "m"), passed=1)


@pytest.mark.parametrize(("options", "outcome"), [([], "skipped"), (["mariadb"], "errors")])
def test_a_server_that_is_missing_skips_the_test_unless_the_command_line_names_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, options: list[str], outcome: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere/bin")
    named = [f"--optilock-server={name}" for name in options]

    done = project("def test_it(optilock_mariadb): pass", options=named)

    done.require("There is no mariadbd on PATH", **{outcome: 1})


WORKER_TESTS = """
import pathlib

def test_port(optilock_postgresql, worker_id):
    with pathlib.Path("ports").open("a") as ports:
        ports.write(f"{worker_id} {optilock_postgresql.port}\\n")
"""


@pytest.mark.engines("postgresql")
@pytest.mark.full
def test_each_worker_of_xdist_has_a_server_of_its_own(
    tmp_path: Path, database: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "test_ports.py").write_text(WORKER_TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "optilock.pytest_plugin", "-p", "xdist"]
    command += ["-c/dev/null", "--rootdir=.", "-Werror", "-n2", "--dist=each"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        line.split()[0]: line.split()[1] for line in (tmp_path / "ports").read_text().splitlines()
    }
    assert found.keys() == {"gw0", "gw1"}
    assert found["gw0"] != found["gw1"]
