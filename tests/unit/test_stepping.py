"""What stepping refuses, and which errors come out where."""

from __future__ import annotations

import sys
import threading

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConfigurationError
from optilock.testing import OutOfStep, interleave


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
        pytest.raises(ConfigurationError, match="give it a sessionmaker"),
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
