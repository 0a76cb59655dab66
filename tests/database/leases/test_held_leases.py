"""``with lease(...)``: renewed while the block runs, told when it is lost, over when it is left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, literal_column, select, text, update
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

import optilock.asyncio
from optilock import (
    AsyncUnitOfWork,
    ConfigurationError,
    Isolation,
    UnitOfWork,
    Versioned,
    events,
    leases,
    shares,
    watch,
)
from optilock._watched.session.connections import separate_connection
from optilock.dialects import database_of
from optilock.dialects.at_once import lock_at_once
from optilock.leases import ENDLESS, Leasable, LeaseHeld, LeaseLost, LeasePolicy, Name, Names
from optilock.leases import renewal as renewals
from optilock.shares import HandleLost
from optilock.tables.names import SHARES, share_handles
from optilock.testing import count_statements
from optilock.tokens.sql_functions import ServerTime
from tests.support.models import key, own_base
from tests.support.waiting import (
    LIMIT,
    OFTEN,
    for_ever,
    is_after,
    renewed,
    renewed_awaited,
    turn,
    until,
    until_awaited,
    until_past,
)
from tests.support.waiting import often as often

# They wait for seconds, and each database keeps the same promises.
pytestmark = pytest.mark.usually("postgresql")

Base = own_base()


class Desk(Leasable, Versioned, Base):
    __tablename__ = "held_desks"
    __lease_policy__ = LeasePolicy(shortest=0.1, longest=60)
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(default="")


NAMES = Names(table="held_names", policy=LeasePolicy(shortest=0.1))
TABLES: list[Any] = [Desk.__table__, NAMES.columns.table]
#: Seconds: so short that a lease is lost soon.
SHORT = 1.0
#: Where it has to last, too: a machine may be slow for a moment.
LONGER = 3.0
is_often_renewed = pytest.mark.usefixtures("often")


def create(connection: Any) -> None:
    for table in TABLES:
        table.drop(connection, checkfirst=True)
        table.create(connection)
    connection.execute(Desk.__table__.insert(), [{"id": n, "version": 1} for n in (1, 2)])


@pytest.fixture
def desks(engine: Engine) -> Iterator[Engine]:
    with engine.begin() as connection:
        create(connection)
    yield engine
    for table in TABLES:
        table.drop(engine)


def state(engine: Engine, of: Any = (Desk, 1)) -> Any:
    with Session(engine) as session:
        return leases.look(session, of)


@contextlib.contextmanager
def no_more_threads() -> Iterator[None]:
    """None can be started: no memory is large enough for its stack."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


def taken_away(engine: Engine) -> None:
    """Somebody breaks the lease, and becomes the holder."""
    with Session(engine) as session, session.begin():
        leases.break_(session, (Desk, 1), after=0)
        leases.acquire(session, (Desk, 1), 60)


def renewing() -> int:
    return sum(one.name == "optilock lease" for one in threading.enumerate())


ROWS = [(Desk, 1), Name("import", NAMES)]
of_both = pytest.mark.parametrize("of", ROWS, ids=["row", "name"])


def test_it_is_renewed_after_a_third_of_its_length(desks: Engine) -> None:
    with leases.lease(desks, (Desk, 1), 60) as held:
        assert held.first_wait == pytest.approx(20)


@is_often_renewed
@of_both
def test_it_is_renewed_and_then_released(desks: Engine, of: Any) -> None:
    with leases.lease(desks, of, OFTEN) as held:
        first = held.lease
        for _ in range(2):
            renewed(held)
            assert held.lease.until > first.until  # type: ignore[operator]
            first = held.lease
        now = state(desks, of)
        assert (now.state, now.fence) == ("leased", held.fence)
        assert now.until >= first.until
        held.check()
        assert first.id.hex not in repr(held.__dict__)
    assert state(desks, of).state == "available"
    assert renewing() == 0


class Left(BaseException):
    """The block is left by this."""


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("way", [ValueError, KeyboardInterrupt, SystemExit, Left])
def test_whatever_leaves_the_block_ends_it(desks: Engine, way: Any) -> None:
    with pytest.raises(way), leases.lease(desks, (Desk, 1), OFTEN):
        raise way
    assert (state(desks).state, renewing()) == ("available", 0)


