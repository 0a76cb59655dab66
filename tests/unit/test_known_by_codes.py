"""An engine that is known by the codes of its errors alone: how one is added, and what it refuses.

Granite is SQLite under another name, with errors of a driver that nobody else has.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.dialects import mssql, oracle, registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool

from optilock import (
    ConfigurationError,
    Isolation,
    UnitOfWork,
    Versioned,
    is_transient,
    serializable,
    unit_of_work,
    watch,
)
from optilock._mapping.triggers import trigger_ddl
from optilock.dialects import Cause, Database, KnownByCodes, database_of, register
from optilock.dialects.known_by_codes import DuckDB, Oracle, SQLServer
from optilock.dialects.registry import MODULES
from optilock.dialects.transient import cause_of
from optilock.errors import TransactionEnded
from optilock.rollout import roll_out
from optilock.tokens import Counter, RowVersion
from optilock.tokens.guard_trigger import GuardTrigger


@register
class Granite(KnownByCodes):
    """The whole of what a new engine says."""

    names = ("granite",)
    drivers = ("granite_driver",)
    causes = {"40001": Cause.CONFLICT, "HYT00": Cause.LOCK_TIMEOUT}


class GraniteDialect(SQLiteDialect_pysqlite):
    name = "granite"
    supports_statement_cache = True


registry.register("granite", __name__, "GraniteDialect")


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]


class Moved(Versioned, Base):
    __tablename__ = "moved"
    __version_token__ = RowVersion()
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def granite() -> Iterator[Engine]:
    engine = create_engine("granite://", poolclass=StaticPool)
    Base.metadata.create_all(engine, [Page.__table__])  # type: ignore[list-item]
    with Session(engine) as session, session.begin():
        session.add(Page(id=1, title="Home"))
    yield engine
    engine.dispose()


def refused_with(sqlstate: str) -> DBAPIError:
    """What SQLAlchemy raises when the driver says so."""
    kind = type("Error", (Exception,), {"__module__": "granite_driver.errors"})
    error: Exception = kind("text in any language")
    vars(error)["sqlstate"] = sqlstate
    return DBAPIError("UPDATE t SET v = 2", None, error)


def read_in(unit: UnitOfWork[Session]) -> None:
    with unit as session:
        session.get_one(Page, 1)


def test_its_codes_say_what_is_worth_another_run() -> None:
    assert cause_of(refused_with("40001")) is Cause.CONFLICT
    assert cause_of(refused_with("HYT00")) is Cause.LOCK_TIMEOUT
    assert is_transient(refused_with("HYT00"))
    assert not is_transient(refused_with("23505"))


def test_a_unit_is_run_again_after_its_conflict(granite: Engine) -> None:
    runs = []

    @unit_of_work(granite)
    def rename(session: Session) -> None:
        session.get_one(Page, 1).title = "Start"
        session.flush()
        runs.append("run")
        if len(runs) == 1:
            raise refused_with("40001")

    rename()
    assert runs == ["run", "run"]
    with Session(granite) as session:
        assert session.scalar(text("SELECT title || version FROM pages")) == "Start2"


BAD = text("INSERT INTO pages (id, title, version) VALUES (1, 'Again', 1)")


@pytest.fixture
def forgetful(granite: Engine) -> Engine:
    """An engine that rolls back a transaction at a double key, and begins another one."""
    with granite.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER double BEFORE INSERT ON pages WHEN NEW.id = 1"
            " BEGIN SELECT RAISE(ROLLBACK, 'double'); END"
        )
    return granite


def halves(session: Session, between: Callable[[Session], object]) -> None:
    session.add(Page(id=2, title="First half"))
    session.flush()
    with contextlib.suppress(DBAPIError):
        between(session)
    session.add(Page(id=3, title="Second half"))


def in_savepoint(session: Session) -> None:
    with session.begin_nested():
        session.execute(BAD)


def in_later_savepoint(session: Session) -> None:
    with contextlib.suppress(DBAPIError):
        session.execute(BAD)
    in_savepoint(session)


@pytest.mark.parametrize(
    "between",
    [
        lambda session: session.execute(BAD),
        in_savepoint,
        in_later_savepoint,
        lambda session: session.execute(text("COMMIT")),
        lambda session: session.execute(text("-- by hand\nCOMMIT")),
        lambda session: session.execute(text("ROLLBACK")),
    ],
    ids=["error", "error in a savepoint", "then a savepoint", "COMMIT", "noted", "ROLLBACK"],
)
@pytest.mark.parametrize("runs", [UnitOfWork, lambda engine: watch(sessionmaker(engine)).begin()])
def test_half_of_a_transaction_is_never_committed_after_an_error(
    forgetful: Engine, between: Callable[[Session], object], runs: Any
) -> None:
    """The driver does not know that the transaction has ended: an error leaves it in doubt."""
    with pytest.raises((TransactionEnded, DBAPIError)), runs(forgetful) as session:
        halves(session, between)
    with Session(forgetful) as session:
        assert session.get(Page, 3) is None


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_savepoint_that_is_rolled_back_after_the_error_leaves_no_doubt(
    granite: Engine, is_inside: bool
) -> None:
    if is_inside:
        with UnitOfWork(granite) as session:
            halves(session, in_savepoint)
    else:
        with (
            pytest.raises(TransactionEnded, match="try the statement in a savepoint") as raised,
            UnitOfWork(granite) as session,
        ):
            halves(session, lambda session: session.execute(BAD))
        assert "UNIQUE" in str(raised.value.__cause__)
    with Session(granite) as session:
        assert len(session.scalars(select(Page)).all()) == (3 if is_inside else 1)


def test_a_savepoint_of_the_programs_own_ends_no_transaction(granite: Engine) -> None:
    with UnitOfWork(granite) as session:
        session.add(Page(id=2, title="First half"))
        session.flush()
        for sql in ("SAVEPOINT mine", "ROLLBACK TO SAVEPOINT mine", "RELEASE SAVEPOINT mine"):
            session.execute(text(sql))
        session.add(Page(id=3, title="Second half"))
    with Session(granite) as session:
        assert len(session.scalars(select(Page)).all()) == 3


@pytest.mark.parametrize("level", [Isolation.REPEATABLE_READ, Isolation.SERIALIZABLE])
def test_a_level_that_it_does_not_promise_is_refused(granite: Engine, level: Isolation) -> None:
    with pytest.raises(ConfigurationError, match="READ_COMMITTED, or leave isolation= out"):
        read_in(UnitOfWork(granite, isolation=level))


def test_a_unit_that_only_reads_is_refused(granite: Engine) -> None:
    with pytest.raises(ConfigurationError, match="granite read-only: leave read_only=True out"):
        read_in(UnitOfWork(granite, read_only=True))


def test_a_version_that_the_database_makes_is_refused(granite: Engine) -> None:
    with pytest.raises(ConfigurationError, match=r"not on granite: use Counter\(\)"):
        trigger_ddl(Moved.__table__, Moved.__table__.c.version, granite.dialect)  # type: ignore[arg-type]


def test_a_guard_trigger_is_refused(granite: Engine) -> None:
    triggers = database_of(granite.dialect).guard_triggers(granite.dialect)
    with pytest.raises(ConfigurationError, match=r"for granite: .* Leave __version_guard__ out"):
        triggers.create(GuardTrigger("pages", Counter(), "bump"))


def test_a_roll_out_is_refused(granite: Engine) -> None:
    with pytest.raises(ConfigurationError, match="on granite: add the column with a migration"):
        roll_out(granite, "pages")


@pytest.mark.parametrize(
    ("dialect", "engine", "promised"),
    [
        (mssql.dialect(), SQLServer, ["READ COMMITTED", "SERIALIZABLE"]),
        (oracle.dialect(), Oracle, ["READ COMMITTED"]),
    ],
)
def test_what_an_engine_calls_by_a_levels_name_may_be_less(
    dialect: Dialect, engine: type[KnownByCodes], promised: list[str]
) -> None:
    known = database_of(dialect)
    assert type(known) is engine
    for level in Isolation:
        if level.value in promised:
            assert known.isolation.level_options(level.value) == {"isolation_level": level.value}
        else:
            with pytest.raises(ConfigurationError, match="leave isolation= out"):
                known.isolation.level_options(level.value)


@pytest.mark.parametrize(
    ("text_of_odbc", "ends"),
    [("deadlock victim (1205)", True), ("snapshot (3960)", True), ("timeout (1222)", False)],
)
def test_sql_server_ends_a_transaction_that_it_has_chosen_as_a_victim(
    text_of_odbc: str, ends: bool
) -> None:
    assert SQLServer().ends.ended_by(Exception("42000", f"{text_of_odbc} (SQLExecW)")) is ends


def test_an_engine_without_levels_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match="SERIALIZABLE there: leave isolation= out"):
        DuckDB().isolation.level_options("SERIALIZABLE")


def test_the_helper_for_a_level_is_refused_in_the_same_way(granite: Engine) -> None:
    with pytest.raises(ConfigurationError, match="SERIALIZABLE there"):
        read_in(serializable(granite))


# -- an engine of a program's own -----------------------------------------------------------------


@pytest.mark.parametrize("base", [Database, KnownByCodes, DuckDB])
@pytest.mark.parametrize(
    ("question", "place"),
    [
        ("locks_rows", r"a subclass of optilock\.dialects\.locks\.RowLocks, and set locks to"),
        ("keeps_types", r"of optilock\.dialects\.catalogue\.Catalogue, and set catalogue to"),
        ("ends_transaction", r"no feature has this question; .*\(locks, .* ends, "),
        ("leves", "no feature has this question"),
    ],
)
def test_an_answer_that_nobody_asks_an_engine_for_is_refused(
    base: type[Database], question: str, place: str
) -> None:
    helper = type("Helper", (), {question: True})
    for bases in ((base,), (helper, base)):
        body = {question: True} if len(bases) == 1 else {}
        with pytest.raises(ConfigurationError, match=rf"Own\.{question} would be .*{place}"):
            type("Own", bases, body)


def test_an_engine_says_what_it_is_asked_and_has_helpers() -> None:
    class Own(KnownByCodes):
        names, drivers, causes = ("own",), ("own_driver",), {"1": Cause.CONFLICT}
        levels = ("READ COMMITTED",)
        locks = Database.locks
        _helper = 1

    class Newer(Own):
        levels = ("SERIALIZABLE",)


# -- modules that are imported when their database is met -----------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_the_registry_knows_a_module_before_it_is_imported(module: str) -> None:
    imported = import_module(f"optilock.dialects.{module}")
    kinds = [kind for kind in vars(imported).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if kind.__module__.startswith(imported.__name__)]
    ours = [kind for kind in kinds if issubclass(kind, Database)]
    assert {*MODULES[module].names} == {name for kind in ours for name in kind.names}
    assert {*MODULES[module].drivers} == {one for kind in ours for one in kind.drivers}


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb", "sqlite"])
def test_a_statement_of_a_database_that_was_never_met_has_its_sql(dialect: str) -> None:
    script = (
        "import sys\n"
        "from optilock import Versioned\n"
        "from sqlalchemy.engine.url import make_url\n"
        "from optilock.tokens.timestamp import ServerTime\n"
        "assert not [m for m in sys.modules if m.startswith('sqlalchemy.dialects.')]\n"
        f"assert 'optilock.dialects.{dialect}' not in sys.modules\n"
        f"dialect = make_url('{dialect}://').get_dialect()()\n"
        "sql = str(ServerTime().compile(dialect=dialect))\n"
        "assert sql != 'CURRENT_TIMESTAMP', sql\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
