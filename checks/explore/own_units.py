"""Units that use each part of optilock, as functions of ``sessions``, over a few small tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, ForeignKey, String, delete, insert, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.orm.exc import StaleDataError

from checks.explore.rows import key
from optilock import (
    UnitOfWork,
    Versioned,
    client_wins,
    entities,
    etag_of,
    leases,
    lock,
    merge_fields,
    store_wins,
    touch,
    unit_of_work,
    verify,
    watch,
)
from optilock.dialects import database_of
from optilock.errors import NotFound, PreconditionFailed
from optilock.leases import Leasable, LeaseHeld
from optilock.queue import MessageNotFound, Queue
from optilock.rollout.target import target_of
from optilock.tables.names import commit_tokens
from optilock.tables.queue import message_tables
from optilock.tokens import Counter
from optilock.unit.heat import MEMORY, Key
from optilock.unit.sessions import name_of
from optilock.unit.strategies import Adaptive

Unit = Callable[[], Any]
#: A unit of the list: given the sessions, it is a function without arguments.
Own = Callable[[Any], Unit]


class Base(DeclarativeBase):
    pass


class Account(Leasable, Versioned, Base):
    __tablename__ = "own_accounts"
    __version_commutes__ = ("likes",)
    id: Mapped[int] = key()
    n: Mapped[int]
    note: Mapped[str] = mapped_column(String(40))
    likes: Mapped[int]


class Order(Versioned, Base):
    __tablename__ = "own_orders"
    __version_root_of__ = ("lines",)
    id: Mapped[int] = key()
    lines: Mapped[list[Line]] = relationship(back_populates="order", order_by="Line.id")


class Line(Versioned, Base):
    __tablename__ = "own_lines"
    id: Mapped[int] = key()
    n: Mapped[int]
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    order: Mapped[Order] = relationship(back_populates="lines")


class Parcel(Base):
    """A table whose version is being filled."""

    __tablename__ = "own_parcels"
    id: Mapped[int] = key()
    n: Mapped[int]
    version: Mapped[int | None]


MESSAGES = message_tables(Base.metadata, table="own_message")
TABLES = [*Base.metadata.sorted_tables, commit_tokens]
#: Columns that say when or by which number: they differ from order to order.
IGNORED = [
    *(f"own_accounts.lease_{name}" for name in ("id", "since", "until")),
    *(
        f"{table.fullname}.{column.name}"
        for table in MESSAGES
        for column in table.columns
        if column.name not in ("body", "receives", "queue")
    ),
    *(f"optilock_commit_tokens.{name}" for name in ("token", "created_at", "result")),
    "own_parcels.version",
]


def reset_of(engine: Engine) -> Callable[[], None]:
    """Return a function that puts all rows back, and forgets which of them were hot."""

    def reset() -> None:
        MEMORY.forget()
        with engine.begin() as connection:
            for table in reversed(TABLES):
                connection.execute(delete(table))
            accounts = [
                {"id": n, "n": 1, "note": "", "likes": 0, "version": 1, "lease_fence": 0}
                for n in (1, 2)
            ]
            connection.execute(insert(Account.__table__), accounts)
            connection.execute(insert(Order.__table__), [{"id": 1, "version": 1}])
            lines = [{"id": n, "n": 4, "order_id": 1, "version": 1} for n in (1, 2)]
            connection.execute(insert(Line.__table__), lines)
            parcels = [{"id": n, "n": 1, "version": None} for n in (1, 2)]
            connection.execute(insert(Parcel.__table__), parcels)
            with Queue(engine, "jobs", table="own_message") as jobs:
                jobs.send("one", session=connection)

    return reset


def heating(engine: Engine, reset: Callable[[], None]) -> Callable[[], None]:
    """Return a reset after which the first account is hot."""

    def hot() -> None:
        reset()
        MEMORY.conflict(Key(name_of(engine), "own_accounts", (1,)), Adaptive(), "a test")

    return hot


def _adding(sessions: Any, name: str, number: int = 1, **options: Any) -> Unit:
    def add(session: Session) -> int:
        account = session.get_one(Account, number)
        account.n += 1
        return account.n

    add.__name__ = name
    made: Unit = unit_of_work(watch(sessions), attempts=4, **options)(add)
    return made


def plain(sessions: Any) -> Unit:
    """A watched session, without a retry."""

    def plain() -> int:
        with watch(sessions).begin() as session:
            account = session.get_one(Account, 1)
            account.n += 1
            return account.n

    return plain


def retried(sessions: Any) -> Unit:
    return _adding(sessions, "retried")


def other_row(sessions: Any) -> Unit:
    return _adding(sessions, "other_row", 2)


def pipelined(sessions: Any) -> Unit:
    return _adding(sessions, "pipelined", pipelined=True)


def adaptive(sessions: Any) -> Unit:
    return _adding(sessions, "adaptive", strategy="adaptive")


def pessimistic(sessions: Any) -> Unit:
    return _adding(sessions, "pessimistic", strategy="pessimistic")


def strict(sessions: Any) -> Unit:
    return _adding(sessions, "strict", strict=True)


def locked(sessions: Any) -> Unit:
    @unit_of_work(watch(sessions), attempts=4)
    def locked(session: Session) -> int:
        account = session.get_one(Account, 1)
        lock(account)
        account.n += 1
        return account.n

    return locked


def commuting(sessions: Any) -> Unit:
    @unit_of_work(watch(sessions), attempts=4)
    def commuting(session: Session) -> None:
        session.get_one(Account, 1).likes += 1

    return commuting


def nested(sessions: Any) -> Unit:
    """What a savepoint has undone is not stored."""

    @unit_of_work(watch(sessions), attempts=4)
    def nested(session: Session) -> int:
        account = session.get_one(Account, 1)
        part = session.begin_nested()
        account.n += 100
        session.flush()
        part.rollback()
        account.n += 1
        return account.n

    return nested


def _noting(sessions: Any, name: str, resolver: Any, note: str) -> Unit:
    def write() -> None:
        with UnitOfWork(watch(sessions), on_conflict=resolver) as session:
            session.get_one(Account, 1).note = note

    write.__name__ = name
    return write


def merging(sessions: Any) -> Unit:
    return _noting(sessions, "merging", merge_fields, "merged")


def client_winning(sessions: Any) -> Unit:
    return _noting(sessions, "client_winning", client_wins, "client")


def store_winning(sessions: Any) -> Unit:
    return _noting(sessions, "store_winning", store_wins, "store")


def by_statement(sessions: Any) -> Unit:
    """An ``update()`` of the class, which names the version that was read."""

    @unit_of_work(watch(sessions), attempts=4)
    def by_statement(session: Session) -> int:
        account = session.get_one(Account, 1)
        seen = Account.id == 1, Account.version == account.version
        found = account.n
        done: Any = session.execute(update(Account).where(*seen).values(n=found + 1))
        if not done.rowcount:
            raise StaleDataError("somebody else was faster")
        return found + 1

    return by_statement


def _going_off(sessions: Any, number: int, **options: Any) -> Unit:
    @unit_of_work(watch(sessions), attempts=4, **options)
    def going_off(session: Session) -> bool:
        mine, other = session.get_one(Account, number), session.get_one(Account, 3 - number)
        verify(other)
        if mine.n + other.n < 2:
            return False
        mine.n = 0
        return True

    return going_off


def first_verified(sessions: Any) -> Unit:
    return _going_off(sessions, 1)


def second_verified(sessions: Any) -> Unit:
    return _going_off(sessions, 2)


def first_optimistic(sessions: Any) -> Unit:
    return _going_off(sessions, 1, strategy="optimistic")


def second_optimistic(sessions: Any) -> Unit:
    return _going_off(sessions, 2, strategy="optimistic")


def account_under_order(sessions: Any) -> Unit:
    """Write a row of one table, and verify one of another."""

    def account_under_order() -> None:
        with UnitOfWork(watch(sessions)) as session:
            verify(session.get_one(Order, 1))
            session.get_one(Account, 1).n += 1

    return account_under_order


def order_under_account(sessions: Any) -> Unit:
    """The other way round."""

    def order_under_account() -> None:
        with UnitOfWork(watch(sessions)) as session:
            verify(session.get_one(Account, 1))
            touch(session.get_one(Order, 1))

    return order_under_account


def _piece(sessions: Any, number: int) -> Unit:
    @unit_of_work(watch(sessions), attempts=4)
    def piece(session: Session) -> bool:
        order = session.get_one(Order, 1)
        if sum(line.n for line in order.lines) > 8:
            return False
        order.lines[number].n += 1
        return True

    return piece


def first_piece(sessions: Any) -> Unit:
    return _piece(sessions, 0)


def second_piece(sessions: Any) -> Unit:
    return _piece(sessions, 1)


def touching(sessions: Any) -> Unit:
    @unit_of_work(watch(sessions), attempts=4)
    def touching(session: Session) -> bool:
        order = session.get_one(Order, 1)
        touch(order)
        return sum(line.n for line in order.lines) > 8

    return touching


def _entity(sessions: Any, name: str, write: Callable[[Session, str], object]) -> Unit:
    """A client reads a row and its tag, writes under that tag, and reads again after 412."""
    maker = watch(sessions)

    def request() -> int:
        while True:
            with maker() as session:
                account = session.get(Account, 1)
                if account is None:
                    return 404
                tag = etag_of(account)
            try:
                with maker.begin() as session:
                    write(session, tag)
            except PreconditionFailed:
                continue
            except NotFound:
                return 404
            return 204

    request.__name__ = name
    return request


def putting(sessions: Any) -> Unit:
    values = {"n": 7, "note": "put", "likes": 0}
    return _entity(
        sessions, "putting", lambda s, tag: entities.replace(s, Account, 1, values, if_match=tag)
    )


def patching(sessions: Any) -> Unit:
    return _entity(
        sessions,
        "patching",
        lambda s, tag: entities.merge(s, Account, 1, {"note": "patched"}, if_match=tag),
    )


def deleting(sessions: Any) -> Unit:
    return _entity(
        sessions, "deleting", lambda s, tag: entities.delete(s, Account, 1, if_match=tag)
    )


# -- leases, queues, roll-outs, exactly-once -------------------------------------------------------


def leasing(sessions: Any) -> Unit:
    """Become the holder, and renew."""

    def leasing() -> bool:
        try:
            with watch(sessions).begin() as session:
                lease = leases.acquire(session, (Account, 1), 60)
        except LeaseHeld:
            return False
        with watch(sessions).begin() as session:
            leases.renew(session, lease)
        return True

    return leasing


def against_lease(sessions: Any) -> Unit:
    """A writer without a lease."""

    def against_lease() -> bool:
        try:
            return bool(_adding(sessions, "add")())
        except LeaseHeld:
            return False

    return against_lease


def _jobs(session: Session) -> Queue:
    bound: Any = session.get_bind()
    return Queue(bound, "jobs", table="own_message")


def sending(sessions: Any) -> Unit:
    @unit_of_work(watch(sessions), attempts=4)
    def sending(session: Session) -> None:
        session.get_one(Account, 1).n += 1
        with _jobs(session) as jobs:
            jobs.send("two", session=session)

    return sending


def receiving(sessions: Any) -> Unit:
    """Receive the first message, and delete it in the transaction of its effect."""

    def receiving() -> bool:
        with watch(sessions).begin() as session, _jobs(session) as jobs:
            found = jobs.receive(1)
        if not found:
            return False
        try:
            handle(found[0])
        except MessageNotFound:
            return False
        return True

    @unit_of_work(watch(sessions), attempts=4)
    def handle(session: Session, message: Any) -> None:
        with _jobs(session) as jobs:
            jobs.delete(message, session=session)
        session.get_one(Account, 1).n += 1

    return receiving


def filling(sessions: Any) -> Unit:
    """A batch of a roll-out."""
    engine = sessions.kw["bind"]
    ways = database_of(engine.dialect).rollout()
    with engine.connect() as connection:
        target = target_of(connection, "own_parcels", None, Counter())

    def filling() -> None:
        with engine.begin() as connection:
            ways.fill(connection, target, None, 10)

    return filling


def shipping(sessions: Any) -> Unit:
    """A program that knows of no version writes meanwhile."""

    def shipping() -> None:
        with sessions.begin() as session:
            session.execute(update(Parcel).where(Parcel.id == 1).values(n=Parcel.n + 1))

    return shipping


def once(sessions: Any) -> Unit:
    return _adding(sessions, "once", exactly_once=True)


def keyed(sessions: Any) -> Unit:
    return _adding(sessions, "keyed", exactly_once="order-7")