@pytest.mark.engines("sqlite-wal")
def test_a_return_and_a_break_end_it(desks: Engine) -> None:
    def work() -> None:
        for _ in range(2):
            with leases.lease(desks, (Desk, 1), OFTEN):
                break
        with leases.lease(desks, (Desk, 1), OFTEN):
            return

    work()
    assert (state(desks).state, renewing()) == ("available", 0)


def test_the_block_is_not_entered_while_somebody_holds_it(desks: Engine) -> None:
    with Session(desks) as session, session.begin():
        leases.acquire(session, (Desk, 1), ENDLESS)
    with pytest.raises(LeaseHeld), leases.lease(desks, (Desk, 1), OFTEN):
        raise AssertionError
    assert renewing() == 0


@is_often_renewed
def test_its_holder_is_told_at_once_that_it_is_lost(desks: Engine) -> None:
    told: list[Any] = []
    heard = threading.Event()

    def on_lost(error: LeaseLost) -> None:
        told.append(error)
        heard.set()

    with (
        pytest.raises(LeaseLost) as raised,
        leases.lease(desks, (Desk, 1), OFTEN, on_lost=on_lost) as held,
    ):
        held.check()
        taken_away(desks)
        assert heard.wait(OFTEN - 5)  # not at its end only
        with pytest.raises(LeaseLost, match="There is another holder"):
            held.check()
        with pytest.raises(LeaseLost), UnitOfWork(desks, parts=[held]) as session:
            session.get_one(Desk, 1).text = "mine"
    assert told == [raised.value] == [held.lost]
    assert (state(desks).state, renewing()) == ("leased", 0)


@is_often_renewed
@pytest.mark.engines("sqlite-wal")
def test_what_a_block_acquires_and_loses_is_heard(desks: Engine) -> None:
    """B4: events of leases."""
    heard: list[Any] = []
    lost = threading.Event()

    with (
        events.listening(heard.append, written=False),
        pytest.raises(LeaseLost) as raised,
        leases.lease(desks, (Desk, 1), OFTEN, on_lost=lambda error: lost.set()),
    ):
        assert heard[-1] == events.Acquired("lease", "the lease on Desk 1")
        taken_away(desks)
        assert lost.wait(LIMIT)

    assert [one for one in heard if isinstance(one, events.Lost)] == [
        events.Lost("lease", "the lease on Desk 1", raised.value)
    ]


@is_often_renewed
@pytest.mark.engines("sqlite-wal")
def test_another_error_goes_on_and_has_a_note(desks: Engine) -> None:
    with (
        pytest.raises(ValueError, match="mine") as raised,
        leases.lease(desks, (Desk, 1), OFTEN) as held,
    ):
        taken_away(desks)
        until(lambda: held.lost)
        raise ValueError("mine")
    assert "is not in force" in raised.value.__notes__[0]


@is_often_renewed
@pytest.mark.engines("sqlite-wal")
def test_what_on_lost_raises_is_logged(desks: Engine, caplog: Any) -> None:
    called = threading.Event()

    def on_lost(error: LeaseLost) -> None:
        called.set()
        raise ValueError

    with pytest.raises(LeaseLost), leases.lease(desks, (Desk, 1), OFTEN, on_lost=on_lost):
        taken_away(desks)
        assert called.wait(LIMIT)
    assert "on_lost= of the lease on Desk 1 has raised" in caplog.text


@is_often_renewed
def test_units_write_under_it(desks: Engine) -> None:
    with leases.lease(desks, (Desk, 1), OFTEN) as held:
        for number in range(4):
            with UnitOfWork(desks, parts=[held]) as session:
                session.get_one(Desk, 1).text = f"edit {number}"
            renewed(held)
        with pytest.raises(LeaseHeld), UnitOfWork(desks) as session:
            session.get_one(Desk, 1).text = "theirs"
    with UnitOfWork(desks) as session:
        assert session.get_one(Desk, 1).text == "edit 3"


LEVELS = [None, Isolation.READ_COMMITTED, Isolation.REPEATABLE_READ, Isolation.SERIALIZABLE]


