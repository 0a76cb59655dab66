"""Faults that a test arms: they happen where it says, are the driver's own, and are missed if not.

``seen_by`` compares what a program sees of them with what it sees of a line that is really cut.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, func, make_url, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    UnitOfWork,
    events,
    retrying,
    unit_of_work,
)
from optilock.errors import CommitOutcomeUnknown, OptilockError
from optilock.testing import FaultNotMet, Faults, count_statements
from tests.engines import Target
from tests.support.cut_line import Cut
from tests.support.cut_line import cut as cut
from tests.support.models import Account
from tests.support.waiting import until

Do = Callable[..., Any]
ON_A_LINE = pytest.mark.engines("postgresql", "mariadb")


@pytest.fixture
def mine(account: Any, database: Target) -> Iterator[Engine]:
    """An engine whose one connection was made before the faults were."""
    engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=5)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    yield engine
    engine.dispose()


@pytest.fixture
def faults(mine: Engine, optilock_faults: Do) -> Faults:
    return optilock_faults(mine)


def add(session: Session) -> None:
    session.get_one(Account, 1).balance += 1


def run(engine: Engine, body: Do = add, **options: Any) -> int:
    """Run it as a unit that is repeated, and locks nothing; return how often."""
    runs = []
    options = {"strategy": "optimistic"} | options

    def work(session: Session) -> None:
        runs.append(1)
        body(session)

    unit_of_work(engine, retry=retrying(attempts=4, wait_initial=0), **options)(work)()
    return len(runs)


# -- each of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_a_unit_that_is_cut_at_a_statement_runs_again(faults, mine, stored, number):
    with faults.cut(statement=number):
        assert run(mine) == 2
    assert stored(Account, 1)["balance"] == 11


@pytest.mark.parametrize("level", Isolation)
def test_a_unit_runs_again_at_whichever_statement_it_is_cut(faults, mine, stored, level):
    with count_statements(mine) as sent:
        run(mine, isolation=level)
    for number in range(1, sent.count + 1):
        with faults.cut(statement=number):
            assert run(mine, isolation=level) == 2
    assert stored(Account, 1)["balance"] == 11 + sent.count


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_a_lost_commit_leaves_the_outcome_open(faults, mine, stored, is_stored):
    with faults.commit_lost(stored=is_stored), pytest.raises(CommitOutcomeUnknown):
        run(mine)
    assert stored(Account, 1)["balance"] == 10 + is_stored
    assert run(mine) == 1


def test_a_deadlock_ends_as_many_attempts_as_it_is_armed_for(faults, mine, stored):
    with faults.deadlock(times=2):
        assert run(mine) == 3
    assert stored(Account, 1)["balance"] == 11


def test_a_conflict_is_another_transactions_change(faults, mine, stored):
    """A conflict inside a service that opens its own sessions could not be provoked."""
    with (
        faults.conflict(Account, 1, owner="Eve"),
        pytest.raises(ConcurrencyError) as caught,
        UnitOfWork(mine) as session,
    ):
        add(session)
    assert caught.value.entries[0].database["owner"] == "Eve"
    assert stored(Account, 1)["balance"] == 10


def test_a_conflict_happens_once_in_each_attempt(faults, mine, stored):
    with faults.conflict(Account, 1, times=3, owner="Eve"):
        assert run(mine) == 4
    assert stored(Account, 1)["balance"] == 11


def test_a_conflict_comes_before_a_few_rows_are_locked_together(faults, mine, stored):
    def both(session: Session) -> None:
        for account in [session.get_one(Account, key) for key in (1, 2)]:
            account.balance += 1

    with faults.conflict(Account, 2):
        assert run(mine, both) == 2
    assert stored(Account, 1)["balance"] == 11


def test_the_next_one_needs_no_block(faults, mine, stored):
    lost, cut_later = faults.commit_lost(stored=False), faults.cut(statement=2)
    with pytest.raises(CommitOutcomeUnknown):
        run(mine, text_only)
    run(mine)
    assert (lost.met, cut_later.met) == (1, 1)


def text_only(session: Session) -> None:
    session.execute(update(Account).where(Account.id == 2).values(owner="Eve"))


# -- as on a line that is really cut ---------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What a program sees of a fault."""

    errors: list[tuple[Any, ...]]
    raised: type | None
    notes: list[str]
    hooks: list[str]
    events: list[type]
    checked_out: int


