"""Two sessions stepped by hand, on every engine: the tool that the other tests stand on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, String, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import NullPool

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    unit_of_work,
    watch,
)
from optilock.testing import OutOfStep, interleave
from tests.engines import Target

pytestmark = pytest.mark.modes


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "interleaved_pages"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str] = mapped_column(String(40))


@pytest.fixture
def engine(database: Target) -> Iterator[Engine]:
    """One whose writers wait for each other as long as a slow machine needs, on SQLite too."""
    made = database.engine(**waiting(database, 10))
    yield made
    made.dispose()


def waiting(database: Target, seconds: float) -> dict[str, Any]:
    return {"connect_args": {"timeout": seconds}} if database.family == "sqlite" else {}


@pytest.fixture
def sessions(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(Page(id=1, title="first"), Page(id=2, title="second"))
    return sessionmaker(engine, expire_on_commit=False)


def rename(title: str, page_id: int = 1):
    def step(session: Session) -> None:
        session.get_one(Page, page_id).title = title
        session.flush()

    return step


def titles(sessions: sessionmaker[Session]) -> list[str]:
    with sessions() as session:
        return list(session.scalars(text("SELECT title FROM interleaved_pages ORDER BY id")))


def test_each_side_has_a_session_and_a_transaction_of_its_own(sessions):
    with interleave(sessions, "alice", "bob") as (alice, bob):
        assert alice.do(lambda session: session) is not bob.do(lambda session: session)
        alice.do(rename("Alice's"))
        alice.rollback()
        bob.do(rename("Bob's"))
        bob.commit()

    assert titles(sessions) == ["Bob's", "second"]


def test_steps_of_a_side_run_in_one_thread_and_not_in_the_tests(sessions):
    with interleave(sessions, "alice", "bob") as (alice, bob):
        first = alice.do(lambda session: threading.get_ident())
        assert alice.do(lambda session: threading.get_ident()) == first
        assert (
            len({first, bob.do(lambda session: threading.get_ident()), threading.get_ident()}) == 3
        )


@pytest.mark.parametrize("guarded", [True, False], ids=["watched", "plain"])
def test_the_second_writer_gets_the_conflict_of_a_watched_or_plain_session(sessions, guarded):
    if guarded:
        watch(sessions)
    with interleave(sessions, "alice", "bob") as (alice, bob):
        page = alice.do(lambda session: session.get_one(Page, 1))
        alice.do(lambda session: session.commit())  # SQLite: no lock while Bob writes
        bob.do(rename("Bob's"))
        bob.commit()
        page.title = "Alice's"
        with pytest.raises(StaleDataError) as raised:
            alice.commit()
        assert isinstance(raised.value, ConcurrencyError) is guarded

    assert titles(sessions) == ["Bob's", "second"]


def test_a_writer_of_the_same_row_is_blocked_until_the_first_one_commits(sessions):
    with interleave(sessions, "alice", "bob") as (alice, bob):
        alice.do(rename("Alice's"))
        step = bob.start(rename_blindly("Bob's"))
        assert step.blocked() is step
        assert not step.ended
        alice.commit()
        step.result()
        bob.commit()

    assert titles(sessions) == ["Bob's", "second"]


def rename_blindly(title: str):
    statement = text("UPDATE interleaved_pages SET title = :title WHERE id = 1")
    return lambda session: session.execute(statement, {"title": title}).rowcount


@pytest.mark.needs("row-locks")
def test_a_step_that_does_not_wait_is_not_blocked(sessions):
    with interleave(sessions, "alice", "bob") as (alice, bob):
        alice.do(rename("Alice's", 1))
        step = bob.start(rename("Bob's", 2))
        with pytest.raises(OutOfStep, match="bob's step was to wait for a lock, and has ended"):
            step.blocked()


@pytest.mark.needs("row-locks")
def test_a_step_that_is_busy_elsewhere_is_not_blocked(sessions):
    """The database knows the difference between a lock and a slow program."""
    go_on = threading.Event()
    with interleave(sessions, "alice") as (alice,):
        alice.do(rename("Alice's"))
        step = alice.start(lambda session: go_on.wait())
        with pytest.raises(OutOfStep, match="waits for no lock"):
            step.blocked(timeout=0.1)
        go_on.set()
        step.result()


@pytest.mark.needs("row-locks")
def test_a_step_that_follows_one_that_has_waited_is_not_blocked(sessions):
    """MariaDB answers with what was true when it was asked last, for a tenth of a second."""
    with interleave(sessions, "alice", "bob") as (alice, bob):
        alice.do(rename("Alice's"))
        waiting = bob.start(rename_blindly("Bob's")).blocked()
        alice.commit()
        waiting.result()
        over = threading.Event()
        threading.Timer(0.1, over.set).start()
        step = bob.start(lambda session: over.wait())
        with pytest.raises(OutOfStep, match="was to wait for a lock, and has ended"):
            step.blocked()


def test_a_step_before_any_transaction_is_not_blocked(sessions):
    go_on = threading.Event()
    with interleave(sessions, "alice") as (alice,):
        step = alice.start(lambda session: go_on.wait())
        with pytest.raises(OutOfStep, match="waits for no lock"):
            step.blocked(timeout=0.1)
        go_on.set()
        step.result()


def test_a_step_that_waits_too_long_says_for_what_to_look(sessions):
    with interleave(sessions, "alice", "bob") as (alice, bob):
        alice.do(rename("Alice's"))
        step = bob.start(rename_blindly("Bob's"))
        with pytest.raises(OutOfStep, match="bob's step has not ended within"):
            step.result(timeout=0.01)
        alice.commit()
        assert step.result() == 1


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("sessions")
def test_the_error_of_a_blocked_step_comes_out_of_its_result(database):
    """SQLite gives up after its timeout; a server would wait for as long as Alice does."""
    impatient = database.engine(**waiting(database, 1))
    with interleave(impatient, "alice", "bob") as (alice, bob):
        alice.do(rename("Alice's"))
        step = bob.start(rename_blindly("Bob's")).blocked()
        with pytest.raises(OperationalError, match="locked"):
            step.result()
    impatient.dispose()


def test_a_test_that_fails_while_a_step_waits_ends_at_once_and_stores_nothing(sessions):
    with pytest.raises(KeyError), interleave(sessions, "alice", "bob") as (alice, bob):
        alice.do(rename("Alice's"))
        bob.start(rename_blindly("Bob's")).blocked()
        raise KeyError("the test's own")

    assert titles(sessions) == ["first", "second"]


def test_nothing_is_left_open(sessions, engine):
    with interleave(sessions, "alice", "bob") as (alice, bob):
        alice.do(rename("Alice's"))
        bob.do(lambda session: session.get(Page, 2))

    assert engine.pool.checkedout() == 0
    assert not [each for each in threading.enumerate() if each.name.startswith("interleave-")]
    assert titles(sessions) == ["first", "second"]


def test_units_of_work_are_stepped_too_and_commit_when_they_are_left(sessions):
    with interleave(lambda: UnitOfWork(sessions), "alice", "bob") as (alice, bob):
        alice.do(rename("Alice's", 1))
        alice.leave()
        bob.do(rename("Bob's", 2))

    assert titles(sessions) == ["Alice's", "second"]


def test_the_error_of_a_commit_comes_out_of_leave(sessions):
    with interleave(lambda: UnitOfWork(sessions), "alice", "bob") as (alice, bob):
        page = alice.do(lambda session: session.get_one(Page, 1))
        bob.do(lambda session: None)
        page.title = "Alice's"
        with sessions.begin() as other:
            other.get_one(Page, 1).title = "somebody else's"
        with pytest.raises(ConcurrencyError):
            alice.leave()


def test_an_engine_is_enough(sessions, engine):
    with interleave(engine, "alice") as (alice,):
        assert alice.do(lambda session: session.get_one(Page, 1).title) == "first"


def test_a_pool_that_keeps_nothing_will_do(sessions, database):
    made = database.engine(poolclass=NullPool, **waiting(database, 10))
    with interleave(made, "alice", "bob") as (alice, bob):
        alice.do(rename_blindly("Alice's"))
        step = bob.start(rename_blindly("Bob's")).blocked()
        alice.commit()
        assert step.result() == 1
    made.dispose()


@pytest.mark.parametrize("given", [7, "unit"])
def test_what_makes_no_sessions_is_refused(engine, given):
    wrong = unit_of_work(engine) if given == "unit" else given
    with (
        pytest.raises(ConfigurationError, match=r"such as lambda: unit_of_work"),
        interleave(wrong, "alice", "bob"),
    ):
        pass