@pytest.mark.modes(full=True)
@pytest.mark.parametrize(
    "level",
    [one if one is None else pytest.param(one, marks=pytest.mark.full) for one in LEVELS],
    ids=str,
)
@pytest.mark.parametrize(
    "writes_first", [True, pytest.param(False, marks=pytest.mark.full)], ids=["written", "read"]
)
@pytest.mark.full
def test_renewal_waits_for_no_transaction_of_the_holder(
    desks: Engine, level: Any, writes_first: bool
) -> None:
    """The holder's transaction has the row for longer than the length of the lease."""
    options: Any = {} if level is None else {"isolation": level}
    with leases.lease(desks, (Desk, 1), LONGER) as held:
        first = state(desks)
        with UnitOfWork(desks, parts=[held], **options) as session:
            desk = session.get_one(Desk, 1)
            if writes_first:
                desk.text = "mine"
                session.flush()
            until_past(desks, first.until)
            held.check()
            assert writes_first or desk.text == ""
        until(lambda: state(desks).state == "leased")  # again: nobody else came first
        with UnitOfWork(desks, parts=[held], **options) as session:
            session.get_one(Desk, 1).text += "!"
    assert state(desks).state == "available"
    with UnitOfWork(desks) as session:
        assert session.get_one(Desk, 1).text == ("mine!" if writes_first else "!")


@is_often_renewed
@pytest.mark.parametrize("level", LEVELS[2:], ids=str)
@pytest.mark.full
def test_renewal_ends_no_transaction_that_reads_a_snapshot(desks: Engine, level: Any) -> None:
    """It is read, others renew if they can, and it is written: not one 40001."""
    for number in range(2):
        with (
            leases.lease(desks, (Desk, 1), OFTEN) as held,
            UnitOfWork(desks, parts=[held], isolation=level) as session,
        ):
            desk = session.get_one(Desk, 1)
            for _ in range(2):  # the first may have begun before
                renewed(held)  # as the row is locked, it only notes that
            desk.text = f"edit {number}"