def seen_by(engine: Engine, arm: Do) -> Seen:
    """Two attempts of a unit; the first one meets the fault in its flush or in COMMIT."""
    seen, raised = Seen([], None, [], [], [], 0), None

    def handle(context: Any) -> None:
        error = context.original_exception
        codes = getattr(error, "sqlstate", None), error.args[0]
        seen.errors.append((type(error), *codes, context.is_disconnect))

    def work(session: Session) -> None:
        add(session)
        if not seen.errors:
            arm()

    event.listen(engine, "handle_error", handle)
    heard = events.listen(lambda event: seen.events.append(type(event)), written=False)
    hook = lambda retry: seen.hooks.append(f"{retry.attempt}: {type(retry.error)}")  # noqa: E731
    try:
        unit_of_work(engine, retry=retrying(attempts=2, wait_initial=0, before_retry=hook))(work)()
    except OptilockError as error:
        raised = type(error), type(error.__cause__)
        seen.notes.extend(getattr(error, "__notes__", ()))
    finally:
        events.unlisten(heard)
    pool: Any = engine.pool
    return replace(seen, raised=raised, checked_out=pool.checkedout())


PLACES: dict[str, tuple[Do, bytes, bool]] = {
    "commit, stored": (lambda faults: faults.commit_lost(stored=True), b"COMMIT", True),
    "commit, not stored": (lambda faults: faults.commit_lost(stored=False), b"COMMIT", False),
    "statement": (lambda faults: faults.cut(), b"UPDATE", False),
}


@ON_A_LINE
@pytest.mark.parametrize("place", PLACES)
def test_retry_errors_notes_hooks_and_pools_are_those_of_a_line_that_is_cut(
    faults, mine, stored, cut: Cut, place
):
    arm, at, passes = PLACES[place]
    by_fault = seen_by(mine, lambda: arm(faults))
    after_fault = stored(Account, 1)["balance"]
    really = create_engine(cut.url)

    def cut_it() -> None:
        cut.passes, cut.at = passes, at

    by_cut = seen_by(really, cut_it)
    really.dispose()
    assert by_fault == by_cut
    assert by_fault.errors
    assert stored(Account, 1)["balance"] - after_fault == after_fault - 10


@pytest.mark.engines("postgresql")
def test_a_refusal_is_that_of_the_server(faults, mine, engine):
    """A real deadlock, and one that was armed."""
    seen = []
    for arm in (lambda: faults.deadlock(), lambda: None):
        with mine.connect() as connection, engine.connect() as other:
            if not seen:
                arm()
            else:
                connection.execute(text("SET LOCAL deadlock_timeout = '20ms'"))
                other.execute(text("SET LOCAL deadlock_timeout = '10s'"))
                other.execute(update(Account).where(Account.id == 2).values(balance=0))
                connection.execute(update(Account).where(Account.id == 1).values(balance=0))
                number = other.scalar(select(func.pg_backend_pid()))
                other_waits = update(Account).where(Account.id == 1).values(balance=0)
                thread = threading.Thread(target=other.execute, args=[other_waits])
                thread.start()
                while not waits(engine, number):
                    pass
            with pytest.raises(DBAPIError) as caught:
                connection.execute(update(Account).where(Account.id == 2).values(balance=0))
            connection.rollback()
            if seen:
                thread.join()
            error: Any = caught.value.orig
            seen.append((type(error), error.sqlstate, error.diag.message_primary))
    assert seen[0] == seen[1]


def waits(engine: Engine, number: int | None) -> Any:
    with engine.connect() as connection:
        return connection.scalar(select(func.cardinality(func.pg_blocking_pids(number)) > 0))


