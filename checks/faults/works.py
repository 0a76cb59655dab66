"""What programs do, each with a question: how often is it stored?"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, String, inspect, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import optilock.alembic
from optilock import (
    ConcurrencyError,
    Isolation,
    UnitOfWork,
    Versioned,
    entities,
    leases,
    merge_fields,
    retrying,
    unit_of_work,
    watch,
)
from optilock.leases import Leasable
from optilock.queue import AsyncQueue, Queue
from optilock.rollout import roll_out
from optilock.tables.queue import message_tables
from optilock.tokens import Unique

__all__ = ["WORKS", "Work", "World"]
assert optilock.alembic  # op.add_version_column


class Base(DeclarativeBase):
    pass


class Account(Versioned, Base):
    __tablename__ = "fault_accounts"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    n: Mapped[int]
    note: Mapped[str] = mapped_column(String(40))


class Page(Leasable, Versioned, Base):
    __tablename__ = "fault_pages"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str] = mapped_column(String(40))


FIRST = uuid.UUID(int=1)
ROWS = range(1, 6)
Body = Callable[[Session], Any]


@dataclass
class World:
    """The engine whose driver fails, and another one to the same database."""

    engine: Any
    direct: Engine
    loop: asyncio.AbstractEventLoop | None = None
    #: How often somebody else has written.
    others: int = 0
    message: Any = None
    leaves_message: bool = False

    def prepare(self) -> None:
        Base.metadata.create_all(self.direct)
        message_tables().messages.metadata.create_all(self.direct)

    def reset(self) -> None:
        """Everything as it was before the work."""
        tables = [Account.__table__, Page.__table__, message_tables().messages]
        with self.direct.begin() as connection:
            for table in tables:
                connection.execute(table.delete())
            account: Any = Account.__table__
            rows = [{"id": n, "n": 0, "note": "", "version": 1} for n in ROWS]
            connection.execute(account.insert(), rows)
            page: Any = Page.__table__
            connection.execute(page.insert(), {"id": 1, "title": "old", "version": FIRST})
            connection.exec_driver_sql("DROP TABLE IF EXISTS optilock_rollout_of_fault_plain")
            connection.exec_driver_sql("DROP TABLE IF EXISTS fault_plain")
            connection.exec_driver_sql("CREATE TABLE fault_plain (id INTEGER PRIMARY KEY, a INT)")
            connection.exec_driver_sql("INSERT INTO fault_plain VALUES (1, 1), (2, 2)")
        self.others = 0
        if not self.leaves_message:
            return
        with Queue(self.direct, "done") as queue:
            queue.send(1)
            [self.message] = queue.receive()

    def somebody_writes(self, number: int) -> None:
        self.others += 1
        with sessionmaker(self.direct).begin() as session:
            session.get_one(Account, number).note = f"theirs {self.others}"

    def run(self, coroutine: Any) -> Any:
        assert self.loop is not None
        return self.loop.run_until_complete(coroutine)

    def unit(self, body: Body, **options: Any) -> Any:
        """A unit of work that is run again."""
        options = {"retry": retrying(attempts=3, wait_initial=0), **options}
        if not isinstance(self.engine, AsyncEngine):
            return unit_of_work(self.engine, **options)(lambda session: body(session))()

        @unit_of_work(async_sessionmaker(self.engine), **options)
        async def run(session: AsyncSession) -> Any:
            return await session.run_sync(body)

        return self.run(run())

    def retried(self, body: Body, engine: Any, *, guarded: bool = False, attempts: int = 3) -> Any:
        """A session of the program's own, under retry."""
        policy = retrying(attempts=attempts, wait_initial=0)
        if not isinstance(engine, AsyncEngine):
            sessions = watch(sessionmaker(engine)) if guarded else sessionmaker(engine)

            def call() -> Any:
                with sessions() as session:
                    return body(session)

            return policy.call(call)
        later = async_sessionmaker(engine)
        if guarded:
            watch(later)

        async def call_later() -> Any:
            async with later() as session:
                return await session.run_sync(body)

        return self.run(policy.acall(call_later))

    def queue(self, name: str, do: Callable[[Any], Any]) -> Any:
        policy = retrying(attempts=3, wait_initial=0)
        if not isinstance(self.engine, AsyncEngine):
            with Queue(self.engine, name) as queue:
                return policy.call(do, queue)

        async def call() -> Any:
            async with AsyncQueue(self.engine, name) as queue:
                return await policy.acall(do, queue)

        return self.run(call())

    def rows(self) -> dict[int, tuple[int, str]]:
        with self.direct.connect() as connection:
            columns = select(Account.id, Account.n, Account.note)
            return {key: (n, note) for key, n, note in connection.execute(columns)}