@pytest.mark.engines("postgresql", "sqlite-wal", "mariadb")
def test_a_unit_that_reads_a_snapshot_begins_after_a_renewal(
    desks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is under way: its COMMIT would come after the snapshot, and end the unit."""
    monkeypatch.setattr(renewals, "PATIENCE", LIMIT)
    committing, go_on = threading.Event(), threading.Event()

    def wait(connection: Any) -> None:
        if threading.current_thread().name == "renewal":
            committing.set()
            go_on.wait(LIMIT)

    event.listen(desks, "commit", wait)
    with leases.lease(desks, (Desk, 1), 60) as held:
        renew_on, after_it = held.renew_on, []

        def begin(connection: Any) -> None:
            after_it.append(go_on.is_set())
            renew_on(connection)

        monkeypatch.setattr(held, "renew_on", begin)
        renewal = threading.Thread(target=held.renew_once, args=(desks,), name="renewal")
        renewal.start()
        assert committing.wait(LIMIT)
        threading.Timer(0.3, go_on.set).start()
        with UnitOfWork(desks, parts=[held], isolation=Isolation.REPEATABLE_READ) as session:
            session.get_one(Desk, 1).text = "mine"
        renewal.join(LIMIT)
    event.remove(desks, "commit", wait)
    assert after_it == [True]


@pytest.mark.full
def test_the_end_waits_for_no_transaction_of_the_holder(
    desks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "PATIENCE", LIMIT)
    with watch(sessionmaker(desks))() as session:
        with leases.lease(desks, (Desk, 1), LONGER) as held:
            held.use(session)
            session.get_one(Desk, 1).text = "mine"
            session.flush()
        session.commit()
    assert state(desks).state in ("leased", "expired")
    until(lambda: state(desks).state == "expired")


@pytest.mark.full
@is_often_renewed
def test_two_leases_are_renewed_side_by_side(desks: Engine) -> None:
    with leases.lease(desks, (Desk, 1), OFTEN) as one, leases.lease(desks, (Desk, 2), OFTEN) as two:
        renewed(one)
        renewed(two)
        with UnitOfWork(desks, parts=[one, two]) as session:
            for desk in session.query(Desk):
                desk.text = "mine"
    assert renewing() == 0


@pytest.mark.engines("sqlite-wal")
def test_the_clock_of_a_database_that_is_gone_runs_out(desks: Engine) -> None:
    """Nothing is heard of the lease: it counts as lost when it must have ended."""
    with (
        pytest.raises(LeaseLost, match="It has ended, or there is another holder"),
        leases.lease(desks, (Desk, 1), SHORT) as held,
    ):
        desks.pool._creator = None  # type: ignore[assignment]  # no connection can be made
        until(lambda: held.lost)


@pytest.mark.engines("sqlite-wal", "postgresql")
def test_what_the_driver_says_is_logged_without_the_id(desks: Engine, caplog: Any) -> None:
    """Its error has the parameters of the statement, and the id is one of them."""
    with (
        pytest.raises(LeaseLost) as raised,
        leases.lease(desks, (Desk, 1), SHORT) as held,
    ):
        mine = held.lease.id
        with desks.begin() as connection:
            connection.execute(text("ALTER TABLE held_desks RENAME COLUMN lease_length TO odd"))
        until(lambda: "has failed" in caplog.text and held.lost)
    with desks.begin() as connection:
        connection.execute(text("ALTER TABLE held_desks RENAME COLUMN odd TO lease_length"))
    with leases.lease(desks, (Desk, 2), SHORT) as held, desks.begin() as connection:
        also = held.lease.id
        connection.execute(text("ALTER TABLE held_desks RENAME COLUMN lease_since TO odd"))
    with desks.begin() as connection:
        connection.execute(text("ALTER TABLE held_desks RENAME COLUMN odd TO lease_since"))
    told = caplog.text + "".join(traceback.format_exception(raised.value))
    assert "Renewing the lease on Desk 1 has failed" in told
    assert not any(one in told for id in (mine, also) for one in (id.hex, str(id), repr(id)))


# -- lost is lost ----------------------------------------------------------------------------------

HOLDS: dict[str, Any] = {
    "lease": lambda engine, length: leases.lease(engine, (Desk, 1), length),
    "name": lambda engine, length: leases.lease(engine, ROWS[1], length),
    "handle": lambda engine, length: shares.opened(engine, "desk", "RW", seconds=length),
}
of_each = pytest.mark.parametrize("what", HOLDS)


def stored_text(engine: Engine) -> str:
    with Session(engine) as session:
        return session.get_one(Desk, 1).text


@is_often_renewed
@of_each
def test_b9_who_was_told_that_it_is_lost_writes_nothing_more(desks: Engine, what: str) -> None:
    """Although it is in force in the database, as after a renewal that was under way."""
    SHARES.tables.create_all(desks)
    lost = (LeaseLost, HandleLost)
    sessions = watch(sessionmaker(desks))
    in_time, used = sessions(), sessions()
    with pytest.raises(lost), HOLDS[what](desks, OFTEN) as held:
        if what != "handle":
            held.use(in_time)
            in_time.get_one(Desk, 1).text = "mine"
            held.use(used)
        held._renewing.acquire()
        held._until = time.monotonic()  # no renewal has come until its end
        with pytest.raises(lost):
            held.check()
        held._renewing.release()
        with Session(desks) as session, session.begin():
            if what == "handle":
                session.execute(
                    update(share_handles).values(until=datetime(2999, 1, 1, tzinfo=UTC))
                )
            else:  # it was given up at once
                until(lambda: state(desks, held.lease).state == "available")
                leases.acquire(session, held.lease, 60, proposed=held.lease.id)
        with count_statements(desks) as sent:
            for _ in range(2):
                with pytest.raises(lost), UnitOfWork(desks, parts=[held]) as session:
                    session.get_one(Desk, 1).text = "late"
            with pytest.raises(lost):
                held.use(used)
            assert isinstance(held.lost, lost)
            with pytest.raises(lost):
                held.renew_once(desks)
            if what != "handle":
                with pytest.raises(lost):
                    in_time.commit()
        nothing = what == "handle" or sent.count == 0  # a handle may just be closed
    in_time.close()
    used.close()
    assert nothing
    with Session(desks) as session:
        assert session.get_one(Desk, 1).text == ""


def test_b9_a_unit_that_learns_of_it_inside_is_rolled_back(desks: Engine) -> None:
    with pytest.raises(LeaseLost), leases.lease(desks, (Desk, 1), 60) as held:
        with pytest.raises(LeaseLost), UnitOfWork(desks, parts=[held]) as session:
            session.get_one(Desk, 1).text = "mine"
            session.flush()
            held.note_lost(held.silence())
        text = stored_text(desks)
    assert text == ""


def test_b9_a_session_goes_on_after_one_refused_transaction(desks: Engine) -> None:
    """A later transaction of it has nothing to do with what was lost."""
    session = watch(sessionmaker(desks))()
    with pytest.raises(LeaseLost), leases.lease(desks, (Desk, 1), 60) as held:
        held.use(session)
        session.get_one(Desk, 1).text = "in time"
        session.commit()
        session.get_one(Desk, 1).text = "late"
        session.flush()
        held.note_lost(held.silence())
        with pytest.raises(LeaseLost):
            session.commit()
        session.rollback()
    session.get_one(Desk, 2).text = "other"
    session.commit()
    assert stored_text(desks) == "in time"
    for _ in range(3):
        with leases.lease(desks, (Desk, 2), 60) as held:
            held.use(session)
    assert list(session.__dict__["_optilock_held"]) == [held]


def test_a_renewal_whose_answer_comes_too_late_is_heard_as_lost(desks: Engine) -> None:
    heard: list[Any] = []
    with events.listening(heard.append, written=False):
        with pytest.raises(LeaseLost), leases.lease(desks, (Desk, 1), 60) as held:
            held._until = time.monotonic()
            held.note_renewed(time.monotonic())
        assert [type(one) for one in heard].count(events.Lost) == 1


def test_b9_an_error_of_a_unit_says_it_too(desks: Engine) -> None:
    with pytest.raises(LeaseLost), leases.lease(desks, (Desk, 1), 60) as held:
        with Session(desks) as session, session.begin():
            id = held.lease.id
            leases.release(session, held.lease)
        with pytest.raises(LeaseLost), UnitOfWork(desks, parts=[held]) as session:
            session.get_one(Desk, 1).text = "mine"
        with Session(desks) as session, session.begin():
            leases.acquire(session, (Desk, 1), 60, proposed=id)
        with pytest.raises(LeaseLost), UnitOfWork(desks, parts=[held]) as session:
            session.get_one(Desk, 1).text = "mine"
        text = stored_text(desks)
    assert text == ""


@pytest.mark.engines("postgresql", "mariadb", "sqlite-wal")
@of_each
def test_b9_a_renewal_that_is_stopped_leaves_no_lock(desks: Engine, what: str) -> None:
    """Once its UPDATE is answered, another session can write the row at once."""
    SHARES.tables.create_all(desks)
    unlocked = []

    def stopped(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        if threading.current_thread().name == "renewal" and statement.startswith("UPDATE"):
            with separate_connection(desks) as other, other.begin():
                unlocked.append(lock_at_once(database_of(other.dialect), other, row, table))

    with HOLDS[what](desks, 60) as held:
        table = share_handles if what == "handle" else held._place.columns.table
        row = select(literal_column("1")).select_from(table)
        row = row.where(table.c.id == 1) if what == "lease" else row
        event.listen(desks, "after_cursor_execute", stopped)
        renewal = threading.Thread(target=held.renew_once, args=(desks,), name="renewal")
        renewal.start()
        renewal.join(20)
        event.remove(desks, "after_cursor_execute", stopped)
    assert unlocked == [True]


@pytest.mark.engines("postgresql", "mariadb", "sqlite-wal")
def test_b9_it_is_renewed_where_a_listener_sets_up_each_connection(desks: Engine) -> None:
    """The listener's statement has begun a transaction, in which no driver changes its mode."""

    def set_up(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT 1")
        cursor.fetchall()
        cursor.close()

    event.listen(desks, "connect", set_up)
    with leases.lease(desks, (Desk, 1), 60) as held:
        assert held.renew_once(desks) == held.first_wait
    assert state(desks).state == "available"
    event.remove(desks, "connect", set_up)


@pytest.mark.engines("postgresql", "mariadb", "sqlite-wal")
@of_each
def test_b9_a_renewal_waits_for_no_lock_of_the_row(desks: Engine, what: str, caplog: Any) -> None:
    SHARES.tables.create_all(desks)
    with HOLDS[what](desks, 60) as held:
        table = share_handles if what == "handle" else held._place.columns.table
        with desks.begin() as connection:
            database_of(connection.dialect).locks.begin_writing(connection, table)
            row = select(literal_column("1")).select_from(table)
            connection.execute(row.with_for_update())
            assert held.renew_once(desks) == held.soon
            assert "has failed" not in caplog.text  # as after a wait for the lock
        assert held.renew_once(desks) == held.first_wait


# -- refused ---------------------------------------------------------------------------------------


def test_what_cannot_be_renewed_is_refused(desks: Engine) -> None:
    with pytest.raises(ConfigurationError, match="give it a duration"):
        leases.lease(desks, (Desk, 1), ENDLESS).__enter__()
    with pytest.raises(ConfigurationError, match=r"lasts?|duration must be"):
        leases.lease(desks, (Desk, 1), 0.01).__enter__()
    memory = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match="one for all"):
        leases.lease(memory, (Desk, 1), 30).__enter__()
    memory.dispose()
    assert state(desks).state == "available"


# -- async -----------------------------------------------------------------------------------------


@pytest.fixture
async def async_desks(async_engine: Any) -> Any:
    async with async_engine.begin() as connection:
        await connection.run_sync(create)
    yield async_engine
    async with async_engine.begin() as connection:
        for table in TABLES:
            await connection.run_sync(table.drop)


async def async_state(engine: Any) -> Any:
    async with engine.connect() as connection:
        return await connection.run_sync(lambda sync: leases.look(Session(bind=sync), (Desk, 1)))


@is_often_renewed
@pytest.mark.anyio
async def test_a_task_renews_it(async_desks: Any) -> None:
    async with optilock.asyncio.lease(async_desks, (Desk, 1), OFTEN) as held:
        for _ in range(4):
            async with AsyncUnitOfWork(async_desks, parts=[held]) as session:
                (await session.get_one(Desk, 1)).text += "!"
            await renewed_awaited(held)
        assert (await async_state(async_desks)).state == "leased"
    assert (await async_state(async_desks)).state == "available"
    async with AsyncUnitOfWork(async_desks) as session:
        assert (await session.get_one(Desk, 1)).text == "!!!!"


async def async_taken_away(engine: Any) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            update(Desk.__table__).values(lease_id=None, version=Desk.__table__.c.version)
        )


