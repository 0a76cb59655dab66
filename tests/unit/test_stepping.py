"""What stepping refuses, and which errors come out where."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, insert
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import AsyncUnitOfWork, ConcurrencyError, ConfigurationError, Versioned, watch
from optilock.testing import OutOfStep, interleave, interleave_async
from tests.support.waiting import turn


class Base(DeclarativeBase):
    pass


class Note(Versioned, Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


@pytest.fixture
def sessions():
    engine = create_engine("sqlite://")
    yield sessionmaker(engine)
    engine.dispose()


def breaks(session: Session) -> None:
    raise KeyError("mine")


def test_do_gives_the_value_of_the_step(sessions):
    with interleave(sessions, "alice") as (alice,):
        assert alice.do(lambda session: 42) == 42


def test_do_raises_the_error_of_the_step_and_the_side_goes_on(sessions):
    with interleave(sessions, "alice") as (alice,):
        with pytest.raises(KeyError, match="mine"):
            alice.do(breaks)
        assert alice.do(lambda session: 42) == 42


def test_an_error_that_nobody_asked_for_comes_out_at_the_end(sessions):
    with pytest.raises(KeyError, match="mine"), interleave(sessions, "alice") as (alice,):
        alice.start(breaks)


def test_an_error_of_the_block_itself_is_the_one_that_comes_out(sessions):
    with pytest.raises(ZeroDivisionError), interleave(sessions, "alice") as (alice,):
        alice.start(breaks)
        raise ZeroDivisionError


def test_a_session_that_cannot_be_closed_is_told():
    class Broken(Session):
        def close(self) -> None:
            raise KeyError("cannot close")

    with pytest.raises(KeyError, match="cannot close"), interleave(Broken, "alice"):
        pass


def test_a_session_that_cannot_be_made_is_told_at_once():
    def make() -> Session:
        raise KeyError("no session today")

    with pytest.raises(KeyError, match="no session today"), interleave(make, "alice"):
        pass


def test_a_side_does_one_step_at_a_time(sessions):
    go_on = threading.Event()
    with interleave(sessions, "alice") as (alice,):
        step = alice.start(lambda session: go_on.wait())
        for another in (alice.commit, alice.leave):
            with pytest.raises(OutOfStep, match="still in an earlier step"):
                another()
        go_on.set()
        assert step.result() is True


def test_a_side_that_has_left_takes_no_more_steps(sessions):
    with interleave(sessions, "alice") as (alice,):
        alice.leave()
        with pytest.raises(OutOfStep, match="alice has left"):
            alice.commit()


def test_a_failed_test_is_an_assertion_that_failed(sessions):
    assert issubclass(OutOfStep, AssertionError)


@pytest.mark.parametrize("names", [(), ("alice", "alice")])
def test_every_side_has_a_name_of_its_own(sessions, names):
    with (
        pytest.raises(ConfigurationError, match="name every side once"),
        interleave(sessions, *names),
    ):
        pass


@pytest.mark.parametrize("sessions", ["sqlite://", dict])
def test_what_makes_no_sessions_is_refused(sessions):
    with (
        pytest.raises(ConfigurationError, match="a sessionmaker, an Engine"),
        interleave(sessions, "a"),
    ):
        pass


def test_async_sessions_are_refused():
    from sqlalchemy.ext.asyncio import AsyncSession

    with pytest.raises(ConfigurationError, match="'AsyncSession'"), interleave(AsyncSession, "a"):
        pass


def test_who_never_ends_is_named(sessions, monkeypatch):
    monkeypatch.setattr(sys.modules["optilock.testing.interleave"], "PATIENCE", 0.05)
    go_on = threading.Event()
    with (
        pytest.raises(OutOfStep, match="alice did not end within"),
        interleave(sessions, "alice") as (alice,),
    ):
        alice.start(lambda session: go_on.wait())
    go_on.set()


# -- async -----------------------------------------------------------------------------------------


@pytest.fixture
async def notes(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/notes.db")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(insert(Note).values(id=1, text="", version=1))
    yield engine
    await engine.dispose()


def note(text: str) -> Any:
    async def step(session: AsyncSession) -> Note:
        found = await session.get_one(Note, 1)
        found.text = text
        return found

    return step


@pytest.mark.anyio
async def test_f_async_sessions_are_stepped_too(notes: AsyncEngine) -> None:
    sessions = async_sessionmaker(notes, sync_session_class=watch(type("Own", (Session,), {})))
    async with interleave_async(sessions, "ada", "bob") as (ada, bob):
        await ada.do(note("Ada's"))
        await bob.do(note("Bob's"))
        await bob.commit()
        with pytest.raises(ConcurrencyError):
            await ada.commit()
    async with interleave_async(lambda: AsyncUnitOfWork(sessions), "ada") as (ada,):
        assert (await ada.do(note("again"))).text == "again"
        await ada.leave()
        with pytest.raises(OutOfStep, match="has left"):
            ada.start(note("?"))
    async with interleave_async(notes, "ada") as (ada,):
        assert (await ada.do(lambda session: session.get_one(Note, 1))).text == "again"


@pytest.mark.anyio
async def test_a_step_that_nobody_waits_for_ends_with_the_block(notes: AsyncEngine) -> None:
    async def for_ever(session: AsyncSession) -> None:
        await asyncio.Event().wait()

    async with interleave_async(notes, "ada", "bob") as (ada, bob):
        step = ada.start(for_ever)
        assert (await bob.do(note("Bob's"))).text == "Bob's"
        assert not step.ended
    assert step.ended


@pytest.mark.anyio
async def test_the_units_of_two_async_sides_are_two(notes: AsyncEngine) -> None:
    """They were entered in one task, where the second unit joined the first one."""
    unit = lambda: AsyncUnitOfWork(notes)  # noqa: E731
    async with interleave_async(unit, "ada", "bob") as (ada, bob):
        await ada.do(note("Ada's"))
        await bob.do(note("Bob's"))
        assert ada.session is not bob.session
        await bob.leave()
        with pytest.raises(ConcurrencyError):
            await ada.leave()


@pytest.mark.anyio
async def test_f_what_an_async_step_waits_for_is_seen(notes: AsyncEngine) -> None:
    gate = asyncio.Event()

    async def wait(session: AsyncSession) -> bool:
        return await gate.wait()

    async with interleave_async(notes, "ada", "bob") as (ada, bob):
        step = ada.start(wait)
        await step.blocked()
        with pytest.raises(OutOfStep, match="earlier step"):
            ada.start(wait)
        gate.set()
        assert await step.result() is True
        with pytest.raises(OutOfStep, match="was to wait"):
            await bob.start(lambda session: turn()).blocked()
    with pytest.raises(KeyError, match="unseen"):
        async with interleave_async(notes, "ada") as (ada,):
            ada.start(note_that_fails)
            await turn()


async def note_that_fails(session: AsyncSession) -> None:
    raise KeyError("unseen")


@pytest.mark.anyio
async def test_f_what_makes_no_async_sessions_is_refused(notes: AsyncEngine) -> None:
    for given, names in ((Session, ("a",)), (notes, ()), (notes, ("a", "a"))):
        with pytest.raises(ConfigurationError, match="interleave"):
            async with interleave_async(given, *names):  # type: ignore[arg-type]
                raise AssertionError
