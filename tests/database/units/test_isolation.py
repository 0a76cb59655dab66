"""Isolation levels on real databases: in force, refused when they cannot be, and undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, Integer, create_engine, event, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import AsyncUnitOfWork
from optilock.dialects.transient import is_transient
from optilock.errors import CommitOutcomeUnknown, ConcurrencyError, ConfigurationError
from optilock.unit.isolation import Isolation, level_of
from optilock.unit.units import UnitOfWork, repeatable_read, serializable

pytestmark = pytest.mark.modes


class Base(DeclarativeBase):
    pass


class Doctor(Base):
    """Without a version: what is prevented here, the level prevents."""

    __tablename__ = "isolation_doctors"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shifts: Mapped[int] = mapped_column(Integer)


def two_doctors() -> list[Doctor]:
    return [Doctor(id=1, shifts=1), Doctor(id=2, shifts=1)]


@pytest.fixture
def sessions(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(*two_doctors())
    return sessionmaker(engine)


def shifts(session: Session, doctor_id: int) -> int:
    return session.scalars(select(Doctor.shifts).where(Doctor.id == doctor_id)).one()


def set_shifts(session: Session, doctor_id: int, number: int) -> None:
    session.execute(update(Doctor).where(Doctor.id == doctor_id).values(shifts=number))


def from_outside(sessions: sessionmaker[Session], doctor_id: int, number: int) -> None:
    """What another program stores meanwhile."""
    with sessions.begin() as session:
        set_shifts(session, doctor_id, number)


def journal(engine: Engine) -> bool:
    if engine.dialect.name != "sqlite":
        return False
    with engine.connect() as connection:
        return connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal"


@pytest.fixture
def readers_let_writers_commit(engine: Engine) -> None:
    if journal(engine):
        pytest.skip("a rollback journal lets nobody commit while a snapshot is open")


def state(engine: Engine, connection: Any) -> dict[str, Any]:
    """Everything a unit may set on a connection."""
    asked = {
        "sqlite": ["PRAGMA query_only", "PRAGMA read_uncommitted", "PRAGMA journal_mode"],
        "postgresql": ["SHOW transaction_isolation", "SHOW transaction_read_only"],
        "mysql": ["SELECT @@tx_isolation", "SELECT @@tx_read_only"],
    }[engine.dialect.name]
    found = {one: connection.exec_driver_sql(one).scalar() for one in asked}
    if engine.dialect.name == "mysql" and has_snapshot_isolation(connection):
        one = "SELECT @@innodb_snapshot_isolation"
        found[one] = connection.exec_driver_sql(one).scalar()
    if engine.dialect.name == "sqlite":
        found["isolation_level"] = connection.connection.dbapi_connection.isolation_level
    return found


def has_snapshot_isolation(connection: Any) -> bool:
    shown = connection.exec_driver_sql("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
    return shown.first() is not None


def state_of_the_pooled(engine: Engine, driver: Any) -> dict[str, Any]:
    """The same, of the connection ``driver``, wherever in the pool it is."""
    with ExitStack() as stack:
        for _ in range(engine.pool.checkedin()):
            connection = stack.enter_context(engine.connect())
            if connection.connection.dbapi_connection is driver:
                return state(engine, connection)
    raise AssertionError("the connection did not come back")


# -- in force --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "level", [Isolation.REPEATABLE_READ, Isolation.SERIALIZABLE, "SERIALIZABLE"]
)
def test_a_unit_runs_at_the_level_asked_for(sessions, engine, level):
    """A level could not be named by its text."""
    with UnitOfWork(sessions, isolation=level) as session:
        connection = session.connection()
        if engine.dialect.name == "sqlite":
            assert connection.connection.driver_connection.in_transaction
        else:
            assert connection.get_isolation_level() == level_of(level).value


def test_a_unit_at_read_committed_sees_what_others_commit(sessions):
    with UnitOfWork(sessions, isolation=Isolation.READ_COMMITTED) as session:
        assert shifts(session, 1) == 1
        from_outside(sessions, 1, 7)
        assert shifts(session, 1) == 7


@pytest.mark.engines("sqlite-wal")
def test_read_committed_is_refused_where_the_engine_begins_by_itself(sessions, engine):
    """A read in the transaction that the listener begins would hold a snapshot."""
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    unit = UnitOfWork(sessions, isolation=Isolation.READ_COMMITTED)
    with pytest.raises(ConfigurationError, match="mode of the driver"), unit as session:
        session.connection()


def test_a_unit_without_a_level_keeps_the_engines_own(sessions, engine):
    with engine.connect() as connection:
        own = state(engine, connection)
    with UnitOfWork(sessions) as session:
        assert state(engine, session.connection()) == own


@pytest.mark.usefixtures("readers_let_writers_commit")
@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_repeatable_read_is_a_stable_snapshot(sessions, options):
    with repeatable_read(sessions, **options) as session:
        assert shifts(session, 1) == 1
        from_outside(sessions, 1, 7)
        from_outside(sessions, 2, 7)
        assert (shifts(session, 1), shifts(session, 2)) == (1, 1)


@pytest.mark.usefixtures("readers_let_writers_commit")
def test_on_sqlite_the_snapshot_is_taken_when_the_transaction_begins(sessions, engine):
    if engine.dialect.name != "sqlite":
        pytest.skip("a server takes its snapshot with the first statement of the unit")
    with repeatable_read(sessions) as session:
        session.connection()
        from_outside(sessions, 1, 7)
        assert shifts(session, 1) == 1


@pytest.mark.usefixtures("readers_let_writers_commit")
def test_repeatable_read_loses_no_update_of_a_row_without_a_version(sessions):
    """P4 of Hermitage. The database ends the transaction, and running it again has a chance."""
    with pytest.raises(ConcurrencyError) as caught, repeatable_read(sessions) as session:
        number = shifts(session, 1)
        from_outside(sessions, 1, 7)
        set_shifts(session, 1, number + 1)

    assert is_transient(caught.value)
    assert isinstance(caught.value.__cause__, DBAPIError)
    with sessions() as session:
        assert shifts(session, 1) == 7


def test_without_the_level_the_same_steps_lose_the_update(sessions, engine):
    """The test of the test above; MariaDB with snapshot isolation on is safe by itself."""
    with engine.connect() as connection:
        if state(engine, connection).get("SELECT @@innodb_snapshot_isolation"):
            pytest.skip("this server's own level keeps the update")
    with UnitOfWork(sessions) as session:
        number = shifts(session, 1)
        from_outside(sessions, 1, 7)
        set_shifts(session, 1, number + 1)

    with sessions() as session:
        assert shifts(session, 1) == 2


@pytest.fixture
def quick(engine: Engine) -> Iterator[None]:
    """Connections that wait shortly for locks."""
    order = {
        "sqlite": "PRAGMA busy_timeout = 10",
        "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    }.get(engine.dialect.name)

    if order is None:  # PostgreSQL finds this one without a wait
        yield
        return

    def connect(driver: Any, _: Any) -> None:
        cursor = driver.cursor()
        cursor.execute(order)
        cursor.close()

    engine.dispose()
    event.listen(engine, "connect", connect)
    yield
    event.remove(engine, "connect", connect)
    engine.dispose()


@pytest.mark.usefixtures("quick")
def test_serializable_prevents_write_skew(sessions):
    """G2-item of Hermitage: each of two doctors leaves because the other one is there.

    The engines refuse it in different places (a wait for a lock, COMMIT); none stores both.
    """

    def leave(session: Session, doctor_id: int) -> None:
        assert shifts(session, 1) + shifts(session, 2) == 2
        set_shifts(session, doctor_id, 0)

    with pytest.raises((ConcurrencyError, DBAPIError)) as caught, serializable(sessions) as one:
        assert shifts(one, 1) + shifts(one, 2) == 2
        with serializable(sessions, propagation="independent") as two:
            leave(two, 2)
        set_shifts(one, 1, 0)

    assert is_transient(caught.value)
    with sessions() as session:
        assert shifts(session, 1) + shifts(session, 2) >= 1


# -- read-only -------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [UnitOfWork, repeatable_read, serializable])
def test_the_database_refuses_the_writes_of_a_read_only_unit(sessions, unit):
    with pytest.raises(DBAPIError), unit(sessions, read_only=True) as session:
        set_shifts(session, 1, 7)

    with sessions() as session:
        assert shifts(session, 1) == 1


def test_objects_that_were_changed_in_a_read_only_unit_are_named(sessions):
    with (
        pytest.raises(ConfigurationError, match="Doctor"),
        UnitOfWork(sessions, read_only=True) as session,
    ):
        session.get_one(Doctor, 1).shifts = 7


# -- undone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, KeyError])
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("unit", [repeatable_read, serializable])
def test_what_was_set_on_a_connection_is_undone_before_the_pool_has_it(
    sessions, engine, unit, read_only, error
):
    with engine.connect() as connection:
        before = state(engine, connection)
    try:
        with unit(sessions, read_only=read_only) as session:
            driver = session.connection().connection.dbapi_connection
            shifts(session, 1)
            if error is not None:
                raise error
    except KeyError:
        pass

    assert state_of_the_pooled(engine, driver) == before


def test_a_session_that_was_closed_inside_its_unit_leaves_nothing_behind(sessions, engine):
    with engine.connect() as connection:
        before = state(engine, connection)
    with repeatable_read(sessions, read_only=True) as session:
        driver = session.connection().connection.dbapi_connection
        session.close()

    assert state_of_the_pooled(engine, driver) == before


def test_a_pool_at_the_address_of_one_that_is_gone_is_put_right_too(sessions, engine, monkeypatch):
    """SQLAlchemy knows a listener's target by its address, which a new engine may have got."""
    monkeypatch.setattr(event, "contains", lambda *_: True)
    with engine.connect() as connection:
        before = state(engine, connection)
    with repeatable_read(sessions, read_only=True) as session:
        driver = session.connection().connection.dbapi_connection
        shifts(session, 1)

    assert state_of_the_pooled(engine, driver) == before


