"""Acquire, renew, change, release, break: what they promise besides the vectors."""

from __future__ import annotations

import datetime
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from optilock import PreconditionFailed, UnitOfWork, Versioned, etag_of, leases, retry, watch
from optilock.entities import Version
from optilock.leases import (
    ENDLESS,
    Leasable,
    Lease,
    LeaseHeld,
    LeaseLost,
    LeasePolicy,
    Name,
    Names,
    Under,
)
from optilock.testing import count_statements
from optilock.tokens import Counter, Timestamp, Unique
from optilock.tokens.sql_functions import ServerTime
from tests.support.models import key, own_base
from tests.support.waiting import until, until_a_lock_is_waited_for

Base = own_base()


POLICY = LeasePolicy(shortest=0.1, longest=3600)


class Sheet(Leasable, Versioned, Base):
    """What an UPDATE would move by itself: the version, and the time of the last change."""

    __tablename__ = "op_sheets"
    __version_token__ = Timestamp()
    __version_guard__ = "reject"
    __lease_policy__ = POLICY
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(default="")
    changed: Mapped[datetime.datetime] = mapped_column(default=func.now(), onupdate=func.now())
    counted: Mapped[int] = mapped_column(default=0, onupdate=7)


class Card(Leasable, Versioned, Base):
    __tablename__ = "op_cards"
    __version_token__ = Counter()
    __lease_policy__ = POLICY
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(default="")


class Note(Leasable, Versioned, Base):
    __tablename__ = "op_notes"
    __version_token__ = Unique()
    __lease_policy__ = LeasePolicy(shortest=0.1, exclusive_reads=True, guards=())
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(default="")


NAMES = Names(table="op_names", policy=LeasePolicy(shortest=0.1))
TABLES: list[Any] = [Sheet.__table__, Card.__table__, Note.__table__, NAMES.columns.table]


@pytest.fixture
def cards(engine: Engine) -> Iterator[Engine]:
    for table in TABLES:
        table.create(engine)
    with Session(engine) as session, session.begin():
        session.add_all(of(id=n) for of in (Sheet, Card, Note) for n in (1, 2))
    yield engine
    for table in TABLES:
        table.drop(engine)


def stored(engine: Engine, of: Any) -> Any:
    columns = [one for one in of.__table__.c if not one.key.startswith("lease_")]
    with engine.connect() as connection:
        return connection.execute(select(*columns).where(of.__table__.c.id == 1)).one()


@pytest.mark.modes(full=True)
@pytest.mark.parametrize("of", [Sheet, Card, Note])
def test_no_operation_moves_the_version_or_any_other_column(cards: Engine, of: Any) -> None:
    """Nor does the guard trigger, which would refuse an UPDATE that leaves the version."""
    before = stored(cards, of)
    row = (of, 1)
    with watch(sessionmaker(cards))() as session:
        obj = session.get_one(of, 1)
        tag = etag_of(obj)
        lease = leases.acquire(session, obj, 30)
        lease = leases.change(session, leases.renew(session, lease))
        leases.break_(session, row, after=5)
        leases.release(session, lease)
        leases.acquire(session, row, ENDLESS)
        leases.break_(session, row)
        session.commit()
        assert etag_of(session.get_one(of, 1)) == tag
        session.delete(session.get_one(of, 1))  # in the version that was read
        session.commit()
    with Session(cards) as session, session.begin():
        session.add(of(id=1))
    assert len(before) == len(stored(cards, of))


def test_numbers_of_holders_only_grow(cards: Engine) -> None:
    seen = [0]
    for of in ((Card, 1), Name("import", NAMES)):
        seen = [0]
        with Session(cards) as session:
            for end in ("release", "break_", "change", "release"):
                lease = leases.acquire(session, of, 30)
                seen.append(lease.fence or 0)
                if end == "change":
                    lease = leases.change(session, lease)
                    seen.append(lease.fence or 0)
                    leases.release(session, lease)
                elif end == "break_":
                    leases.break_(session, of, after=0)
                else:
                    leases.release(session, lease)
            session.commit()
            assert leases.look(session, of).fence == seen[-1]
        assert seen == sorted(set(seen)) == list(range(6))


OPERATIONS: dict[str, Any] = {
    "acquire": lambda s, lease, **o: leases.acquire(s, lease.of, 30, proposed=lease.id, **o),
    "renew": leases.renew,
    "change": leases.change,
    "break_": lambda s, lease, **o: leases.break_(s, lease.of, **o),
    "release": leases.release,
}


@pytest.mark.parametrize("call", OPERATIONS)
def test_every_operation_takes_the_version_in_which_the_row_has_to_be(
    cards: Engine, call: str
) -> None:
    with Session(cards) as session:
        tag = etag_of(session.get_one(Card, 1))
        lease = leases.acquire(session, (Card, 1), 30, if_match=tag)
        session.commit()
        with pytest.raises(PreconditionFailed) as raised:
            OPERATIONS[call](session, lease, if_match=Version(7))
        assert raised.value.entries[0].database == {"id": 1, "text": "", "version": 1}
        session.rollback()
        assert leases.look(session, (Card, 1)).state == "leased"
        for demanded in (tag, [tag, Version(7)], "*"):
            OPERATIONS[call](session, lease, if_match=demanded)
            session.rollback()