@pytest.mark.anyio
async def test_b9_async_code_that_was_told_writes_nothing_more(async_desks: Any) -> None:
    refused = False
    with pytest.raises(LeaseLost):
        async with optilock.asyncio.lease(async_desks, (Desk, 1), OFTEN, on_lost=print) as held:
            held._renewing.acquire()
            held._until = time.monotonic()  # no renewal has come until its end
            with pytest.raises(LeaseLost):
                held.check()
            held._renewing.release()
            with pytest.raises(LeaseLost):
                async with AsyncUnitOfWork(async_desks, parts=[held]) as session:
                    (await session.get_one(Desk, 1)).text = "late"
            refused = True
    assert refused
    assert (await async_state(async_desks)).state == "available"
    async with AsyncUnitOfWork(async_desks) as session:
        assert (await session.get_one(Desk, 1)).text == ""


@is_often_renewed
@pytest.mark.anyio
async def test_the_task_of_its_holder_is_cancelled_when_it_is_lost(async_desks: Any) -> None:
    with pytest.raises(LeaseLost):
        async with optilock.asyncio.lease(async_desks, (Desk, 1), OFTEN) as held:
            await async_taken_away(async_desks)
            await for_ever()
    assert held.left > 0  # not at its end only
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await turn()


@is_often_renewed
@pytest.mark.anyio
async def test_who_swallows_the_cancellation_is_told_at_the_end(async_desks: Any) -> None:
    """And no cancellation is left for what the task does next."""
    with pytest.raises(LeaseLost):
        async with optilock.asyncio.lease(async_desks, (Desk, 1), OFTEN):
            await async_taken_away(async_desks)
            with contextlib.suppress(asyncio.CancelledError):
                await for_ever()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    "level", [None, pytest.param(Isolation.SERIALIZABLE, marks=pytest.mark.full)], ids=str
)
@pytest.mark.full
async def test_no_task_waits_for_a_transaction_of_its_holder(async_desks: Any, level: Any) -> None:
    """It has the row for longer than the length of the lease."""
    options: Any = {} if level is None else {"isolation": level}
    async with optilock.asyncio.lease(async_desks, (Desk, 1), LONGER) as held:
        first = await async_state(async_desks)

        async def is_past() -> bool:
            async with async_desks.connect() as connection:
                return is_after(await connection.scalar(select(ServerTime())), first.until)

        async with AsyncUnitOfWork(async_desks, parts=[held], **options) as session:
            (await session.get_one(Desk, 1)).text = "mine"
            await session.flush()
            await until_awaited(is_past)
            held.check()
    assert (await async_state(async_desks)).state == "available"


