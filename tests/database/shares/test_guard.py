"""While others have a row open, nobody writes it against them, in whatever form it is sent."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Engine, String, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    sessionmaker,
)

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    asyncio,
    client_wins,
    entities,
    repeatable_read,
    shares,
    watch,
)
from optilock.errors import NotFound
from optilock.shares import (
    AccessDenied,
    DeletePending,
    Handle,
    HandleLost,
    Shared,
    SharingViolation,
    Through,
    use,
)
from optilock.tables.names import SHARES
from optilock.testing import count_statements
from tests.support.models import key, own_base
from tests.support.waiting import until
from tests.support.ways_classes import ways
from tests.support.ways_to_write import forms, over

Base = own_base()


WAYS = ways("shared", Shared)
Task, Bug, DemandedList, DemandedLine, Plain, Bare = WAYS


class Seat(Shared, Versioned, Base):
    """A key of two columns, one of them text."""

    __tablename__ = "shared_seats"
    show: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = key()
    guest: Mapped[str | None]


TABLES: list[Any] = [*WAYS.tables, Seat.__table__]
CASES = over(Task=Task, Bug=Bug, DemandedList=DemandedList, Plain=Plain, Bare=Bare)
cases = pytest.mark.parametrize("case", forms(CASES), ids=lambda case: case.__name__)


def rows() -> list[Any]:
    return [*WAYS.rows(), Seat(show="a/ü", number=7)]


def begin(session: Session) -> None:
    connection = session.connection()
    Base.metadata.create_all(connection, tables=TABLES)
    SHARES.tables.create_all(connection)
    session.add_all(rows())
    session.commit()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    with Session(engine) as session:
        begin(session)
    return watch(sessionmaker(engine), on_conflict=client_wins)


def opened(sessions: Any, access: str, share: str, *some: Any) -> list[Handle]:
    with sessions.begin() as session:
        return [shares.open(session, one, access, share) for one in some or WAYS.keys]


def everything(sessions: Any) -> list[Any]:
    with sessions() as session:
        return [session.execute(select(table).order_by(table.c.id)).all() for table in TABLES[:-1]]


def nothing() -> None: ...


# -- without a handle ------------------------------------------------------------------------------


@cases
def test_what_others_have_open_is_written_by_nobody_else(sessions, case, engine):
    moved = text("UPDATE shared_tasks SET title = 'theirs', version = version + 1 WHERE id = 1")

    def move() -> None:
        with engine.begin() as connection:
            connection.execute(moved)

    before = []

    def open_all() -> None:
        opened(sessions, "RW", "R")
        before.append(everything(sessions))

    with sessions() as session, pytest.raises(SharingViolation) as caught:
        case(session, open_all, move)
        session.commit()
    assert caught.value.status == 409
    assert everything(sessions) == before[0]


@pytest.mark.full
@cases
def test_what_all_of_them_share_is_written(sessions, case):
    if "delete" in case.__name__:
        with sessions() as session, pytest.raises(SharingViolation):
            opened(sessions, "R", "RWD")  # whoever deletes must be alone
            case(session, nothing, nothing)
            session.commit()
        return
    opened(sessions, "R", "RWD")
    opened(sessions, "", "")  # it looks at attributes only
    before = everything(sessions)
    with sessions() as session:
        case(session, nothing, nothing)
        session.commit()
    assert everything(sessions) != before


@pytest.mark.full
@cases
def test_what_nobody_has_open_is_written(sessions, case):
    for handle in opened(sessions, "RW", ""):
        with sessions.begin() as session:
            shares.close(session, handle)
    before = everything(sessions)
    with sessions() as session:
        case(session, nothing, nothing)
        session.commit()
    assert everything(sessions) != before


def test_a_row_that_is_to_be_deleted_is_not_written(sessions):
    [handle] = opened(sessions, "D", "RD", (Task, 1))
    with sessions.begin() as session:
        shares.delete_pending(session, handle)
    with sessions() as session, pytest.raises(DeletePending):
        session.get_one(Task, 1).title = "mine"
        session.commit()


def test_entities_are_asked_too(sessions):
    seat = ("a/ü", 7)
    opened(sessions, "RW", "R", (Seat, seat))
    for write in (
        lambda s: entities.merge(s, Seat, seat, {"guest": "me"}, if_match="*"),
        lambda s: entities.delete(s, Seat, seat, if_match="*"),
    ):
        with sessions() as session, pytest.raises(SharingViolation):
            write(session)


def test_a_key_of_texts_is_told_as_it_is_stored(sessions):
    with sessions() as session:
        seat = session.get_one(Seat, ("a/ü", 7))
        handle = shares.open(session, seat, "RW")
        assert handle.name == "shared_seats/a/ü,7"
        session.commit()
        seat.guest = "me"
        with pytest.raises(SharingViolation):
            session.commit()


@pytest.mark.engines("postgresql")
def test_a_snapshot_that_is_older_than_the_handle_is_a_conflict(sessions):
    """Of a name that was opened, or created, before: see docs/how-to/long-work/shares.md."""
    with sessions.begin() as session:
        shares.create(session, (Task, 1))
    with pytest.raises(ConcurrencyError), repeatable_read(sessions) as session:
        session.get_one(Task, 1).title = "mine"
        opened(sessions, "RW", "", (Task, 1))


# -- under a handle --------------------------------------------------------------------------------


@pytest.mark.full
@cases
def test_the_owner_writes_through_the_handle(sessions, case):
    handles = opened(sessions, "RWD", "")
    before = everything(sessions)
    with UnitOfWork(sessions, parts=[Through(*handles)]) as session:
        case(session, nothing, nothing)
    assert everything(sessions) != before


@cases
@pytest.mark.tenth
def test_whose_handle_is_closed_meanwhile_writes_no_more(sessions, case, engine):
    handles = opened(sessions, "RWD", "")
    before = []

    def lose() -> None:
        with sessions.begin() as session:
            for handle in handles:
                shares.close(session, handle)
        before.append(everything(sessions))

    with sessions() as session, pytest.raises(HandleLost):
        for handle in handles:
            use(session, handle)
        case(session, lose, nothing)
        session.commit()
    assert everything(sessions) == before[0]


def test_a_handle_is_good_for_its_own_row_and_access(sessions):
    one, two = opened(sessions, "RW", "", (Task, 1), (Task, 2))
    [three] = opened(sessions, "R", "", (Task, 3))
    with sessions() as session, pytest.raises(SharingViolation):
        use(session, one)
        session.get_one(Task, 1).title = "mine"
        session.flush()
        session.get_one(Task, 2).title = "mine"
        session.flush()
    with sessions() as session, pytest.raises(AccessDenied):
        use(session, three)
        session.get_one(Task, 3).title = "mine"
        session.flush()
    with sessions() as session, pytest.raises(AccessDenied):
        use(session, two)
        session.delete(session.get_one(Task, 2))
        session.flush()


def test_a_handle_whose_time_is_over_stops_nobody_and_writes_nothing(sessions):
    with sessions.begin() as session:
        handle = shares.open(session, (Task, 1), "RW", seconds=0.1)
    with sessions() as session:
        until(lambda: not shares.look(session, (Task, 1)).open)
    with sessions() as session, pytest.raises(HandleLost):
        use(session, handle)
        session.get_one(Task, 1).title = "mine"
        session.commit()
    with sessions() as session, pytest.raises(HandleLost):
        use(session, handle)
        session.execute(update(Task).where(Task.id == 1).values(title="mine"))
    with sessions() as session:
        session.get_one(Task, 1).title = "theirs"
        session.commit()


# -- who waits -------------------------------------------------------------------------------------


@pytest.mark.needs("row-locks")
def test_who_opens_a_row_waits_for_who_is_writing_it(sessions):
    """And for the first time at all, too: then the name has no row that could be locked."""
    opening = threading.Event()
    found: list[str] = []

    def open_it() -> None:
        with sessions.begin() as session:
            opening.set()
            shares.open(session, (Task, 1), "RW")
            found.append(session.get_one(Task, 1).title)

    with sessions() as session:
        session.get_one(Task, 1).title = "mine"
        session.flush()
        thread = threading.Thread(target=open_it)
        thread.start()
        opening.wait()
        thread.join(0.2)
        assert thread.is_alive()
        session.commit()
    thread.join()
    assert found == ["mine"]


@pytest.mark.needs("row-locks")
def test_who_writes_a_row_waits_for_who_is_opening_it(sessions):
    """What was opened while the statement waited is seen."""
    caught: list[BaseException] = []

    def write() -> None:
        try:
            with sessions() as session:
                session.get_one(Task, 1).title = "mine"
                session.commit()
        except BaseException as error:
            caught.append(error)

    with sessions() as session:
        shares.open(session, (Task, 1), "RW")
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        session.commit()
    thread.join()
    assert [type(one) for one in caught] == [SharingViolation]


# -- what it costs, and what is refused ------------------------------------------------------------


def test_it_costs_one_look(sessions, engine):
    with sessions() as session:
        task = session.get_one(Task, 1)
        task.title = "mine"
        with count_statements(engine) as sent:
            session.flush()
    assert sent.count == 2 + (engine.dialect.name == "sqlite")


@pytest.mark.engines("sqlite-wal")
def test_what_stands_for_no_row_is_refused(sessions, engine):
    with sessions() as session:
        for given in (Task, (DemandedLine, 1), (Task,), 7, DemandedLine(id=3), Task(id=5)):
            with pytest.raises(ConfigurationError, match=r"mixin Shared|1 to 200"):
                shares.open(session, given, "R")
        with pytest.raises(NotFound):
            shares.open(session, (Task, 99), "R")
        with pytest.raises(ConfigurationError, match="a row of the table shared_tasks"):
            shares.open(session, "shared_tasks/1", "R")
        named = shares.open(session, "name", "RW")
        with pytest.raises(ConfigurationError, match="handle of a row"):
            use(session, named)
    with Session(engine) as plain, pytest.raises(ConfigurationError, match="is not watched"):
        use(plain, named)


def test_a_class_that_has_no_names_is_refused() -> None:
    class Own(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match="its key id is"):

        class Odd(Shared, Own):
            __tablename__ = "odd"
            id: Mapped[float] = mapped_column(primary_key=True)

    class Base(Shared, Own):
        __tablename__ = "base_of_two"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ConfigurationError, match="concrete=True"):

        class Apart(Base):
            __tablename__ = "apart"
            id: Mapped[int] = mapped_column(primary_key=True)
            __mapper_args__ = {"concrete": True}

    with pytest.raises(ConfigurationError, match="__shares__"):

        class Other(Shared, Own):
            __tablename__ = "other"
            __shares__ = "optilock"  # type: ignore[assignment]
            id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.anyio
async def test_async_sessions_are_asked_too(async_engine) -> None:
    sessions = watch(async_sessionmaker(async_engine))
    async with AsyncSession(async_engine) as session:
        await session.run_sync(begin)
    async with sessions.begin() as session:
        handle = await asyncio.shares.open(session, (Task, 1), "RW", "R")
    async with sessions() as session:
        (await session.get_one(Task, 1)).title = "mine"
        with pytest.raises(SharingViolation):
            await session.commit()
        await session.rollback()
        use(session.sync_session, handle)
        (await session.get_one(Task, 1)).title = "mine"
        await session.commit()