def test_a_moved_version_is_told_before_what_becomes_of_the_lease(cards: Engine) -> None:
    with Session(cards) as session:
        leases.acquire(session, (Card, 1), 30)
        with pytest.raises(PreconditionFailed):
            leases.acquire(session, (Card, 1), 30, if_match=Version(7))
        with pytest.raises(LeaseHeld):
            leases.acquire(session, (Card, 1), 30, if_match=Version(1))


def test_each_operation_is_one_statement(cards: Engine) -> None:
    with Session(cards) as session:
        lease = leases.acquire(session, (Card, 1), 30)
        for call, operation in OPERATIONS.items():
            with count_statements(cards) as sent:
                found = operation(session, lease)
            lease = found if isinstance(found, Lease) else lease
            tells = 0 if cards.dialect.update_returning or call == "release" else 1
            assert sent.count == 1 + tells, call
            if call == "break_":
                leases.release(session, lease)
                lease = leases.acquire(session, (Card, 1), 30)
        session.commit()


def test_a_refused_operation_is_a_statement_and_a_look(cards: Engine) -> None:
    with Session(cards) as session, session.begin():
        leases.acquire(session, (Card, 1), 30)
    stranger = Lease((Card, 1), uuid.uuid4())
    for operation in (partial(leases.acquire, duration=30), leases.renew, leases.release):
        with (
            Session(cards) as session,
            count_statements(cards) as sent,
            pytest.raises((LeaseHeld, LeaseLost)),
        ):
            operation(session, stranger)
        assert sent.count == 2


def test_an_acquire_that_was_lost_on_its_way_can_be_sent_again(cards: Engine) -> None:
    with Session(cards) as session, session.begin():
        one = leases.acquire(session, (Card, 1), 30)
        again = leases.acquire(session, (Card, 1), 60, proposed=str(one.id))
        assert again.id == one.id
        assert again.until > one.until  # type: ignore[operator]


@pytest.mark.parametrize("of", [(Card, 1), Name("import", NAMES)], ids=["row", "name"])
def test_every_state_in_real_time(cards: Engine, of: Any) -> None:
    """What is to last, lasts for long, and what is to end, ends at once."""

    def state() -> str:
        with Session(cards) as session:
            return leases.look(session, of).state

    def do(call: Any, *args: Any, **options: Any) -> Any:
        with Session(cards) as session, session.begin():
            return call(session, *args, **options)

    assert state() == "available"
    lease = do(leases.acquire, of, 50)
    assert state() == "leased"
    with pytest.raises(LeaseHeld):
        do(leases.acquire, of, 50)
    do(leases.release, lease)
    lease = do(leases.acquire, of, 0.1)
    until(lambda: state() == "expired")
    with pytest.raises(LeaseLost):
        do(leases.change, lease)
    do(leases.renew, lease)
    until(lambda: state() == "expired")
    lease = do(leases.acquire, of, 50)
    do(leases.break_, of, after=40)
    assert state() == "breaking"
    with pytest.raises(LeaseLost):
        do(leases.renew, lease)
    do(leases.break_, of, after=0.1)
    until(lambda: state() == "broken")
    other = do(leases.acquire, of, 30)
    with pytest.raises(LeaseLost):
        do(leases.release, lease)
    do(leases.release, other)
    assert state() == "available"


def test_times_are_utc_whatever_the_time_zone_of_the_session(cards: Engine) -> None:
    zones = {
        "postgresql": "SET TIME ZONE '{}'",
        "mysql": "SET time_zone = '{}'",
        "mariadb": "SET time_zone = '{}'",
    }
    ends = []
    for zone in ("+09:00", "-08:00"):
        with cards.connect() as connection:
            if cards.dialect.name in zones:
                connection.exec_driver_sql(zones[cards.dialect.name].format(zone))
                connection.commit()
            with Session(bind=connection) as session:
                lease = leases.acquire(session, (Card, 1), 60)
                ends.append(lease.until)
                with pytest.raises(LeaseHeld):
                    leases.acquire(session, (Card, 1), 60)
                leases.release(session, lease)
                session.commit()
            connection.detach()  # nobody else gets this time zone
    now = datetime.datetime.now(datetime.UTC)
    assert {round((end - now) / datetime.timedelta(minutes=1)) for end in ends} == {1}


def test_a_reader_is_asked_for_the_lease(cards: Engine) -> None:
    """Shared write, exclusive read."""
    with watch(sessionmaker(cards))() as session:
        assert leases.read(session, Note, 1) is not None
        assert leases.read(session, Note, 9) is None
        lease = leases.acquire(session, (Note, 1), 30)
        with pytest.raises(LeaseHeld):
            leases.read(session, Note, 1)
        found = leases.read(session, Note, 1, lease)
        assert found is not None
        found.text = "written without the lease"
        session.commit()
        leases.release(session, lease)
        with pytest.raises(LeaseLost):
            leases.read(session, Note, 1, lease)