@is_often_renewed
@pytest.mark.anyio
async def test_with_on_lost_the_task_goes_on(async_desks: Any) -> None:
    told: list[Any] = []
    with pytest.raises(LeaseLost):
        async with optilock.asyncio.lease(async_desks, (Desk, 1), OFTEN, on_lost=told.append):
            await async_taken_away(async_desks)
            await until_awaited(lambda: told)
            await turn()
    assert len(told) == 1


@pytest.mark.anyio
async def test_a_cancelled_task_releases_it(async_desks: Any) -> None:
    inside, before = asyncio.Event(), len(asyncio.all_tasks())

    async def work() -> None:
        async with optilock.asyncio.lease(async_desks, (Desk, 1), OFTEN):
            inside.set()
            await for_ever()

    task = asyncio.ensure_future(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await async_state(async_desks)).state == "available"
    assert len(asyncio.all_tasks()) == before


@pytest.mark.anyio
@pytest.mark.usually("postgresql", "mariadb")
@pytest.mark.needs("server")  # SQLite's file stays locked for as long as the error is held
@pytest.mark.parametrize("moment", ["checkout", "commit"])
async def test_a_task_that_is_cancelled_while_it_acquires_leaves_nothing(
    async_desks: Any, moment: str
) -> None:
    """B9: nobody would release it before its time is over."""
    loop, entered = asyncio.get_running_loop(), []

    async def hold() -> None:
        async with optilock.asyncio.lease(async_desks, (Desk, 1), 30):
            entered.append(1)

    async with async_desks.connect() as connection:  # or it would be cancelled while it connects
        await connection.execute(text("SELECT 1"))
    holder = asyncio.ensure_future(hold())
    cancel: Any = lambda *_: loop.call_soon(holder.cancel)  # noqa: E731
    event.listen(async_desks.sync_engine, moment, cancel, once=True)
    await asyncio.wait({holder})
    assert holder.cancelled()
    assert not entered
    assert async_desks.pool.checkedout() == 0
    assert (await async_state(async_desks)).state == "available"