@pytest.mark.engines("postgresql")
def test_after_a_unit_that_only_reads_the_role_decides_again_who_may_write(sessions, database):
    """BEGIN READ WRITE would overrule it, and be refused by a standby."""
    role = database.engine(pool_size=1, connect_args={"options": ROLE_THAT_READS})
    with UnitOfWork(role, read_only=True) as session:
        assert shifts(session, 1) == 1
    with pytest.raises(DBAPIError, match="read-only transaction"), UnitOfWork(role) as session:
        set_shifts(session, 1, 7)
    role.dispose()
    with sessions() as session:
        assert shifts(session, 1) == 1


ROLE_THAT_READS = "-c default_transaction_read_only=on"


# -- refused ---------------------------------------------------------------------------------------


def test_a_level_that_something_else_overrides_is_noticed(sessions, engine):
    """A listener of the application that sets the level for every transaction."""
    if engine.dialect.name != "postgresql":
        pytest.skip("the level can be changed inside a transaction on PostgreSQL only")

    @event.listens_for(sessions, "after_begin")
    def after_begin(session: Session, over: Any, connection: Any) -> None:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

    with pytest.raises(ConfigurationError, match="READ COMMITTED"), serializable(sessions) as s:
        shifts(s, 1)


def test_a_session_bound_to_a_connection_cannot_get_a_level(sessions, engine):
    with engine.connect() as connection, connection.begin():
        bound = sessionmaker(connection)
        with pytest.raises(ConfigurationError, match="Connection"), serializable(bound) as session:
            shifts(session, 1)