# -- names -----------------------------------------------------------------------------------------


def named(engine: Engine, name: str = "import") -> Lease:
    with Session(engine) as session, session.begin():
        return leases.acquire(session, Name(name, NAMES), 30)


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("many", [1, 2])
def test_writes_under_the_lease_of_a_name_are_refused_once_it_is_lost(
    cards: Engine, many: int
) -> None:
    lease = named(cards)
    for lost in (False, True):
        if lost:
            with Session(cards) as session, session.begin():
                leases.release(session, lease)
        with watch(sessionmaker(cards))() as session:
            leases.use(session, lease)
            for card in session.scalars(select(Card).order_by(Card.id)).all()[:many]:
                card.text = f"lost: {lost}"
            if lost:
                with pytest.raises(LeaseLost, match="the name 'import'"):
                    session.commit()
                session.rollback()
            else:
                session.commit()
    assert stored(cards, Card).text == "lost: False"


@pytest.mark.needs("resolves-in-place")
def test_the_lease_of_a_name_may_concern_some_classes_only(cards: Engine) -> None:
    lease = named(cards)
    with Session(cards) as session, session.begin():
        leases.release(session, lease)
    with UnitOfWork(cards, parts=[Under(lease, on=[Card])]) as session:
        session.get_one(Sheet, 1).text = "not asked"
    with pytest.raises(LeaseLost), UnitOfWork(cards, parts=[Under(lease, on=[Card])]) as session:
        session.get_one(Card, 1).text = "asked"


@pytest.mark.needs("row-locks")
def test_nobody_becomes_the_holder_of_a_name_between_a_write_and_its_commit(
    cards: Engine,
) -> None:
    lease, taken = named(cards), threading.Event()

    def take() -> None:
        with Session(cards) as session, session.begin():
            leases.break_(session, Name("import", NAMES), after=0)
            leases.acquire(session, Name("import", NAMES), 30)
        taken.set()

    thread = threading.Thread(target=take)
    with watch(sessionmaker(cards))() as session:
        leases.use(session, lease)
        session.get_one(Card, 1).text = "in time"
        session.flush()
        thread.start()
        assert not taken.wait(0.3)
        session.commit()
    thread.join(60)
    assert taken.is_set()
    assert stored(cards, Card).text == "in time"


def test_two_who_lease_a_new_name_at_once(cards: Engine) -> None:
    found: list[Any] = []
    together = threading.Barrier(4)

    def take() -> None:
        together.wait()
        try:  # InnoDB may end one of two INSERTs by a deadlock
            found.append(retry(attempts=10)(named)(cards, "new").fence)
        except LeaseHeld as error:
            found.append(type(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert sorted(found, key=str) == [1, *[LeaseHeld] * 3]


# -- late writers ----------------------------------------------------------------------------------


@pytest.mark.needs("row-locks")
@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.full
def test_a_writer_who_has_waited_for_the_row_is_judged_when_he_gets_it(
    cards: Engine, many: int
) -> None:
    """His statement began in time, and the lease has ended while he waited for the row."""
    with Session(cards) as session, session.begin():
        held = [leases.acquire(session, (Card, n), 1.5) for n in range(1, many + 1)]
    raised: list[Any] = []

    def write() -> None:
        with watch(sessionmaker(cards))() as session:
            for lease in held:
                leases.use(session, lease)
            for card in session.scalars(select(Card).order_by(Card.id)).all()[:many]:
                card.text = "late"
            try:
                session.commit()
            except LeaseLost as error:
                raised.append(error)

    thread = threading.Thread(target=write)
    with cards.connect() as connection, connection.begin():
        connection.execute(select(Card.__table__).with_for_update())
        thread.start()
        until_a_lock_is_waited_for(cards)
        clock = select(ServerTime())
        until(lambda: connection.scalar(clock) > max(lease.until for lease in held))
    thread.join(60)
    if many == 1 and cards.dialect.name == "postgresql":
        # It judges an UPDATE of one row again if the row has changed while that waited: only then
        # somebody else can have become the holder.
        assert (len(raised), stored(cards, Card).text) == (0, "late")
    else:
        assert (len(raised), stored(cards, Card).text) == (1, "")


@pytest.mark.needs("row-locks")
def test_ids_are_in_no_log(cards: Engine, caplog: Any) -> None:
    """But for SQLAlchemy's own, which can be told to hide parameters."""
    quiet = cards.execution_options()
    said: list[str] = []

    @event.listens_for(quiet, "before_cursor_execute")
    def statements(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        said.append(statement)

    with caplog.at_level("DEBUG", logger="optilock"), Session(quiet) as session:
        lease = leases.acquire(session, (Card, 1), 30)
        with pytest.raises(LeaseHeld):
            leases.acquire(session, (Card, 1), 30)
        leases.release(session, leases.renew(session, lease))
        session.rollback()
    told = caplog.text + "".join(said)
    assert said
    assert lease.id.hex not in told
    assert str(lease.id) not in told