@dataclass(frozen=True)
class Work:
    do: Callable[[World], Any]
    #: How often it is stored; an ``AssertionError`` where it is by half.
    stored: Callable[[World], int]
    #: What ends it without any fault.
    ends_in: type[Exception] | None = None
    #: Statements of it commit by themselves, so an interrupt tells nothing of the outcome.
    commits_itself: bool = False
    #: Each of its steps is stored, and a second run goes on.
    in_steps: bool = False
    #: Its session is the program's own, which SQLAlchemy closes.
    own_session: bool = False
    #: Is it run again after an error that passes?
    retried: bool = True
    engines: tuple[str, ...] = ("sqlite", "psycopg", "aiosqlite", "psycopg-async")
    options: dict[str, Any] = field(default_factory=dict)


# -- units -----------------------------------------------------------------------------------------


def both(session: Session) -> None:
    """Two rows, in two flushes."""
    session.get_one(Account, 1).n += 1
    session.flush()
    session.get_one(Account, 2).n += 1


def counted(world: World) -> int:
    rows = world.rows()
    assert rows[1][0] == rows[2][0], f"half written: {rows}"
    return rows[1][0]


def merge(world: World) -> None:
    def body(session: Session) -> None:
        accounts = [session.get_one(Account, number) for number in (1, 2)]
        for account in accounts:
            account.n += 1
            world.somebody_writes(account.id)

    world.unit(body, on_conflict=merge_fields)


def merged(world: World) -> int:
    rows = world.rows()
    if world.others:
        notes = {rows[1][1], rows[2][1]}
        assert notes == {f"theirs {world.others - 1}", f"theirs {world.others}"}, rows
    return counted(world)


def batch(world: World) -> None:
    """Five rows of which one has been changed, in a session that is no unit."""

    def body(session: Session) -> None:
        for account in session.scalars(select(Account)):
            account.n += 1
        world.somebody_writes(3)
        session.commit()

    world.retried(body, world.engine, guarded=True, attempts=1)


def none_of_the_batch(world: World) -> int:
    numbers = {n for n, _ in world.rows().values()}
    assert len(numbers) == 1, f"half written: {world.rows()}"
    return numbers.pop()


def savepoint(world: World) -> None:
    def body(session: Session) -> None:
        session.get_one(Account, 1).n += 1
        try:
            if isinstance(world.engine, Engine):
                with UnitOfWork(world.engine, propagation="savepoint") as inner:
                    undone(inner)
            else:
                with session.begin_nested():
                    undone(session)
        except LookupError:
            pass
        session.get_one(Account, 2).n += 1

    def undone(session: Session) -> None:
        session.get_one(Account, 3).n += 1
        session.flush()
        raise LookupError("of the program's own")

    world.unit(body)


def without_the_savepoint(world: World) -> int:
    assert world.rows()[3][0] == 0, "what was undone is stored"
    return counted(world)


def lease(world: World) -> None:
    def body(session: Session) -> None:
        mine = leases.acquire(session, (Page, 1), 60)
        both(session)
        leases.release(session, mine)

    world.unit(body)


