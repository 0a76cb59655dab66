"""Units with ``pipelined=True`` take fewer trips where the server is far, and are else plain."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    UnitOfWork,
    events,
    retrying,
    unit_of_work,
)
from optilock.dialects.postgresql import line as lines
from optilock.errors import CommitOutcomeUnknown
from optilock.tables.names import commit_tokens
from optilock.testing import Wire
from optilock.unit import forget_hot_rows, round_trips, set_trip_time
from optilock.unit.round_trips import FAR, LATEST, NEAR, PROBE, TripTime
from tests.support.cut_line import Cut as Cut
from tests.support.cut_line import cut as cut
from tests.support.models import Account

on_postgresql = pytest.mark.engines("postgresql")
UNPREPARED = {"prepare_threshold": None}
AWAY = 0.005
PLAIN, BEGIN_GOES_ALONG, BOTH_GO_ALONG = 4, 3, 2


@pytest.fixture(autouse=True)
def _learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_trips, "ASSUMED", None)


@pytest.fixture
def made(line: Wire) -> Iterator[Engine]:
    """An engine about which nothing is known."""
    engine = create_engine(line.url, connect_args=UNPREPARED)
    engine.connect().close()
    yield engine
    engine.dispose()


@pytest.fixture
def far(made: Engine) -> Engine:
    set_trip_time(made, AWAY)
    return made


class Clock:
    """The clock by which lines measure: each trip takes ``trip`` seconds."""

    def __init__(self) -> None:
        self.trip, self.busy, self._now = AWAY, 0.0, 0.0

    def perf_counter(self) -> float:
        self._now += self.trip
        return self._now

    def process_time(self) -> float:
        return self._now * self.busy


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lines, "time", clock)
    return clock


def rename(session: Session, owner: str = "Eve") -> None:
    session.get_one(Account, 1).owner = owner


def trips_of(line: Wire, engine: Any, units: int = 1, **options: Any) -> list[int]:
    """The round trips of some units, one after the other."""
    counts = []
    for number in range(units):
        unit = UnitOfWork(engine, pipelined=True, **options)
        with line.counting() as trips, unit as session:
            rename(session, f"Eve {number} {id(trips)}")
        counts.append(trips.count)
    return counts


# -- how a trip time is learned, by values ---------------------------------------------------------


def noted(trip: TripTime, *seconds: float, busy: float = 0.0) -> bool:
    for one in seconds:
        trip.note(one, busy * one)
    return trip.is_far


def asked(trip: TripTime, units: int) -> int:
    return [trip.next_unit() for _ in range(units)].count(True)


def test_a_server_is_far_after_so_many_long_trips() -> None:
    trip = TripTime()
    assert not noted(trip, *[FAR] * (LATEST - 1))
    assert noted(trip, FAR)
    assert asked(trip, 100) == 100


def test_one_short_trip_shows_that_it_is_not_far() -> None:
    trip = TripTime()
    assert not noted(trip, *[AWAY] * (LATEST - 1), NEAR, *[AWAY] * (LATEST - 1))


def test_it_is_near_again_after_half_as_many_short_ones() -> None:
    trip = TripTime()
    noted(trip, *[AWAY] * LATEST)
    short = NEAR / 2
    assert noted(trip, short, *[AWAY] * 3, *[short] * (LATEST // 2 - 2), AWAY)
    assert not noted(trip, short)


def test_between_the_two_limits_nothing_changes() -> None:
    for before in (AWAY, NEAR / 2):
        trip = TripTime()
        noted(trip, *[before] * LATEST)
        assert noted(trip, *[(FAR + NEAR) / 2] * 100) is (before == AWAY)


def test_two_servers_behind_one_pool_do_not_make_it_flap() -> None:
    trip = TripTime()
    turns = {noted(trip, seconds) for _ in range(100) for seconds in (AWAY, NEAR / 2)}
    assert turns == {False}


def test_long_trips_of_a_busy_process_do_not_count() -> None:
    trip = TripTime()
    assert not noted(trip, *[AWAY] * 100, busy=0.6)
    assert noted(trip, *[AWAY] * LATEST, busy=0.4)


def test_near_the_server_few_units_measure() -> None:
    trip = TripTime()
    assert trip.next_unit()
    noted(trip, NEAR)
    assert asked(trip, 10 * PROBE) == 10


def test_after_a_long_trip_the_next_unit_measures() -> None:
    trip = TripTime()
    for _ in range(LATEST):
        assert trip.next_unit()
        trip.note(AWAY, 0)
    assert trip.is_far


def test_a_given_time_is_not_measured() -> None:
    assert asked(TripTime(0), 100) == 0
    trip = TripTime(AWAY)
    assert noted(trip, *[0.0] * 100)


def test_threads_note_together() -> None:
    trip = TripTime()
    threads = [Thread(target=noted, args=(trip, *[AWAY] * 1000)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert trip.is_far


# -- units learn it --------------------------------------------------------------------------------


@on_postgresql
def test_units_learn_that_the_server_is_far_and_near_again(account, line, made, clock) -> None:
    assert trips_of(line, made, LATEST + 2) == [BEGIN_GOES_ALONG] * LATEST + [BOTH_GO_ALONG] * 2
    clock.trip = NEAR / 2  # a failover
    assert trips_of(line, made, LATEST // 2) == [BOTH_GO_ALONG] * (LATEST // 2)
    measured, plain = [BEGIN_GOES_ALONG], [PLAIN] * (PROBE - 1)
    assert trips_of(line, made, PROBE + 1) == measured + plain + measured


@on_postgresql
def test_it_is_forgotten_with_the_pool_and_shared_by_what_has_the_same(
    account, line, made, clock
) -> None:
    same = sessionmaker(made.execution_options(isolation_level="READ COMMITTED"))
    trips_of(line, same, LATEST)
    assert trips_of(line, made) == [BOTH_GO_ALONG]
    made.dispose()
    made.connect().close()
    assert trips_of(line, made) == [BEGIN_GOES_ALONG]


@on_postgresql
def test_a_test_sets_it(account, line, made, clock) -> None:
    set_trip_time(made, 0)
    assert trips_of(line, made, 3) == [PLAIN] * 3
    set_trip_time(made, AWAY)
    assert trips_of(line, made, 3) == [BOTH_GO_ALONG] * 3
    set_trip_time(made, None)
    assert trips_of(line, made) == [BEGIN_GOES_ALONG]
    set_trip_time(made, timedelta(seconds=1))
    assert trips_of(line, made) == [BOTH_GO_ALONG]
    with pytest.raises(ConfigurationError, match="seconds=-1"):
        set_trip_time(made, -1)


@on_postgresql
@pytest.mark.anyio
async def test_async_units_learn_it(account, line, clock) -> None:
    made = create_async_engine(line.url, connect_args=UNPREPARED)
    await (await made.connect()).close()
    counts = []
    for number in range(LATEST + 1):
        with line.counting() as trips:
            async with AsyncUnitOfWork(made, pipelined=True) as session:
                (await session.get_one(Account, 1)).owner = f"Eve {number}"
        counts.append(trips.count)
    assert counts == [BEGIN_GOES_ALONG] * LATEST + [BOTH_GO_ALONG]
    set_trip_time(made, 0)
    with line.counting() as trips:
        async with AsyncUnitOfWork(made, pipelined=True) as session:
            (await session.get_one(Account, 1)).owner = "Eve"
    assert trips.count == PLAIN
    await made.dispose()


# -- engines and options ---------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {},
    {"read_only": True},
    {"isolation": Isolation.SERIALIZABLE},
    {"verify_reads": True},
    {"strategy": "pessimistic"},
    {"strategy": "adaptive"},
    {"propagation": "independent", "strict": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda given: " ".join(given) or "none")
@pytest.mark.parametrize("seconds", [0, AWAY, None])
def test_every_engine_has_such_units(account, engine, stored, options, seconds) -> None:
    set_trip_time(engine, seconds)
    with UnitOfWork(engine, pipelined=True, **options) as session:
        mine = session.get_one(Account, 1)
        if "read_only" not in options:
            mine.owner = "Eve"
    assert stored(Account, 1)["owner"] == ("Ada" if "read_only" in options else "Eve")


def test_every_engine_refuses_a_conflict(account, engine, stored, other) -> None:
    set_trip_time(engine, AWAY)
    unit = UnitOfWork(engine, pipelined=True)
    with pytest.raises(ConcurrencyError), unit as session:
        mine = session.get_one(Account, 1)
        other(Account, 1, balance=5)
        mine.owner = "Eve"
    assert stored(Account, 1)["owner"] == "Ada"


@pytest.mark.anyio
async def test_every_async_engine_has_such_units(async_engine, async_store) -> None:
    async_store(Account(id=1, owner="Ada"))
    set_trip_time(async_engine, AWAY)
    async with AsyncUnitOfWork(async_engine, pipelined=True) as session:
        (await session.get_one(Account, 1)).owner = "Eve"
    async with async_engine.connect() as connection:
        assert await connection.scalar(text("SELECT owner FROM accounts WHERE id = 1")) == "Eve"


def test_a_connection_that_commits_each_statement_is_refused_as_ever(account, engine) -> None:
    set_trip_time(engine, AWAY)
    unit = UnitOfWork(engine.execution_options(isolation_level="AUTOCOMMIT"), pipelined=True)
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT mode"), unit as session:
        rename(session)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pipelined": "yes"}, "pipelined='yes'"),
        ({"pipelined": 1}, "pipelined=1"),
        ({"pipelined": None}, "pipelined=None"),
    ],
)
@pytest.mark.parametrize("unit", [UnitOfWork, unit_of_work])
def test_what_cannot_be_is_refused_at_once(unit, options, said) -> None:
    engine = create_engine("postgresql+psycopg://")
    UnitOfWork(engine, pipelined=True)  # what equals it is checked all the same
    with pytest.raises(ConfigurationError, match=said):
        unit(engine, **options)


# -- what far units do -----------------------------------------------------------------------------


@on_postgresql
def test_decorated_units_and_blocks_of_a_retry_take_two_trips(account, line, far) -> None:
    work = unit_of_work(far, pipelined=True)(rename)
    with line.counting() as trips:
        work()
    assert trips.count == BOTH_GO_ALONG
    with line.counting() as trips:
        for attempt in retrying():
            with attempt, UnitOfWork(far, pipelined=True) as session:
                rename(session, "Ida")
    assert trips.count == BOTH_GO_ALONG


@on_postgresql
@pytest.mark.parametrize("seconds", [0, AWAY])
def test_a_retry_takes_no_trip_more_than_a_plain_one(account, line, made, other, seconds) -> None:
    set_trip_time(made, seconds)
    heard: list[events.Event] = []
    counts = []
    for pipelined in (False, True):
        forget_hot_rows()
        tries: list[Session] = []

        @unit_of_work(made, pipelined=pipelined, retry=retrying(wait_initial=0))
        def work(session: Session, tries: list[Session] = tries) -> None:
            session.get_one(Account, 1).balance += 1
            if not tries:
                other(Account, 1, balance=5)
            tries.append(session)

        with line.counting() as trips, events.listening(heard.append, written=False):
            work()
        assert len(tries) == 2
        counts.append(trips.count)
    plain, ours = counts
    least = 0 if seconds else plain
    assert least <= ours <= plain
    ends = [one.pipelined for one in heard if isinstance(one, events.Committed)]
    assert ends == [False, seconds == AWAY]


@on_postgresql
def test_it_joins_a_plain_unit_and_a_plain_unit_joins_it(account, line, far) -> None:
    with (
        line.counting() as trips,
        UnitOfWork(far) as session,
        UnitOfWork(far, pipelined=True),
    ):
        rename(session)
    assert trips.count == PLAIN
    with (
        line.counting() as trips,
        UnitOfWork(far, pipelined=True) as session,
        UnitOfWork(far),
    ):
        rename(session, "Ida")
    assert trips.count == BOTH_GO_ALONG


@on_postgresql
def test_the_event_names_it(account, made) -> None:
    heard: list[events.Event] = []
    with events.listening(heard.append, written=False):
        for seconds in (0, AWAY):
            set_trip_time(made, seconds)
            with UnitOfWork(made, pipelined=True) as session:
                rename(session, str(seconds))
    assert [one.pipelined for one in heard if isinstance(one, events.Committed)] == [False, True]


_AUDITED = """
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO accounts (id, owner, balance, version) VALUES (9, 'audit', 0, 1);
RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON accounts
FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION audit();
"""


@on_postgresql
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_conflict_leaves_nothing_of_a_trigger(account, far, engine, pipelined) -> None:
    unit = UnitOfWork(far, pipelined=pipelined)
    with pytest.raises(ConcurrencyError), unit as session:
        rename(session)
        with engine.begin() as connection:
            connection.execute(text("UPDATE accounts SET version = 7 WHERE id = 1"))
            connection.execute(text(_AUDITED))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM accounts WHERE id = 9")) == 0


@on_postgresql
@pytest.mark.parametrize("name", ["after_cursor_execute", "after_execute"])
def test_what_a_listener_sends_after_the_last_write_is_stored(
    account, line, far, engine, name
) -> None:
    sent = []

    @event.listens_for(far, name)
    def after(connection: Any, *given: Any, **_: Any) -> None:
        if "UPDATE" in str(given).upper() and not sent:
            sent.append(given)
            connection.exec_driver_sql(
                "INSERT INTO accounts (id, owner, balance, version) VALUES (9, 'audit', 0, 1)"
            )

    assert trips_of(line, far) == [BEGIN_GOES_ALONG + 1]
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT owner FROM accounts WHERE id = 9")) == "audit"


# -- a lost connection -----------------------------------------------------------------------------


@on_postgresql
@pytest.mark.parametrize("seconds", [0, AWAY])
@pytest.mark.parametrize("passes", [True, False])
def test_a_lost_commit_is_an_unknown_outcome(account, cut, seconds, passes) -> None:
    engine = create_engine(cut.url, connect_args=UNPREPARED)
    set_trip_time(engine, seconds)
    runs = []

    @unit_of_work(engine, pipelined=True, retry=retrying(wait_initial=0))
    def work(session: Session) -> None:
        runs.append(session)
        rename(session)
        cut.at, cut.passes = b"COMMIT", passes

    with pytest.raises(CommitOutcomeUnknown):
        work()
    assert len(runs) == 1
    with Session(engine) as session:
        assert session.get_one(Account, 1).owner == ("Eve" if passes else "Ada")
    engine.dispose()


@on_postgresql
@pytest.mark.parametrize(("seconds", "unknown"), [(0, False), (AWAY, True)])
def test_so_is_a_lost_write_where_commit_goes_along(account, cut, seconds, unknown) -> None:
    engine = create_engine(cut.url, connect_args=UNPREPARED)
    engine.connect().close()
    set_trip_time(engine, seconds)
    unit = UnitOfWork(engine, pipelined=True)
    expected = CommitOutcomeUnknown if unknown else OperationalError
    with pytest.raises(expected), unit as session:
        rename(session)
        cut.at = b"UPDATE"
    engine.dispose()


@on_postgresql
def test_with_exactly_once_it_is_found_out(account, cut, stored) -> None:
    engine = create_engine(cut.url, connect_args=UNPREPARED)
    commit_tokens.create(engine)
    set_trip_time(engine, AWAY)
    runs = []

    @unit_of_work(engine, pipelined=True, exactly_once=True, retry=retrying(wait_initial=0))
    def work(session: Session) -> None:
        session.get_one(Account, 1).balance += 1
        if not runs:
            cut.at, cut.passes = b"COMMIT", False
        runs.append(session)

    work()
    assert len(runs) == 2
    assert stored(Account, 1)["balance"] == 11
    engine.dispose()