def test_a_session_bound_to_a_connection_cannot_be_made_read_only(sessions, engine):
    """The transaction is its caller's, and would stay read-only, or be committed by the attempt."""
    with engine.connect() as connection, connection.begin():
        bound = sessionmaker(connection)
        with pytest.raises(ConfigurationError, match="leave read_only=True out"):
            shifts(UnitOfWork(bound, read_only=True).__enter__(), 1)
        connection.execute(update(Doctor).values(shifts=7))
    with sessions() as session:
        assert shifts(session, 1) == 7


def test_a_unit_that_has_begun_cannot_get_another_level(sessions):
    """trap 27"""
    with UnitOfWork(sessions), pytest.raises(ConfigurationError, match="isolation"):
        serializable(sessions).__enter__()


def test_an_engine_in_autocommit_mode_is_refused(sessions, engine):
    everything_at_once = engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"), UnitOfWork(everything_at_once) as s:
        set_shifts(s, 1, 7)

    with sessions() as session:
        assert shifts(session, 1) == 1


def test_a_refusal_that_was_caught_still_keeps_the_unit_from_committing(sessions, engine):
    if engine.dialect.name != "sqlite":
        pytest.skip("the level is brought about by the engine's options")
    everything_at_once = engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError), serializable(everything_at_once) as session:
        with pytest.raises(ConfigurationError):
            session.connection()
        session.add(Doctor(id=3, shifts=1))


