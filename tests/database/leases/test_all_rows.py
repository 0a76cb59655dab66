"""While somebody holds the name of a class, nobody else writes any of its rows.

The ways to write are those of ``tests/database/leases/test_lease_writes.py``, over classes that
have no columns of leases: all that guards their rows is one row of the table of names.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    sessionmaker,
)

from optilock import (
    ConfigurationError,
    UnitOfWork,
    Versioned,
    client_wins,
    entities,
    leases,
    watch,
)
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
from tests.support.models import key, own_base
from tests.support.ways_classes import ways
from tests.support.ways_to_write import Lose, forms, over, several

NAMES = Names(table="rows_names", policy=LeasePolicy(shortest=0.1))
ALL = Name("every's row", NAMES)
EVERY = LeasePolicy(all_rows=ALL)

Base = own_base()


WAYS = ways("rows", __lease_policy__=EVERY)
Task, Bug, DemandedList, DemandedLine, Plain, Bare = WAYS


class Both(Leasable, Versioned, Base):
    """Each row has a lease, and all of them have one."""

    __tablename__ = "rows_both"
    __lease_policy__ = LeasePolicy(all_rows=ALL)
    id: Mapped[int] = key()
    title: Mapped[str] = mapped_column(default="")


class Kept(Versioned, Base):
    """Others may edit its rows, and not delete them."""

    __tablename__ = "rows_kept"
    __lease_policy__ = LeasePolicy(all_rows=ALL, guards=("delete",))
    id: Mapped[int] = key()
    title: Mapped[str] = mapped_column(default="")


MOVED = text("UPDATE rows_tasks SET title = 'theirs', version = version + 1 WHERE id = 1")
CASES = over(Task=Task, Bug=Bug, DemandedList=DemandedList, Plain=Plain, Bare=Bare)
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
#: One row, many rows, and a statement: the other forms of the first test wait for ``--full``.
FEW = {"one_row", "a_batch", "an_update_statement"}
few_cases = pytest.mark.parametrize(
    "case",
    [c if c.__name__ in FEW else pytest.param(c, marks=pytest.mark.full) for c in CASES],
    ids=lambda case: case.__name__,
)
some_cases = pytest.mark.parametrize("case", forms(CASES), ids=lambda case: case.__name__)


def rows() -> list[Any]:
    return [
        *WAYS.rows(),
        *(of(id=n) for of in (Both, Kept) for n in (1, 2, 3)),
    ]


@pytest.fixture
def unprepared(engine: Engine, store: Any) -> Engine:
    store(*rows())
    NAMES.columns.table.create(engine)
    return engine


@pytest.fixture
def filled(unprepared: Engine) -> Engine:
    with Session(unprepared) as session, session.begin():
        leases.prepare(session, Task)
    return unprepared


def stored(engine: Engine) -> Any:
    with engine.connect() as connection:
        return [
            connection.execute(select(table).order_by(*table.primary_key)).all()
            for table in WAYS.tables
        ]


def assert_untouched(engine: Engine) -> None:
    assert "mine" not in str(stored(engine))
    assert ", 7" not in str(stored(engine))
    assert [len(rows) for rows in stored(engine)] == [4, 1, 1, 2, 3, 3]


def on(engine: Engine, do: Any, *args: Any, **options: Any) -> Any:
    """Somebody calls it, and commits."""
    with Session(engine) as session, session.begin():
        return do(session, *args, **options)


def taken(engine: Engine) -> Lease:
    lease: Lease = on(engine, leases.acquire, Task, ENDLESS)
    return lease


def moved(engine: Engine) -> Lose:
    return lambda: on(engine, lambda session: session.execute(MOVED))


def taken_over(engine: Engine) -> None:
    on(engine, leases.break_, ALL, after=0)
    taken(engine)


#: What becomes of the lease of a holder who goes on writing.
LOST: dict[str, Any] = {
    "ended": lambda engine: on(engine, leases.break_, ALL, after=0),
    "taken over": taken_over,
}
losses = pytest.mark.parametrize(
    "loss", ["ended", pytest.param("taken over", marks=pytest.mark.full)]
)


@some_cases
@pytest.mark.parametrize("resolver", [client_wins, pytest.param(None, marks=pytest.mark.full)])
@pytest.mark.needs("resolves-in-place")
def test_nobody_but_the_holder_writes(filled: Engine, case: Any, resolver: Any) -> None:
    holders: list[Lease] = []
    with watch(sessionmaker(filled), on_conflict=resolver)() as session:
        with pytest.raises(LeaseHeld, match="all rows of") as raised:
            case(session, lambda: holders.append(taken(filled)), moved(filled))
            session.flush()
        assert raised.value.since is not None
        assert holders[0].id.hex not in repr(raised.value) + str(raised.value)
        session.expunge_all()  # the refused edits are pending again
        session.commit()
    assert_untouched(filled)


@losses
@few_cases
@pytest.mark.needs("resolves-in-place")
def test_whoever_lost_the_lease_writes_no_more(filled: Engine, case: Any, loss: str) -> None:
    lease = taken(filled)
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        leases.use(session, lease)
        with pytest.raises(LeaseLost):
            case(session, lambda: LOST[loss](filled), moved(filled))
            session.flush()
        session.expunge_all()
        session.commit()
    assert_untouched(filled)


@pytest.mark.full
@cases
@pytest.mark.parametrize("who", ["holder", "nobody"])
@pytest.mark.needs("resolves-in-place")
def test_who_may_write_does_so_as_ever(filled: Engine, case: Any, who: str) -> None:
    lease, before = taken(filled), stored(filled)
    if who == "nobody":
        on(filled, leases.break_, ALL, after=0)
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        if who == "holder":
            leases.use(session, lease)
        case(session, lambda: None, moved(filled))
        session.commit()
    assert stored(filled) != before


@few_cases
@pytest.mark.needs("resolves-in-place")
def test_nothing_is_written_before_the_name_has_a_row(unprepared: Engine, case: Any) -> None:
    with watch(sessionmaker(unprepared), on_conflict=client_wins)() as session:
        with pytest.raises(ConfigurationError, match=r"leases\.prepare\(session, \w+\)"):
            case(session, lambda: None, moved(unprepared))
            session.flush()
        session.expunge_all()
        session.commit()
    assert_untouched(unprepared)


@pytest.mark.full
@pytest.mark.anyio
@cases
async def test_nobody_writes_by_an_async_session(
    async_engine: Any, async_store: Any, case: Any
) -> None:
    sync: Engine = async_engine.sync_engine
    async_store(*rows())
    async with async_engine.begin() as connection:
        await connection.run_sync(NAMES.columns.table.create)
    async with AsyncSession(async_engine) as session, session.begin():
        await session.run_sync(leases.prepare, Task)
    async with watch(async_sessionmaker(async_engine), on_conflict=client_wins)() as session:
        with pytest.raises(LeaseHeld):
            await session.run_sync(case, lambda: taken(sync), moved(sync))
            await session.flush()
        await session.rollback()


# -- what it costs ---------------------------------------------------------------------------------


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("held", [True, False])
def test_a_row_costs_no_statement_and_the_name_is_read_once(
    filled: Engine, many: int, held: bool
) -> None:
    sent: list[str] = []
    with watch(sessionmaker(filled))() as session:
        if held:
            leases.use(session, taken(filled))
        for task in several(session, Task)[:many]:
            task.title = "mine"
        event.listen(filled, "before_cursor_execute", lambda *given: sent.append(given[2]))
        session.flush()
        session.commit()
    looks = 1 if many > 1 and filled.dialect.name in ("mysql", "mariadb") else 0
    assert len(sent) == 1 + looks  # MariaDB locks and looks at many rows anyway
    assert sent[0].count("EXISTS") == (0 if looks and not held else 1)
    assert str(stored(filled)).count("mine") == many


# -- between a write and its COMMIT ----------------------------------------------------------------


@pytest.mark.needs("row-locks")
@pytest.mark.parametrize("many", [1, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("ended", [False, pytest.param(True, marks=pytest.mark.full)])
def test_nobody_becomes_the_holder_between_a_write_and_its_commit(
    filled: Engine, many: int, ended: bool
) -> None:
    if ended:
        taken(filled)
        on(filled, leases.break_, ALL, after=0)
    acquired = threading.Event()

    def acquire() -> None:
        taken(filled)
        acquired.set()

    thread = threading.Thread(target=acquire)
    with watch(sessionmaker(filled))() as session:
        for task in several(session, Task)[:many]:
            task.title = "in time"
        session.flush()
        with watch(sessionmaker(filled))() as another, another.begin():
            another.get_one(Bare, 1).title = "beside"  # those who write wait for nobody
        thread.start()
        assert not acquired.wait(0.3)
        session.commit()
    thread.join(60)
    assert acquired.is_set()
    assert str(stored(filled)).count("in time") == many


@pytest.mark.needs("row-locks")
def test_a_write_that_has_waited_for_the_next_holder_is_refused(filled: Engine) -> None:
    said: list[Any] = []

    def write() -> None:
        try:
            with watch(sessionmaker(filled))() as session, session.begin():
                session.get_one(Task, 1).title = "mine"
        except LeaseHeld as error:
            said.append(error.what)

    thread = threading.Thread(target=write)
    with Session(filled) as session:
        leases.acquire(session, ALL, ENDLESS)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        session.commit()
    thread.join(60)
    assert said == ['all rows of Task (the name "every\'s row")']
    assert_untouched(filled)


# -- who else counts -------------------------------------------------------------------------------


@pytest.mark.needs("resolves-in-place")
def test_the_lease_of_a_row_and_that_of_all_rows_both_count(filled: Engine) -> None:
    def write(*parts: Any) -> None:
        with UnitOfWork(filled, parts=[Under(one) for one in parts]) as session:
            session.get_one(Both, 1).title += "mine "

    row = on(filled, leases.acquire, (Both, 1), 30)
    with pytest.raises(LeaseHeld, match="Both 1"):
        write()
    write(row)
    every = on(filled, leases.acquire, Both, 30)
    with pytest.raises(LeaseHeld, match="all rows of Both"):
        write(row)
    with pytest.raises(LeaseHeld, match="Both 1"):
        write(every)
    write(row, every)
    on(filled, leases.release, every)
    with pytest.raises(LeaseLost, match="the name"):
        write(row, every)


@pytest.mark.needs("resolves-in-place")
def test_the_policy_of_the_class_says_what_is_guarded(filled: Engine) -> None:
    lease = taken(filled)
    with watch(sessionmaker(filled))() as session:
        for kept in several(session, Kept):
            kept.title = "theirs"
        session.commit()
        session.execute(update(Kept).values(title="mine"))
        with pytest.raises(LeaseHeld):
            session.execute(delete(Kept).where(Kept.id == 1))
        session.delete(session.get_one(Kept, 2))
        with pytest.raises(LeaseHeld):
            session.flush()
        session.rollback()
        leases.use(session, lease)
        session.delete(session.get_one(Kept, 2))
        session.commit()


@pytest.mark.needs("resolves-in-place")
def test_the_lease_is_used_whatever_other_classes_are_named_and_by_its_id_alone(
    filled: Engine,
) -> None:
    lease = taken(filled)
    alike = Name(ALL.name, Names(table=NAMES.table))
    for given in ((lease,), (Bare, lease.id), (Task, str(lease.id)), (alike, lease.id)):
        with watch(sessionmaker(filled))() as session:
            leases.use(session, *given, on=[DemandedLine])
            for task in several(session, Task):
                task.title += "mine "
            session.execute(delete(DemandedLine).where(DemandedLine.id == 1))
            session.commit()
    with watch(sessionmaker(filled))() as session:
        leases.use(session, Task, uuid.UUID(int=1))
        session.get_one(Task, 1).title = "theirs"
        with pytest.raises(LeaseLost):
            session.commit()


@pytest.mark.needs("resolves-in-place")
def test_entity_operations_are_asked_in_watched_and_in_plain_sessions(filled: Engine) -> None:
    lease = taken(filled)
    for make in (sessionmaker(filled), watch(sessionmaker(filled))):
        with make() as session:
            for write in (
                lambda s: entities.merge(s, DemandedList, 1, {}, if_match="*"),
                lambda s: entities.delete(s, DemandedList, 1, if_match="*"),
            ):
                with pytest.raises(LeaseHeld), session.begin_nested():
                    write(session)
            with pytest.raises(ConfigurationError, match="upsert of DemandedList is refused"):
                entities.insert_or_merge(session, DemandedList, 1, {})
    with watch(sessionmaker(filled))() as session:
        leases.use(session, lease)
        entities.merge(session, DemandedList, 1, {}, if_match="*")
        session.commit()
    assert stored(filled)[2][0][1] == 1  # without values nothing is written


def test_what_writes_rows_that_nobody_can_look_at_is_refused(filled: Engine) -> None:
    with watch(sessionmaker(filled))() as session:
        with pytest.raises(ConfigurationError, match="'rows_bare'"):
            session.execute(text("UPDATE rows_bare SET title = 'mine'"))
        session.execute(text("UPDATE rows_lines SET list_id = 1"))
        session.rollback()


def test_an_insert_is_not_asked(filled: Engine) -> None:
    taken(filled)
    with watch(sessionmaker(filled))() as session, session.begin():
        session.add(Task(id=4))
    assert len(stored(filled)[0]) == 5


# -- the name --------------------------------------------------------------------------------------


def test_a_name_is_prepared_once_and_by_a_migration_too(unprepared: Engine) -> None:
    with unprepared.begin() as connection:  # as ``op.get_bind()``
        leases.prepare(Session(connection), ALL)
    lease = taken(unprepared)
    on(unprepared, leases.prepare, Task)
    assert on(unprepared, leases.look, Task).state == "leased"
    on(unprepared, leases.release, lease)


def test_what_has_no_name_cannot_be_prepared(unprepared: Engine) -> None:
    for wrong in (DemandedLine, (Task, 1), "every"):
        with pytest.raises(ConfigurationError, match="all_rows="):
            on(unprepared, leases.prepare, wrong)
    with pytest.raises(ConfigurationError, match="the class DemandedLine"):
        on(unprepared, leases.acquire, DemandedLine, 30)


def test_a_hierarchy_has_one_name() -> None:
    class Local(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match=r"all_rows='pages'"):

        class Wrong(Local):
            __tablename__ = "wrong"
            __lease_policy__ = LeasePolicy(all_rows="pages")  # type: ignore[arg-type]
            id: Mapped[int] = mapped_column(primary_key=True)

    class Animal(Local):
        __tablename__ = "animals"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ConfigurationError, match="say it on Animal only"):

        class Cat(Animal):
            __lease_policy__ = LeasePolicy(all_rows=Name("cats"))


# -- a DELETE and an INSERT of one key are one UPDATE ----------------------------------------------


class Guarded(Leasable, Versioned, Base):
    """Others may edit a leased row, and not delete it."""

    __tablename__ = "rows_guarded"
    __lease_policy__ = LeasePolicy(guards=("delete",))
    id: Mapped[int] = key()
    title: Mapped[str] = mapped_column(default="")


REPLACED = {"row": (Guarded, (Guarded, 1)), "all rows": (Kept, ALL), "both": (Both, (Both, 1))}


@pytest.mark.parametrize("who", ["others", "others, meanwhile", "holder"])
@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.needs("resolves-in-place")
def test_a_new_object_over_a_leased_row_deletes_it(filled: Engine, name: str, who: str) -> None:
    """And keeps the lease: the row stays."""
    cls, of = REPLACED[name]
    if cls is Guarded:
        Base.metadata.create_all(filled, tables=[Guarded.__table__])
        on(filled, lambda session: session.add(Guarded(id=1)))
    held: list[Lease] = []

    def take() -> None:
        held.append(on(filled, leases.acquire, of, 30))

    try:
        if who != "others, meanwhile":
            take()
        with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
            if who == "holder":
                leases.use(session, held[0])
            session.delete(session.get_one(cls, 1))
            session.add(cls(id=1, title="mine"))
            if who == "others, meanwhile":
                take()
                on(filled, lambda other: other.execute(update(cls).values(title="theirs")))
            if who == "holder":
                session.commit()
            else:
                with pytest.raises(LeaseHeld):
                    session.flush()
        on(filled, leases.renew, held[0])
        with Session(filled) as session:
            assert (session.get_one(cls, 1).title == "mine") is (who == "holder")
    finally:
        Base.metadata.drop_all(filled, tables=[Guarded.__table__])