# -- every driver ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_every_fault_comes_over_an_async_driver(
    async_engine, async_accounts, optilock_faults
):
    faults = optilock_faults(async_engine)
    runs = []

    @unit_of_work(async_engine, retry=retrying(attempts=3, wait_initial=0), strategy="optimistic")
    async def work(session: AsyncSession) -> None:
        runs.append(1)
        (await session.get_one(Account, 1)).balance += 1

    for arm in (
        lambda: faults.cut(statement=2),
        lambda: faults.deadlock(),
        lambda: faults.conflict(Account, 1, owner="Eve"),
    ):
        runs.clear()
        with arm():
            await work()
        assert len(runs) == 2
    for is_stored in (True, False):
        with faults.commit_lost(stored=is_stored), pytest.raises(CommitOutcomeUnknown) as caught:
            await work()
        assert caught.value.__cause__.connection_invalidated
    async with AsyncSession(async_engine) as session:
        assert (await session.get_one(Account, 1)).balance == 14


@pytest.fixture
def async_accounts(async_store: Any) -> None:
    async_store(Account(id=1, owner="Ada", balance=10))


# -- COMMIT in other forms -------------------------------------------------------------------------


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_a_commit_that_goes_with_the_last_write_is_met(faults, mine, stored, is_stored):
    with faults.commit_lost(stored=is_stored), pytest.raises(CommitOutcomeUnknown):
        run(mine, pipelined=True)
    assert stored(Account, 1)["balance"] == 10 + is_stored
    with faults.deadlock(), faults.conflict(Account, 1):
        assert run(mine, pipelined=True) == 3


@pytest.mark.engines("postgresql")
def test_a_commit_that_the_database_refuses_is_not_met(faults, mine, stored):
    with mine.begin() as connection:
        connection.execute(text("ALTER TABLE accounts ADD owned INT UNIQUE DEFERRABLE"))
    lost = faults.commit_lost(stored=True)
    with pytest.raises(IntegrityError), mine.begin() as connection:
        connection.execute(text("SET CONSTRAINTS ALL DEFERRED"))
        connection.execute(text("UPDATE accounts SET owned = 1"))
    assert lost.met == 0
    with pytest.raises(CommitOutcomeUnknown):
        run(mine)
    assert lost.met == 1
    assert stored(Account, 1)["balance"] == 11


# -- what was not met ------------------------------------------------------------------------------

ARMED: dict[str, Do] = {
    "commit_lost": lambda faults: faults.commit_lost(stored=True),
    "cut": lambda faults: faults.cut(statement=3),
    "conflict": lambda faults: faults.conflict(Account, 1),
    "deadlock": lambda faults: faults.deadlock(),
}


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("name", ARMED)
def test_a_fault_that_was_not_met_fails_the_test(mine, name):
    with pytest.raises(FaultNotMet, match=rf"{name}\(.*happened 0 of 1 times"), Faults(mine) as on:
        with pytest.raises(FaultNotMet), ARMED[name](on):
            pass
        ARMED[name](on)


@pytest.mark.engines("sqlite-wal")
def test_a_fault_that_was_met_too_seldom_fails_the_test(faults, mine):
    with (
        pytest.raises(FaultNotMet, match="happened 1 of 2 times"),
        faults.deadlock(times=2),
        pytest.raises(DBAPIError),
        UnitOfWork(mine) as session,
    ):
        add(session)


@pytest.mark.engines("sqlite-wal")
def test_an_error_of_the_block_comes_out_and_not_that_of_the_fault(mine):
    with pytest.raises(LookupError), Faults(mine) as faults, faults.deadlock():
        raise LookupError


@pytest.mark.engines("sqlite-wal")
def test_a_fault_that_is_withdrawn_happens_no_more(faults, mine):
    faults.deadlock().withdraw()
    assert run(mine) == 1


