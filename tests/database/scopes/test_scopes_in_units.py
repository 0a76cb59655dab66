"""Scopes in units of every kind, and of classes of every kind."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest
from sqlalchemy import Date, Engine, ForeignKey, create_engine, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import optilock.asyncio
from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    etag_of,
    expect,
    leases,
    touch,
    verify,
    watch,
)
from optilock._watched.scopes import transaction
from optilock.dialects import Cause
from optilock.dialects.scope_rows import ScopeRows
from optilock.dialects.transient import cause_of
from optilock.errors import BadPrecondition
from optilock.tables import exact_text
from optilock.tables.names import commit_tokens, scopes
from optilock.tokens import CompareValues
from tests.support.rooms import ALL, SEVEN, Booking, Shift


@pytest.mark.parametrize(
    "options",
    [{"exactly_once": True}, {"strategy": "adaptive"}, {"verify_reads": True}],
    ids=str,
)
def test_units_move_and_check_scopes(rooms, sessions, moved, options):
    commit_tokens.create(rooms, checkfirst=True)

    def unit() -> Any:
        return UnitOfWork(sessions, **options)

    assert moved(lambda s: setattr(s.get_one(Booking, 1), "hour", 3), unit) == {7, "all"}
    with pytest.raises(ConcurrencyError), unit() as session:
        verify(session, SEVEN)
        with sessions.begin() as other:
            other.add(Booking(id=3, room_id=7))
        session.get_one(Shift, 1).note = 5
    with sessions() as session:
        assert session.get_one(Shift, 1).note == 0


@pytest.mark.engines("postgresql")
def test_pipelined_units_move_and_check_scopes(sessions, versions):
    with UnitOfWork(sessions, pipelined=True) as session:
        session.get_one(Booking, 1).hour = 3
    assert versions()[SEVEN.key] == 1
    with pytest.raises(ConcurrencyError), UnitOfWork(sessions, pipelined=True) as session:
        verify(session, SEVEN)
        with sessions.begin() as other:
            other.add(Booking(id=3, room_id=7))
        session.get_one(Shift, 1).note = 5


def test_two_phases_move_scopes(rooms, versions):
    if rooms.dialect.name != "mysql":
        pytest.skip("the database prepares no transaction as it is set up")
    with sessionmaker(rooms, twophase=True).begin() as session:
        session.get_one(Booking, 1).hour = 3
    assert versions()[SEVEN.key] == 1


@pytest.mark.anyio
async def test_an_async_session_has_the_same_calls(async_engine, async_tables):
    async_tables(Booking)

    async with async_engine.begin() as connection:
        await connection.run_sync(scopes.create, checkfirst=True)
    made = watch(async_sessionmaker(async_engine, expire_on_commit=False))
    async with AsyncUnitOfWork(made) as session:
        session.add(Booking(id=1))
    nowhere = Booking.scope(room_id=None)
    async with made() as session:
        tag = await optilock.asyncio.etag_of(session, nowhere)
    async with AsyncUnitOfWork(made) as session:
        await optilock.asyncio.lock(session, nowhere)
        await optilock.asyncio.expect(session, nowhere, tag)
        rows = await optilock.asyncio.verify(session, nowhere, select(Booking))
        rows[0].hour = 5
    with pytest.raises(ConcurrencyError):
        async with AsyncUnitOfWork(made) as session:
            await optilock.asyncio.verify(session, ALL)
            async with AsyncUnitOfWork(made, propagation="independent") as other:
                other.add(Booking(id=2))


# -- classes ---------------------------------------------------------------------------------------


class Kinds(DeclarativeBase):
    pass


class Slot(Versioned, Kinds):
    __tablename__ = "slots"
    __version_scopes__ = (("code", "day", "owner", "open"), "code")
    id: Mapped[int] = mapped_column(primary_key=True)
    code: Mapped[str | None] = mapped_column(exact_text(700))
    day: Mapped[datetime.date | None] = mapped_column(Date)
    owner: Mapped[uuid.UUID | None]
    open: Mapped[bool] = mapped_column(default=False)


class Animal(Versioned, Kinds):
    __tablename__ = "scoped_animals"
    __version_scopes__ = ("farm",)
    id: Mapped[int] = mapped_column(primary_key=True)
    farm: Mapped[int]
    kind: Mapped[str] = mapped_column(exact_text(20))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}


class Dog(Animal):
    __tablename__ = "scoped_dogs"
    id: Mapped[int] = mapped_column(ForeignKey(Animal.id), primary_key=True)
    tricks: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"polymorphic_identity": "dog"}


class Plain(Versioned, Kinds):
    __tablename__ = "scoped_plain"
    __version_token__ = None
    __version_scopes__ = ("farm",)
    id: Mapped[int] = mapped_column(primary_key=True)
    farm: Mapped[int]
    note: Mapped[int] = mapped_column(default=0)


class Leased(leases.Leasable, Versioned, Kinds):
    __tablename__ = "scoped_leased"
    __version_scopes__ = ((),)
    id: Mapped[int] = mapped_column(primary_key=True)


class Compared(Versioned, Kinds):
    __tablename__ = "scoped_compared"
    __version_token__ = CompareValues("note")
    __version_scopes__ = ("farm",)
    id: Mapped[int] = mapped_column(primary_key=True)
    farm: Mapped[int]
    note: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def kinds(engine: Engine, tables: Any) -> sessionmaker[Session]:
    tables(Slot, Animal, Dog, Plain, Compared, Leased)
    scopes.create(engine, checkfirst=True)
    with engine.begin() as connection:
        connection.execute(scopes.delete())
    return watch(sessionmaker(engine))


def stored(sessions: sessionmaker[Session]) -> dict[str, int]:
    with sessions() as session:
        return dict(map(tuple, session.execute(select(scopes))))


def test_the_key_of_a_scope_is_its_text(kinds):
    owner = uuid.UUID(int=10)
    day = datetime.date(2026, 1, 31)
    with kinds.begin() as session:
        session.add(Slot(id=1, code="Ä,1", day=day, owner=owner, open=True))
        session.add(Slot(id=2, code="x" * 500))
    one = Slot.scope(code="Ä,1", day=day, owner=owner, open=True)
    assert one.key == f"slots(code,day,owner,open)=3:Ä,1,10:2026-01-31,32:{owner.hex},1:1"
    assert Slot.scope(code=None).key == "slots(code)=-"
    assert len(Slot.scope(code="x" * 500).key) < 60
    long = Slot.scope(code="x" * 500, day=None, owner=None, open=False)
    assert {one.key, long.key, Slot.scope(code="x" * 500).key} <= stored(kinds).keys()


def test_texts_that_differ_in_case_or_spaces_are_two_scopes(kinds):
    with kinds.begin() as session:
        session.add_all([Slot(id=n, code=code) for n, code in enumerate(("a", "A", "a "), 1)])
    assert stored(kinds)[Slot.scope(code="a").key] == 1
    assert stored(kinds)[Slot.scope(code="A").key] == 1


def test_a_hierarchy_has_one_scope_for_all_of_its_classes(kinds):
    assert Dog.scope(farm=1) == Animal.scope(farm=1)
    with kinds.begin() as session:
        session.add(Dog(id=1, farm=1))
    with kinds.begin() as session:
        session.get_one(Animal, 1).tricks = 3
    with kinds.begin() as session:
        session.execute(update(Dog).where(Dog.id == 1).values(tricks=4))
    with kinds.begin() as session:
        session.delete(session.get_one(Animal, 1))
    assert stored(kinds) == {Animal.scope(farm=1).key: 4}


@pytest.mark.parametrize("model", [Plain, Compared])
def test_the_stored_scope_of_a_row_without_a_version_counts(kinds, model):
    with kinds.begin() as session:
        session.add(model(id=1, farm=1))
    with kinds() as session:
        row = session.get_one(model, 1)
        with kinds.begin() as other:
            other.get_one(model, 1).farm = 2
        row.farm = 3
        session.commit()
    assert stored(kinds) == {model.scope(farm=1).key: 2, model.scope(farm=2).key: 2} | {
        model.scope(farm=3).key: 1
    }


def test_a_lease_of_a_row_moves_no_scope(kinds):
    with kinds.begin() as session:
        session.add(Leased(id=1))
    with kinds.begin() as session:
        lease = leases.acquire(session, (Leased, 1), duration=30)
    with kinds.begin() as session:
        leases.release(session, lease)
    assert stored(kinds) == {Leased.scope().key: 1}


# -- the tests of the test -------------------------------------------------------------------------


def refused(sessions: sessionmaker[Session], scope: Any, act: Any, **others: Any) -> bool:
    """Return whether a change that another transaction commits in between refuses a commit."""
    with sessions() as session:
        verify(session, scope)
        with sessions.begin() as other:
            act(other)
        session.get_one(Shift, 1).note += 1
        try:
            session.commit()
        except ConcurrencyError:
            return True
    return False


def all_at_once(session: Session) -> None:
    session.execute(update(Booking).values(hour=4))


def test_a_writer_without_a_where_refuses_everybody(sessions, monkeypatch):
    assert refused(sessions, SEVEN, all_at_once)
    assert refused(sessions, Booking.scope(room_id=99), all_at_once)
    found = transaction.TransactionScopes.expected

    def without_star(self: Any) -> Any:
        return {key: v for key, v in found(self).items() if not key.endswith("(*)")}

    monkeypatch.setattr(transaction.TransactionScopes, "expected", without_star)
    assert not refused(sessions, SEVEN, all_at_once)


def test_rows_that_are_read_before_the_version_miss_a_commit(rooms, sessions, monkeypatch):
    if rooms.dialect.name == "mysql":
        rooms = rooms.execution_options(isolation_level="READ COMMITTED")
    sessions = watch(sessionmaker(rooms))
    read = transaction.read_version

    def is_missed(*, rows_first: bool) -> bool:
        with sessions() as session:
            if rows_first:
                rows = session.scalars(select(Booking.id)).all()
            verify(session, ALL)
            if not rows_first:
                rows = session.scalars(select(Booking.id)).all()
            session.get_one(Shift, 1).note = len(rows)
            try:
                session.commit()
            except ConcurrencyError:
                return False
            return len(rows) < session.scalar(select(Booking.id).order_by(-Booking.id))

    def with_a_commit(session: Session, scope: Any) -> Any:
        monkeypatch.setattr("optilock.preconditions.scopes.read_version", read)
        with sessions.begin() as other:
            other.add(Booking(id=3, room_id=9))
        return read(session, scope)

    monkeypatch.setattr("optilock.preconditions.scopes.read_version", with_a_commit)
    assert is_missed(rows_first=True)
    with sessions.begin() as session:
        session.delete(session.get_one(Booking, 3))
    monkeypatch.setattr("optilock.preconditions.scopes.read_version", with_a_commit)
    assert not is_missed(rows_first=False)


@pytest.mark.engines("postgresql")
def test_a_row_that_is_not_there_is_made_so_that_it_can_be_locked(kinds, monkeypatch):
    """Each transaction verifies a scope without a row, and writes into the other's."""

    def the_second_waits() -> bool:
        with kinds() as first, kinds() as second:
            for session, read, written in ((first, 1, 2), (second, 2, 1)):
                verify(session, Animal.scope(farm=read))
                session.add(Animal(id=written, farm=written))
                session.flush()
            transaction.end_scopes(first)
            second.connection().exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
            try:
                transaction.end_scopes(second)
            except DBAPIError as error:
                return cause_of(error) is Cause.LOCK_TIMEOUT
            return False

    assert the_second_waits()
    check = ScopeRows.check
    monkeypatch.setattr(ScopeRows, "check", lambda *given: check(*given[:-1], ()))
    assert not the_second_waits()