@pytest.mark.anyio
async def test_sync_and_async_factories_are_told_apart(async_desks: Any) -> None:
    with pytest.raises(ConfigurationError, match="async with"):
        leases.lease(async_desks, (Desk, 1), SHORT).__enter__()
    with pytest.raises(ConfigurationError, match="with leases"):
        async with optilock.asyncio.lease(async_desks.sync_engine, (Desk, 1), SHORT):
            pass


@pytest.mark.full
def test_a_lease_goes_on_when_no_thread_can_be_started(desks: Engine) -> None:
    with leases.lease(desks, (Desk, 1), SHORT) as held, no_more_threads():
        until_past(desks, state(desks).until)
        held.check()
    assert state(desks).state == "available"


def test_a_lease_that_no_thread_can_renew_is_released(desks: Engine) -> None:
    with (
        no_more_threads(),
        pytest.raises(RuntimeError, match="thread"),
        leases.lease(desks, (Desk, 1), 60),
    ):
        raise AssertionError("the block must not be entered")
    assert state(desks).state == "available"


@is_often_renewed
def test_the_same_failure_is_logged_once(desks: Engine, caplog: Any) -> None:
    """Of a long lease there would be a line a second."""
    failed: list[Any] = []
    event.listen(desks, "handle_error", failed.append)
    with leases.lease(desks, (Desk, 1), OFTEN) as held:
        with desks.begin() as connection:
            connection.execute(text("ALTER TABLE held_desks RENAME TO no_desks"))
        until(lambda: len(failed) > 2)
        with desks.begin() as connection:
            connection.execute(text("ALTER TABLE no_desks RENAME TO held_desks"))
        held.check()
    assert caplog.text.count("Renewing the lease on Desk 1 has failed") == 1