def test_a_conflict_that_cannot_come_between_is_reported(faults, mine, stored):
    def lock_first(session: Session) -> None:
        session.execute(update(Account).where(Account.id == 1).values(note="locked"))
        armed.append(faults.conflict(Account, 1))
        add(session)

    armed: list[Any] = []
    run(mine, lock_first)
    with pytest.raises(FaultNotMet, match="has locked it"):
        armed[0].require_met()
    armed[0].withdraw()
    assert stored(Account, 1)["balance"] == 11


# -- the engine ------------------------------------------------------------------------------------


def test_the_engine_is_as_before_afterwards(mine, stored):
    with Faults(mine) as faults:
        assert run(mine) == 1
        faults.deadlock().withdraw()
    assert run(mine) == 1
    with Faults(mine) as again, again.deadlock():
        assert run(mine) == 2
    assert stored(Account, 1)["balance"] == 13


@ON_A_LINE
@pytest.mark.full
def test_the_lines_end_with_their_connections(faults, mine):
    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with faults.cut():
        run(mine)
    mine.dispose()
    before = settled(open_files)
    for _ in range(5):
        with faults.cut():
            run(mine)
    mine.dispose()
    assert settled(open_files) <= before


def settled(count: Do) -> int:
    """The number once the threads of the lines have closed what they had."""
    numbers = [-1]

    def is_settled() -> bool:
        numbers.append(count())
        return numbers[-1] == numbers[-2]

    until(is_settled, every=0.05)
    return numbers[-1]


@pytest.mark.engines("postgresql")
def test_a_statement_can_be_cancelled_over_a_line(faults, mine):
    with mine.connect() as connection:
        driver = connection.connection.driver_connection
        timer = threading.Timer(0.2, driver.cancel_safe)
        timer.start()
        with pytest.raises(DBAPIError, match="canceling statement"):
            connection.execute(text("SELECT pg_sleep(60)"))
        timer.join()


REFUSED: dict[str, tuple[Do, str]] = {
    "no engine": (lambda: Faults("postgresql://"), "got 'str'"),  # type: ignore[arg-type]
    "memory": (lambda: Faults(create_engine("sqlite://")), "in memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_engine_that_cannot_be_led_is_refused(name):
    make, says = REFUSED[name]
    with pytest.raises(ConfigurationError, match=says):
        make()


@pytest.mark.engines("sqlite-wal")
def test_an_engine_that_connects_by_itself_is_refused(database):
    file = make_url(database.url).database or ""
    engine = create_engine("sqlite:///somewhere.db", creator=lambda: sqlite3.connect(file))
    with Faults(engine), pytest.raises(ConfigurationError, match="creator="):
        engine.connect()


def test_a_line_that_must_be_encrypted_is_refused():
    engine = create_engine("postgresql+psycopg://me@127.0.0.1/db?sslmode=require")
    with Faults(engine), pytest.raises(ConfigurationError, match="TLS"):
        engine.connect()


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("mode", ["disable", "allow", "prefer"])
def test_a_line_that_may_be_plain_is_led(database, mode):
    engine = create_engine(make_url(database.url).update_query_dict({"sslmode": mode}))
    with Faults(engine) as faults, faults.cut(), pytest.raises(DBAPIError), engine.connect() as one:
        one.execute(text("SELECT 1"))
    engine.dispose()


WRONG: dict[str, tuple[Do, str]] = {
    "times": (lambda faults: faults.deadlock(times=0), "times=0"),
    "at_write": (lambda faults: faults.conflict(Account, 1, at_write=0), "at_write=0"),
    "statement": (lambda faults: faults.cut(statement=0), "statement=0"),
    "stored": (lambda faults: faults.commit_lost(stored=1), "stored=1"),
    "class": (lambda faults: faults.conflict(int, 1), "mapped class"),
    "attribute": (lambda faults: faults.conflict(Account, 1, nmae="x"), "'nmae'"),
}


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(faults, name):
    arm, says = WRONG[name]
    with pytest.raises(ConfigurationError, match=says):
        arm(faults)


@pytest.mark.engines("sqlite-wal")
def test_nothing_is_armed_outside_of_the_block(mine):
    with pytest.raises(ConfigurationError, match="open Faults"):
        Faults(mine).deadlock()
