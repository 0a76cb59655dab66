"""A unit that has locked something does not wait for long for what it has not locked."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, events, lock, retrying, unit_of_work, verify
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of
from optilock.testing import count_statements
from optilock.unit.heat import MEMORY
from tests.support.models import Account
from tests.support.waiting import LIMIT, until_a_lock_is_waited_for

pytestmark = pytest.mark.engines("postgresql")


@pytest.fixture
def sessions(engine, store):
    store(*(Account(id=n, balance=0) for n in range(12)))
    return sessionmaker(engine)


@pytest.fixture
def heat(engine, other, sessions):
    """Somebody else is first, once: from then on the row is locked when it is read."""

    def heat(key):
        met = []

        @unit_of_work(sessions, strategy="adaptive", retry=retrying(repeat_values="overwrite"))
        def work(session):
            row = session.get_one(Account, key)
            if not met:
                met.append(other(Account, key, note="first"))
            row.note = "second"

        work()
        assert key in [one.identity[0] for one in MEMORY.rows if one.identity]

    return heat


@pytest.fixture
def meanwhile(engine, sessions):
    """Run ``work`` while somebody else has locked a row, until it is to run again.

    With ``waits`` it has to wait for longer. Gives what the attempts have failed with.
    """

    def meanwhile(work, key, *, waits=False):
        failed, again = [], threading.Event()

        def listener(heard):
            if isinstance(heard, events.Retry):
                error = heard.error
                failed.append(cause_of(error) if isinstance(error, DBAPIError) else type(error))
                again.set()

        events.listen(listener, written=False)
        doing = threading.Thread(target=work)
        try:
            with Session(engine) as holder, holder.begin():
                row = holder.get_one(Account, key, with_for_update=True)
                doing.start()
                if waits:
                    until_a_lock_is_waited_for(engine)
                    assert not again.wait(0.3)
                else:
                    assert again.wait(LIMIT)
                row.note = "theirs"
            doing.join()
        finally:
            events.unlisten(listener)
        return failed

    return meanwhile


#: Units whose last writes may go with their end wait as plain ones do.
WAYS = pytest.mark.parametrize("way", [{}, {"pipelined": True}], ids=str)


@WAYS
def test_it_runs_again_and_locks_before(way, sessions, heat, meanwhile, stored):
    heat(1)

    @unit_of_work(sessions, strategy="adaptive", **way)
    def work(session):
        for row in [session.get_one(Account, key) for key in (1, 2)]:
            row.balance += 5

    heard = []
    events.listen(heard.append, written=False)
    try:
        assert meanwhile(work, 2) == [Cause.LOCK_TIMEOUT]
    finally:
        events.unlisten(heard.append)
    assert [stored(Account, key)["balance"] for key in (1, 2)] == [5, 5]
    assert stored(Account, 2)["note"] == "theirs"
    hot = [one for one in heard if isinstance(one, events.Hot) and one.identity == ()]
    assert [one.because for one in hot] == ["a unit waited for a row, and had others"]


@WAYS
@pytest.mark.parametrize("rows", [3, 10])
def test_so_it_does_with_few_and_many_rows_of_a_table(rows, way, sessions, meanwhile, stored):
    @unit_of_work(sessions, strategy="adaptive", **way)
    def work(session):
        for row in [session.get_one(Account, key) for key in range(rows)]:
            row.balance += 5

    assert meanwhile(work, rows - 1) == [Cause.LOCK_TIMEOUT]
    assert [stored(Account, key)["balance"] for key in range(rows)] == [5] * rows


@WAYS
def test_so_it_does_where_it_only_verifies(way, sessions, heat, meanwhile, stored):
    heat(1)

    @unit_of_work(sessions, strategy="adaptive", **way)
    def work(session):
        session.get_one(Account, 1)
        verify(session.get_one(Account, 2))

    assert meanwhile(work, 2) == [Cause.LOCK_TIMEOUT]


LOCKS = {
    "a query": lambda s: s.scalars(select(Account).where(Account.id == 1).with_for_update()).one(),
    "lock()": lambda s: lock(s.get_one(Account, 1)),
}


@pytest.mark.parametrize("way", LOCKS)
def test_so_it_does_however_it_has_locked(way, sessions, meanwhile, stored):
    @unit_of_work(sessions, strategy="adaptive")
    def work(session):
        LOCKS[way](session)
        session.get_one(Account, 2).balance += 5

    assert meanwhile(work, 2) == [Cause.LOCK_TIMEOUT]
    assert stored(Account, 2)["balance"] == 5


def test_who_only_verifies_one_row_waits(sessions, meanwhile):
    @unit_of_work(sessions, strategy="adaptive")
    def work(session):
        verify(session.get_one(Account, 2))

    assert meanwhile(work, 2, waits=True) == [ConcurrencyError]


def test_who_has_locked_nothing_waits(sessions, meanwhile, stored):
    @unit_of_work(sessions, strategy="adaptive")
    def work(session):
        session.get_one(Account, 2).balance += 5

    assert meanwhile(work, 2, waits=True) == [ConcurrencyError]  # once the other one has committed
    assert stored(Account, 2)["balance"] == 5


def twice(session):
    verify(session.get_one(Account, 3))
    for row in [session.get_one(Account, key) for key in (1, 2)]:
        row.balance += 1
    session.flush()


def sets_limit(engine, work):
    with count_statements(engine) as sent:
        work()
    return any("20ms" in one.text for one in sent.statements)


@pytest.mark.anyio
async def test_an_async_pipelined_unit_waits_no_longer(database, store, engine):
    """Its last writes have another limit as well, of ten seconds."""
    store(Account(id=1), Account(id=2))
    with engine.begin() as connection:
        connection.execute(text(_NOTING))
    made = create_async_engine(database.url)

    @unit_of_work(async_sessionmaker(made), strategy="adaptive", pipelined=True)
    async def work(session):
        for row in [await session.get_one(Account, key) for key in (1, 2)]:
            row.balance += 5

    await work()
    await made.dispose()
    with Session(engine) as session:
        assert session.scalars(select(Account.note)).all() == ["20ms", "20ms"]


_NOTING = """
CREATE FUNCTION limits() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.note = current_setting('lock_timeout'); RETURN NEW; END $$;
CREATE TRIGGER limits BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION limits();
"""


@pytest.mark.parametrize(
    ("options", "sets"),
    [
        ({"strategy": "adaptive"}, True),
        ({"strategy": "adaptive", "attempts": 1}, False),
        ({"strategy": "adaptive", "retry": retrying(on=ConcurrencyError)}, False),
        ({"strategy": "adaptive", "pipelined": True}, True),
        ({"strategy": "pessimistic"}, False),
        ({"strategy": "optimistic"}, False),
        ({}, True),
    ],
    ids=str,
)
def test_only_who_runs_again_sets_the_limit(options, sets, engine, sessions):
    work = unit_of_work(sessions, **options)(twice)
    assert sets_limit(engine, work) is sets


def test_the_last_attempt_waits(engine, sessions):
    attempts = []

    @unit_of_work(sessions, strategy="adaptive", retry=retrying(attempts=2, wait_initial=0))
    def work(session):
        with count_statements(engine) as sent:
            twice(session)
        attempts.append(any("20ms" in one.text for one in sent.statements))
        if len(attempts) == 1:
            raise ConcurrencyError([])

    work()
    assert attempts == [True, False]


def test_the_next_attempt_waits_ten_seconds_for_a_hot_row(sessions, other):
    """Not 20 ms: not even after a conflict, where the transaction would else go on."""
    found = []

    @unit_of_work(sessions, strategy="adaptive")
    def work(session):
        rows = [session.get_one(Account, key) for key in (1, 2)]
        limit = select(func.current_setting("lock_timeout"), Account.id).where(Account.id == 1)
        found.append(session.execute(limit).scalar())
        if len(found) == 1:
            other(Account, 1, note="first")
            other(Account, 2, note="first")
        for row in rows:
            row.balance += 1

    work()
    assert found == ["0", "9999ms"]


def test_a_unit_of_a_with_block_waits(engine, sessions):
    def work():
        with UnitOfWork(sessions, strategy="adaptive") as session:
            twice(session)

    assert sets_limit(engine, work) is False


def test_rows_that_it_has_locked_set_no_limit(engine, sessions, heat):
    for key in (1, 2):  # and with them the table
        heat(key)
    work = unit_of_work(sessions, strategy="adaptive")(twice)
    assert sets_limit(engine, work) is False


def test_a_limit_of_the_application_stays(database, sessions, engine):
    found = []

    def work(session):
        twice(session)
        found.append(session.scalar(text("SHOW lock_timeout")))

    unit_of_work(sessions, strategy="adaptive")(work)()
    own = create_engine(database.url, connect_args={"options": "-c lock_timeout=5s"})
    unit_of_work(sessionmaker(own), strategy="adaptive")(work)()
    with own.connect() as connection:
        found.append(connection.scalar(text("SHOW lock_timeout")))
    own.dispose()
    with engine.connect() as connection:
        found.append(connection.scalar(text("SHOW lock_timeout")))

    assert found == ["20ms", "5s", "5s", "0"]


def test_who_fails_says_that_it_was_a_lock(sessions, heat, engine):
    """Where nobody gives the row back, the last attempt waits as the server is set up to."""
    heat(1)
    with Session(engine) as holder, holder.begin():
        holder.get_one(Account, 2, with_for_update=True)

        @unit_of_work(sessions, strategy="adaptive", attempts=2)
        def work(session):
            session.execute(text("SET LOCAL lock_timeout = '50ms'"))
            twice(session)

        with pytest.raises(DBAPIError) as caught:
            work()
    assert cause_of(caught.value) is Cause.LOCK_TIMEOUT