# -- several engines -------------------------------------------------------------------------------


class OtherBase(DeclarativeBase):
    pass


class Patient(OtherBase):
    __tablename__ = "isolation_patients"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    #: Looked at by COMMIT only.
    guardian: Mapped[int | None] = mapped_column(
        ForeignKey("isolation_patients.id", deferrable=True, initially="DEFERRED")
    )


def test_a_session_bound_to_several_engines_gets_the_level_on_each(sessions, engine, tmp_path):
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    OtherBase.metadata.create_all(other)
    both = sessionmaker(binds={Doctor: engine, Patient: other})
    with repeatable_read(both) as session:
        session.get_one(Doctor, 1)
        session.get(Patient, 1)
        if engine.dialect.name != "sqlite":
            doctors = session.connection(bind_arguments={"mapper": Doctor})
            assert doctors.get_isolation_level() == "REPEATABLE READ"
        patients = session.connection(bind_arguments={"mapper": Patient})
        assert patients.connection.driver_connection.in_transaction
    other.dispose()


def test_a_commit_that_fails_on_one_of_several_databases_is_not_certain(sessions, engine, tmp_path):
    """SQLAlchemy commits one after the other, and the first one cannot be taken back."""
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    OtherBase.metadata.create_all(other)
    both = sessionmaker(binds={Doctor: engine, Patient: other})
    with pytest.raises(CommitOutcomeUnknown), UnitOfWork(both) as session:
        session.get_one(Doctor, 1).shifts = 7
        session.connection(bind_arguments={"mapper": Patient}).exec_driver_sql(
            "PRAGMA foreign_keys = ON"
        )
        session.add(Patient(id=1, guardian=99))
    other.dispose()


# -- async -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [repeatable_read, serializable])
@pytest.mark.anyio
async def test_async_units_run_at_their_level_and_undo_it(async_engine, async_store, unit):
    def in_force(session: Session) -> str:
        connection = session.connection()
        if connection.dialect.name != "sqlite":
            return connection.get_isolation_level()
        assert connection.connection.driver_connection.in_transaction
        return unit.__name__.replace("_", " ").upper()

    async_store(*two_doctors())
    made = async_sessionmaker(async_engine)
    async with unit(made) as session:
        found = await session.run_sync(in_force)
    async with unit(made, read_only=True) as session:
        assert await session.run_sync(shifts, 1) == 1
    async with made.begin() as session:
        await session.run_sync(set_shifts, 1, 7)
    assert found == unit.__name__.replace("_", " ").upper()


@pytest.mark.engines("postgresql")
@pytest.mark.anyio
async def test_after_an_async_unit_that_only_reads_the_role_decides_again(async_database):
    """asyncpg never sends READ WRITE; psycopg would."""

    asyncpg = "asyncpg" in async_database.async_url
    settings = {"server_settings": {"default_transaction_read_only": "on"}}
    given = settings if asyncpg else {"options": ROLE_THAT_READS}
    role = create_async_engine(async_database.async_url, pool_size=1, connect_args=given)
    try:
        async with AsyncUnitOfWork(role, read_only=True) as session:
            await session.execute(text("SELECT 1"))
        with pytest.raises(DBAPIError, match="read-only transaction"):
            async with AsyncUnitOfWork(role) as session:
                await session.execute(text("CREATE TABLE never (id INT)"))
    finally:
        await role.dispose()