# -- refusals --------------------------------------------------------------------------------------


def test_calls_that_cannot_be_kept_are_refused(rooms, sessions):
    with sessionmaker(rooms)() as plain:
        for call in (
            lambda: verify(plain, SEVEN),
            lambda: expect(plain, SEVEN, '"a"'),
            lambda: optilock.lock(plain, SEVEN),
        ):
            with pytest.raises(ConfigurationError, match="not watched"):
                call()
    with sessions() as session:
        with pytest.raises(ConfigurationError, match="scope"):
            verify(session, Booking)
        with pytest.raises(ConfigurationError, match="select"):
            verify(session, SEVEN, update(Booking))
        with pytest.raises(ConfigurationError, match="nowait="):
            optilock.lock(session, SEVEN, nowait=True)
        with pytest.raises(BadPrecondition):
            expect(session, SEVEN, "7")
        with pytest.raises(BadPrecondition):
            expect(session, SEVEN, None)


def test_a_unit_that_only_reads_verifies_no_scope(rooms, sessions):
    with (
        pytest.raises(ConfigurationError, match="read_only"),
        UnitOfWork(sessions, read_only=True) as session,
    ):
        verify(session, SEVEN)
    with UnitOfWork(sessions, read_only=True) as session:
        assert etag_of(session, SEVEN)


def test_without_the_table_the_error_names_it(rooms, sessions):
    scopes.drop(rooms)
    rooms.dispose()  # the program begins
    try:
        with sessions() as session, pytest.raises(ConfigurationError, match="optilock_scopes"):
            verify(session, SEVEN)
        with sessions() as session:
            touch(session.get_one(Booking, 1))
            with pytest.raises(ConfigurationError, match="optilock_scopes"):
                session.commit()
    finally:
        scopes.create(rooms)


def test_autocommit_is_refused_before_a_row_is_stored(database, rooms, versions):
    loose = create_engine(database.url, **database.options, isolation_level="AUTOCOMMIT")
    with sessionmaker(loose)() as session:
        session.add(Booking(id=3, room_id=7))
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            session.commit()
    loose.dispose()
    assert versions() == {}