def no_lease_is_left(world: World) -> int:
    with Session(world.direct) as session:
        assert leases.look(session, (Page, 1)).state == "available"
    return counted(world)


# -- statements that commit themselves -------------------------------------------------------------


def title(world: World) -> int:
    with world.direct.connect() as connection:
        stored = connection.scalars(select(Page.title)).all()
    return int(stored == ["new"])


def put(session: Session) -> None:
    version: Any = entities.Version(FIRST)
    entities.merge(session, Page, 1, {"title": "new"}, if_match=version)


def entity_alone(world: World) -> None:
    world.retried(put, world.engine)


def messages(name: str) -> Callable[[World], int]:
    def waiting(world: World) -> int:
        with Queue(world.direct, name) as queue:
            found = queue.metrics()
            return found.waiting + found.hidden

    return waiting


# -- migrations ------------------------------------------------------------------------------------


def migration(world: World) -> None:
    with world.engine.begin() as connection:
        operations: Any = Operations(MigrationContext.configure(connection))
        operations.add_version_column("fault_plain", Unique())


def migrated(world: World) -> int:
    found = inspect(world.direct)
    columns = {column["name"]: column for column in found.get_columns("fault_plain")}
    made = [name for name in found.get_table_names() if "optilock_new" in name]
    assert not made, made
    with world.direct.connect() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM fault_plain").all()
    assert len(rows) == 2, rows
    if "version" not in columns:
        return 0
    assert not columns["version"]["nullable"], "half a column"
    return 1


def rolled_out(world: World) -> int:
    """It may stop between two steps; a second run goes on, and leaves nothing beside the table."""
    roll_out(world.direct, "fault_plain", token=Unique(), share=1, patience=1)
    names = inspect(world.direct).get_table_names()
    assert not [name for name in names if name.startswith("optilock_rollout")], names
    return migrated(world)


SERVER = ("psycopg", "psycopg-async")
SYNC = ("sqlite", "psycopg")
WORKS: dict[str, Work] = {
    "unit": Work(lambda world: world.unit(both), counted),
    "serializable": Work(lambda world: world.unit(both, isolation=Isolation.SERIALIZABLE), counted),
    "locking": Work(lambda world: world.unit(both, strategy="pessimistic"), counted),
    "pipelined": Work(lambda world: world.unit(both, pipelined=True), counted, engines=SERVER),
    "verify": Work(lambda world: world.unit(both, verify_reads=True), counted),
    "merge": Work(merge, merged),
    "batch": Work(
        batch, none_of_the_batch, ends_in=ConcurrencyError, retried=False, own_session=True
    ),
    "savepoint": Work(savepoint, without_the_savepoint),
    "lease": Work(lease, no_lease_is_left),
    "entity": Work(lambda world: world.unit(put), title),
    "entity-alone": Work(
        entity_alone,
        title,
        commits_itself=True,
        own_session=True,
        options={"isolation_level": "AUTOCOMMIT"},
    ),
    "send": Work(
        lambda world: world.queue("sent", lambda queue: queue.send(1)),
        messages("sent"),
        commits_itself=True,
    ),
    "send-many": Work(
        lambda world: world.queue("sent", lambda queue: queue.send(1, group="a")),
        messages("sent"),
        commits_itself=True,
    ),
    "send-once": Work(
        lambda world: world.queue("sent", lambda queue: queue.send(1, dedup="a")),
        messages("sent"),
        commits_itself=True,
    ),
    "done": Work(
        lambda world: world.queue("done", lambda queue: queue.delete(world.message)),
        lambda world: 1 - messages("done")(world),
        commits_itself=True,
    ),
    "migration": Work(migration, migrated, retried=False, engines=SYNC),
    "roll-out": Work(
        lambda world: roll_out(world.engine, "fault_plain", token=Unique(), share=1),
        rolled_out,
        commits_itself=True,
        in_steps=True,
        retried=False,
        engines=SYNC,
        options={"pool_size": 2},
    ),
}
