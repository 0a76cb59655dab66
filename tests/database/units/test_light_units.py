"""A unit of work is nearly as light as a session: what it needs is made once, not for each unit."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConfigurationError, UnitOfWork, expect, touch, unit_of_work, verify, watch
from optilock._mapping.tables import features_in_use
from optilock._watched.session.record import SessionRecord
from optilock.preconditions import overwrite
from optilock.unit.heat import MEMORY
from tests.support.models import Account
from tests.support.work import calls_of

ROOT = Path(__file__).parents[3]
#: Calls of Python functions that are spared, of more than 500 of a plain session, for a row.
WATCHED, UNIT, DECORATED = 100, 55, 22


@pytest.fixture
def sessions(engine, store):
    store(Account(id=1, balance=0))
    return sessionmaker(engine)


def work(session):
    session.get_one(Account, 1).balance += 1


def in_a_unit(sessions):
    def unit():
        with UnitOfWork(sessions) as session:
            work(session)

    return unit


def decorated(sessions):
    return unit_of_work(sessions)(work)


def in_a_watched_session(sessions):
    watched = watch(sessionmaker(sessions.kw["bind"]))

    def session():
        with watched() as session:
            work(session)
            session.commit()

    return session


WAYS = [(in_a_watched_session, WATCHED), (in_a_unit, UNIT), (decorated, DECORATED)]


def warmed(do):
    for _ in range(3):
        do()
    return do


@pytest.mark.parametrize("way", [in_a_unit, decorated])
def test_a_unit_registers_no_event_and_copies_nothing(sessions, way):
    called = calls_of(warmed(way(sessions)))

    assert not [name for file, name in called if file.endswith("sqlalchemy/event/registry.py")]
    assert not [name for file, name in called if file.endswith("/copy.py")]
    assert not [name for file, name in called if name in ("listen", "listens_for", "configure")]


@pytest.mark.usefixtures("ordinary_classes")
def test_a_cold_row_costs_a_unit_that_would_lock_it_a_few_calls(sessions):
    MEMORY.forget()
    plain = len(calls_of(warmed(decorated(sessions))))
    adaptive = len(calls_of(warmed(unit_of_work(sessions, strategy="adaptive")(work))))
    assert adaptive <= plain + 12


@pytest.mark.usefixtures("ordinary_classes")
def test_a_cold_query_costs_it_a_few_calls(sessions):
    def query(session):
        session.scalars(select(Account).where(Account.id == 1)).one().balance += 1

    MEMORY.forget()
    plain = len(calls_of(warmed(unit_of_work(sessions)(query))))
    adaptive = len(calls_of(warmed(unit_of_work(sessions, strategy="adaptive")(query))))
    assert adaptive <= plain + 20


@pytest.fixture
def ordinary_classes(monkeypatch):
    """As in a program that maps no unusual class; this process has mapped those of all tests."""
    for kind in ("shared", "compared", "kept"):
        monkeypatch.setattr(features_in_use, kind, False)
    monkeypatch.setattr(SessionRecord, "demands", None)  # of leases and share modes


def measure(url: str) -> None:
    """Print the calls of each way, and of a plain session."""
    engine = create_engine(url)

    def natively():
        with Session(engine) as session:
            work(session)
            session.commit()

    def calls(do):
        return min(len(calls_of(warmed(do))) for _ in range(5))

    plain = calls(natively)
    print(json.dumps([plain, *(calls(way(sessionmaker(engine))) for way, _ in WAYS)]))


def test_the_guard_spares_more_calls_than_it_makes(database, sessions):
    """In a process of its own: each listener of another test costs calls in every session."""
    program = "import sys; from tests.database.units import test_light_units as here"
    command = [sys.executable, "-W", "ignore", "-c", f"{program}; here.measure(sys.argv[1])"]
    done = subprocess.run([*command, database.url], stdout=subprocess.PIPE, check=True, cwd=ROOT)
    plain, *ours = json.loads(done.stdout)
    fewer = {way.__name__: plain - calls for (way, _), calls in zip(WAYS, ours, strict=True)}
    assert all(fewer[way.__name__] >= least for way, least in WAYS), (plain, fewer)


def test_units_of_one_factory_share_a_session_class(sessions):
    classes = set()
    for _ in range(3):
        with UnitOfWork(sessions) as session:
            classes.add(type(session))
    [cls] = classes
    assert issubclass(cls, sessions.class_)


def test_a_factory_that_is_configured_later_is_asked_as_it_is(engine, sessions):
    with UnitOfWork(sessions):
        pass
    sessions.configure(expire_on_commit=False, info={"tenant": 7})
    with UnitOfWork(sessions) as session:
        account = session.get_one(Account, 1)
    assert session.info == {"tenant": 7}
    assert account.balance == 0


def test_a_factory_with_a_way_of_its_own_is_asked_for_its_sessions(engine, store):
    class Counted(sessionmaker):
        made = 0

        def __call__(self, **options):
            type(self).made += 1
            return super().__call__(**options, info={"number": self.made})

    store(Account(id=1, balance=0))
    sessions = Counted(engine)
    for number in (1, 2):
        with UnitOfWork(sessions) as session:
            work(session)
            assert session.info == {"number": number}


@pytest.mark.engines("sqlite")
def test_an_engine_that_cannot_count_rows_is_refused_also_if_it_came_later(
    engine, sessions, monkeypatch
):
    with UnitOfWork(sessions):
        pass
    monkeypatch.setattr(engine.dialect, "supports_sane_rowcount", False)
    with (
        pytest.raises(ConfigurationError, match="cannot tell how many rows"),
        UnitOfWork(sessions) as session,
    ):
        work(session)


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("of_the_session", [True, False])
def test_a_savepoint_of_a_unit_begins_a_transaction_first(engine, sessions, of_the_session):
    """Without BEGIN its RELEASE would commit."""
    sent = []

    def before_cursor_execute(connection, cursor, statement, *further):
        sent.append(statement.split()[0])

    event.listen(engine, "before_cursor_execute", before_cursor_execute)
    with pytest.raises(ZeroDivisionError), UnitOfWork(sessions) as session:
        nests = session if of_the_session else session.connection()
        with nests.begin_nested():
            session.connection().exec_driver_sql("UPDATE accounts SET balance = 7")
        raise ZeroDivisionError
    event.remove(engine, "before_cursor_execute", before_cursor_execute)

    assert sent == ["BEGIN", "SAVEPOINT", "UPDATE", "RELEASE"]
    with Session(engine) as session:
        assert session.get_one(Account, 1).balance == 0


def reads(session):
    session.get_one(Account, 1)


def writes(session):
    session.get_one(Account, 1).balance += 1
    session.get_one(Account, 2).balance += 1


def verifies(session):
    verify(session.get_one(Account, 1))
    session.get_one(Account, 2).balance += 1


def expects(session):
    row = session.get_one(Account, 1)
    expect(row, row.version)


def overwrites(session):
    row = session.get_one(Account, 1)
    overwrite(row)
    row.balance += 1


def touches(session):
    touch(session.get_one(Account, 1))


@pytest.mark.parametrize("strategy", ["optimistic", "pessimistic", "adaptive"])
@pytest.mark.parametrize("work", [reads, writes, verifies, expects, overwrites, touches])
def test_a_unit_leaves_nothing_for_the_garbage_collector(work, strategy, sessions, store, collect):
    store(Account(id=2, balance=0))
    unit = warmed(unit_of_work(sessions, strategy=strategy)(work))
    collect()
    gc.disable()
    try:
        unit()
        assert collect() == 0
    finally:
        gc.enable()
