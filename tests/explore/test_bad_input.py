"""What cannot be put in order is found and named, and nothing is judged."""

from __future__ import annotations

import pickle
import random
import threading
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, update
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from checks.explore.pairs import COUNTERS, audit, increment, transfer
from checks.explore.rows import Base, Counter, reset_of
from optilock import ConfigurationError
from optilock.testing import (
    NotDeterministic,
    NotSerializable,
    OutOfStep,
    assert_serializable,
    explore,
    replay,
)
from optilock.testing.exploration import turns

pytestmark = pytest.mark.usually("sqlite-wal")


@pytest.fixture
def run(sessions: Any, put_back: Any) -> Any:
    """Return a function that explores a unit and an increment."""

    def run(unit: Any, **options: Any) -> Any:
        options = {"sessions": sessions, "reset": put_back(COUNTERS), **options}
        return explore(unit, increment(sessions), **options)

    return run


def test_a_database_in_memory_belongs_to_one_connection() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)
    with pytest.raises(ConfigurationError, match="in memory"):
        explore(
            increment(sessions),
            increment(sessions),
            sessions=sessions,
            reset=reset_of(engine, COUNTERS),
        )
    engine.dispose()


@pytest.mark.parametrize("number", [1, 4])
def test_two_or_three_units_are_explored(number: int, sessions: Any, put_back: Any) -> None:
    units = [increment(sessions)] * number
    with pytest.raises(ConfigurationError, match=f"two or three units. Got {number}"):
        explore(*units, sessions=sessions, reset=put_back(COUNTERS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sessions": sessionmaker()}, "bound to one engine"),
        ({"reset": None}, "reset= must be a function"),
        ({"limit": 0}, "limit=0 must be a number"),
        ({"prune": "all"}, "prune='all'"),
        ({"tables": [int]}, "tables= takes mapped classes"),
        ({"ignoring": ["n"]}, "ignoring= takes columns"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_run(
    options: dict[str, Any], message: str, run: Any
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(lambda: pytest.fail("it was run"), **options)


def test_a_session_from_outside_is_refused(engine: Engine, run: Any) -> None:
    session = Session(engine)

    def works_with(one: Session) -> None:
        one.get(Counter, 1)

    with pytest.raises(ConfigurationError, match="opened outside of it"):
        run(lambda: session.get(Counter, 1))
    with pytest.raises(ConfigurationError, match="works_with has a session"):
        run(partial(works_with, session))
    holder = [session]
    session.connection()
    with pytest.raises(ConfigurationError, match="opened outside of it"):
        run(lambda: holder[0].get(Counter, 1))
    session.close()


def test_an_object_of_the_orm_is_no_value(sessions: Any, run: Any) -> None:
    def find() -> Any:
        with sessions() as session:
            return [session.get(Counter, 1)]

    with pytest.raises(ConfigurationError, match=r"object of the ORM \(Counter\)"):
        run(find)


def test_a_unit_that_does_not_work_alone_is_no_result(sessions: Any, run: Any) -> None:
    def mistaken() -> None:
        with sessions() as session:
            session.get(Counter, 1)
        raise TypeError("mistaken")

    with pytest.raises(ConfigurationError, match="error in every serial order") as raised:
        run(mistaken)
    assert isinstance(raised.value.__cause__, TypeError)


def test_a_loop_that_waits_for_another_unit_never_ends(sessions: Any, run: Any) -> None:
    def wait() -> None:
        with sessions() as session:
            while session.scalar(select(Counter.n).where(Counter.id == 1)) == 1:
                session.rollback()

    with pytest.raises(OutOfStep, match="wait has sent 300 statements"):
        run(wait)


@pytest.mark.engines("sqlite-wal")  # a thread that is left behind keeps its connection
@pytest.mark.full
def test_what_waits_outside_of_the_database_is_named(
    sessions: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 2.0)
    never, closed, pool = threading.Event(), threading.Event(), sessions.kw["bind"].pool

    def hang() -> None:
        try:
            with sessions() as session:
                session.get(Counter, 1)
                never.wait(60)
        finally:
            closed.set()

    with pytest.raises(OutOfStep, match=r"hang did not go on within 2 s after SELECT"):
        run(hang)
    never.set()
    assert closed.wait(60)
    pool.dispose()  # hang's connection came back after explore() had emptied it


def test_the_clock_is_found_by_what_two_equal_orders_leave(sessions: Any, run: Any) -> None:
    def stamp() -> str:
        with sessions() as session:
            session.get(Counter, 1)
        return datetime.now().isoformat()

    with pytest.raises(NotDeterministic, match="chance, on the clock"):
        run(stamp)
    assert run(stamp, values=False).complete


@pytest.mark.engines("sqlite-wal")
def test_chance_is_found_by_the_step_that_differs(sessions: Any, run: Any) -> None:
    calls = count()

    def chance() -> None:
        with sessions.begin() as session:
            session.get(Counter, 1)
            if next(calls) % 2:
                session.execute(update(Counter).where(Counter.id == 2).values(n=1))

    with pytest.raises(NotDeterministic, match="steps they stopped before other"):
        run(chance)


def test_another_engine_is_named(engine: Engine, run: Any) -> None:
    other = create_engine(engine.url)

    def elsewhere() -> None:
        with Session(other) as session:
            session.get(Counter, 1)

    with pytest.raises(ConfigurationError, match="elsewhere uses another engine"):
        run(elsewhere)
    other.dispose()


def test_another_thread_is_named(sessions: Any, run: Any) -> None:
    def look() -> None:
        with sessions() as session:
            session.get(Counter, 1)

    def threaded() -> None:
        helper = threading.Thread(target=look, name="helper")
        helper.start()
        helper.join()

    previous, threading.excepthook = threading.excepthook, lambda args: None
    try:
        with pytest.raises(ConfigurationError, match="The thread 'helper' sends statements"):
            run(threaded)
    finally:
        threading.excepthook = previous


def test_a_connection_of_the_driver_is_named(engine: Engine, sessions: Any, run: Any) -> None:
    def raw() -> None:
        connection = engine.raw_connection()
        try:
            connection.cursor().execute("SELECT 1")
            with sessions() as session:
                session.get(Counter, 1)
        finally:
            connection.close()

    with pytest.raises(ConfigurationError, match="raw uses a connection of the driver"):
        run(raw)


@pytest.mark.engines("postgresql")
def test_a_pipeline_of_the_driver_is_named(sessions: Any, run: Any) -> None:
    def together() -> None:
        with sessions.begin() as session:
            driver: Any = session.connection().connection.driver_connection
            with driver.pipeline():
                session.execute(update(Counter).values(n=2))

    with pytest.raises(ConfigurationError, match="together sends statements in a pipeline"):
        run(together)


def test_an_invariant_that_a_serial_order_breaks_is_no_race(run: Any, sessions: Any) -> None:
    def two(session: Session) -> None:
        assert session.get_one(Counter, 1).n == 1, "n is not 1"

    with pytest.raises(ConfigurationError, match=r"no race.*|n is not 1"):
        run(increment(sessions), invariant=two)


def test_a_limit_that_is_reached_fails(sessions: Any, put_back: Any) -> None:
    units = transfer(sessions), transfer(sessions)
    options = {"sessions": sessions, "reset": put_back(COUNTERS), "limit": 2}
    found = explore(*units, **options)
    assert (found.complete, found.orders) == (False, 2)
    with pytest.raises(NotSerializable, match="not all orders were run"):
        assert_serializable(*units, **options)
    assert assert_serializable(*units, partial=True, **options).orders == 2


def test_the_error_is_a_script_and_can_be_pickled(sessions: Any, put_back: Any) -> None:
    units = increment(sessions), increment(sessions)
    options = {"sessions": sessions, "reset": put_back(COUNTERS)}
    with pytest.raises(NotSerializable) as raised:
        assert_serializable(*units, **options)
    text = str(raised.value)
    assert text.startswith("lost update: what increment and increment_2 leave is equal to no")
    assert 'replay("abbbaa", increment, increment_2, sessions=..., reset=...)' in text
    assert "4 of 6 distinguishable orders fail" in text
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.order, copy.anomaly) == (text, "abbbaa", "lost update")
    with pytest.raises(ConfigurationError, match="step 7 is 'b'"):
        replay("aaabbbb", *units, **options)
    assert replay("aaabbb", *units, **options).gave_up == frozenset()


def test_ten_searches_run_the_same_orders(sessions: Any, put_back: Any) -> None:
    random.seed(1)
    options = {"sessions": sessions, "reset": put_back(COUNTERS)}
    runs = {explore(transfer(sessions), audit(sessions), **options).orders for _ in range(10)}
    assert len(runs) == 1


def test_retries_do_not_wait_in_a_unit_that_is_explored(
    sessions: Any, put_back: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checks.explore.pairs import GUARDED, guarded_increment
    from optilock.unit import retries

    monkeypatch.setattr(retries.time, "sleep", lambda seconds: pytest.fail("it has waited"))
    units = guarded_increment(sessions), guarded_increment(sessions)
    found = explore(*units, sessions=sessions, reset=put_back(GUARDED))
    assert found.complete
    assert not found.failures
