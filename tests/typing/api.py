"""Every public call as a user writes it, for the type checker alone: ``mypy --strict`` reads it.

``assert_type`` is a test of what is inferred. A ``type: ignore`` with a code is one as well: it
says that the line has to be refused, and strict mode complains about one that ignores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, assert_type
from uuid import UUID

from optilock_apps.servers import Server, mariadb, postgresql
from sqlalchemy import Engine, Uuid, create_engine, select
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

import optilock.asyncio
from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    Entry,
    Isolation,
    OptilockError,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    apply,
    bulk_update,
    client_wins,
    entities,
    etag_of,
    events,
    expect,
    is_transient,
    leases,
    lock,
    merge_fields,
    reject,
    repeatable_read,
    retry,
    retrying,
    serializable,
    store_wins,
    touch,
    unit_of_work,
    verify,
    watch,
)
from optilock.entities import Idempotency, Operation, Stored
from optilock.errors import CannotMerge, CommitOutcomeUnknown
from optilock.exactly_once import (
    AlreadyDone,
    KeyInUse,
    KeyReused,
    Once,
    after_commit,
    committed,
    purge,
    set_result,
)
from optilock.preconditions import EditForm, FilledForm, Scope, merge_changes, sign_seen
from optilock.preconditions.entity_tags import ETags
from optilock.queue import AsyncQueue, Draft, Message, Queue, QueueSummary, Received, Worker, queues
from optilock.queue import Sent as SentMessage
from optilock.resolvers import (
    OnDelete,
    Resolution,
    add_delta,
    merge_json,
    merge_set,
    merge_text,
    per_field,
)
from optilock.statements import BulkResult, no_bump
from optilock.testing import (
    Fault,
    Faults,
    Sent,
    Side,
    Statement,
    Step,
    Trips,
    Wire,
    count_statements,
    interleave,
    wire,
)
from optilock.tokens import CompareValues, Counter, Manual, RowVersion, Timestamp, Unique
from optilock.unit import Adaptive
from optilock.web.keys import once_of


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages"
    __version_token__ = Unique()
    __version_ignore__ = ("views",)
    __on_conflict__ = per_field(body=merge_text, views=add_delta)
    __merge_together__ = (("title", "body"), ["body", "views"])
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str]
    views: Mapped[int]


class Account(Versioned, Base):
    __on_conflict__ = merge_fields
    __on_delete__ = OnDelete.IGNORE_GONE
    __tablename__ = "accounts"
    __version_token__ = Counter(name="revision", column="rev_no")
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]


class Timed(Versioned, Base):
    __tablename__ = "timed"
    __version_token__ = Timestamp(name="changed_at")
    id: Mapped[int] = mapped_column(primary_key=True)


class Triggered(Versioned, Base):
    __tablename__ = "triggered"
    __version_token__ = RowVersion(name="revision")
    id: Mapped[int] = mapped_column(primary_key=True)


class Assigned(Versioned, Base):
    __tablename__ = "assigned"
    __version_token__ = Manual(Uuid(), name="revision", column="rev")
    id: Mapped[int] = mapped_column(primary_key=True)


class OwnSession(Session):
    """A session class of the application's own is what its units give, too."""


class OwnAsyncSession(AsyncSession):
    pass


engine = create_engine("sqlite://")
async_engine = create_async_engine("sqlite+aiosqlite://")
sessions = sessionmaker(engine, class_=OwnSession)
async_sessions = async_sessionmaker(async_engine, class_=OwnAsyncSession)
scoped = scoped_session(sessions)
async_scoped = async_scoped_session(async_sessions, scopefunc=lambda: None)

# -- watch: what is given comes back ---------------------------------------------------------------

assert_type(watch(sessions), sessionmaker[OwnSession])
assert_type(watch(scoped, on_conflict=merge_fields), scoped_session[OwnSession])
assert_type(watch(async_sessions), async_sessionmaker[OwnAsyncSession])
assert_type(watch(OwnSession, on_conflict={Page: store_wins}), type[OwnSession])
assert_type(watch(sessions, on_delete={Page: OnDelete.STRICT}), sessionmaker[OwnSession])

# -- units of work ---------------------------------------------------------------------------------


def units() -> None:
    with UnitOfWork(sessions) as own:
        assert_type(own, OwnSession)
        assert_type(own.get_one(Page, 1).views, int)
    with UnitOfWork(scoped, propagation="savepoint") as own:
        assert_type(own, OwnSession)
    with UnitOfWork(engine, on_conflict={Page: merge_fields, Account: reject}) as session:
        assert_type(session, Session)
    with UnitOfWork(engine, isolation=Isolation.SERIALIZABLE, read_only=True) as session:
        assert_type(session, Session)
    with serializable(sessions, on_conflict=client_wins) as own:
        assert_type(own, OwnSession)
    with repeatable_read(engine, propagation="independent") as session:
        assert_type(session, Session)

    UnitOfWork(engine, on_delete=OnDelete.IGNORE_VERSION)
    UnitOfWork(engine, on_delete="strict")  # type: ignore[call-overload]
    UnitOfWork(engine, retries=3)  # type: ignore[call-overload]
    UnitOfWork(engine, pipelined=True)
    UnitOfWork(engine, pipelined="always")  # type: ignore[call-overload]
    UnitOfWork(engine, strategy="adaptive")
    UnitOfWork(engine, strategy=Adaptive(threshold=0.2, half_life=timedelta(seconds=5)))
    UnitOfWork(engine, strategy="locking")  # type: ignore[call-overload]
    serializable(engine, isolation=Isolation.SERIALIZABLE)  # type: ignore[call-overload]


async def async_units() -> None:
    async with AsyncUnitOfWork(async_sessions) as own:
        assert_type(own, OwnAsyncSession)
        assert_type((await own.get_one(Page, 1)).body, str)
    async with AsyncUnitOfWork(async_scoped) as own:
        assert_type(own, OwnAsyncSession)
    async with AsyncUnitOfWork(async_engine, on_conflict=store_wins) as session:
        assert_type(session, AsyncSession)
    async with serializable(async_sessions) as own:
        assert_type(own, OwnAsyncSession)
    async with repeatable_read(async_engine, read_only=True) as session:
        assert_type(session, AsyncSession)

    AsyncUnitOfWork(sessions)  # type: ignore[call-overload]


# -- retry and unit in one: called without the session, the rest of the signature is kept ----------


@unit_of_work(
    sessions, retry=retrying(attempts=5, deadline=timedelta(seconds=2)), on_conflict=merge_fields
)
def rename(session: OwnSession, account_id: int, *, owner: str) -> bool:
    session.get_one(Account, account_id).owner = owner
    return True


@unit_of_work(async_sessions)
async def rename_async(session: OwnAsyncSession, account_id: int, owner: str) -> bool:
    (await session.get_one(Account, account_id)).owner = owner
    return True


@unit_of_work(engine, isolation=Isolation.REPEATABLE_READ)
def count(session: Session) -> int:
    return session.query(Account).count()


@unit_of_work(async_engine)
async def nothing(session: AsyncSession) -> None: ...


assert_type(rename(42, owner="Ada"), bool)
assert_type(count(), int)
assert_type(count, Callable[[], int])
rename(42)  # type: ignore[call-arg]
rename("42", owner="Ada")  # type: ignore[arg-type]


async def renamed() -> None:
    assert_type(await rename_async(42, "Ada"), bool)
    assert_type(await nothing(), None)
    await rename_async(42, owner=1)  # type: ignore[arg-type]


# -- retry alone -----------------------------------------------------------------------------------


def told(event: events.Retry) -> None:
    assert_type(event.attempt, int)
    assert_type(event.wait, float)


@retry
def plain(number: int) -> str:
    return str(number)


@retry(attempts=3, on=is_transient, wait_initial=0.1, wait_max=timedelta(seconds=1))
def with_options(number: int) -> str:
    return str(number)


@retry(on=(ConcurrencyError, TimeoutError), deadline=2.0, before_retry=told)
async def asynchronous(number: int) -> str:
    return str(number)


@retry(repeat_values="refuse")
def refusing() -> None: ...


@retry(repeat_values="ask")  # type: ignore[call-overload, untyped-decorator, unused-ignore]
def asking() -> None: ...


assert_type(plain(1), str)
assert_type(with_options(1), str)
plain("1")  # type: ignore[arg-type]

for attempt in retrying(attempts=3, on=ConcurrencyError):
    assert_type(attempt.number, int)
    with attempt, UnitOfWork(engine) as one:
        assert_type(one, Session)


async def loop() -> None:
    assert_type(await asynchronous(1), str)
    async for attempt in retrying():
        with attempt:
            async with AsyncUnitOfWork(async_engine) as session:
                assert_type(session, AsyncSession)


assert_type(is_transient(ValueError()), bool)

# -- conflicts and resolvers -----------------------------------------------------------------------


def higher_wins(entry: Entry[Page]) -> Resolution:
    assert_type(entry.model, type[Page])
    assert_type(entry.identity, tuple[Any, ...])
    assert_type(entry.kind, Literal["updated", "deleted"])
    assert_type(entry.action, Literal["update", "delete", "verify"])
    assert_type(entry.original, Mapping[str, Any])
    assert_type(entry.current, Mapping[str, Any])
    assert_type(entry.changes, Mapping[str, Any])
    assert_type(entry.database, Mapping[str, Any] | None)
    assert_type(entry.conflicting, frozenset[str])
    assert_type(entry.apply_to(Page()), Page)
    if entry.database is None:
        return Resolution.reject()
    if entry.action == "delete":
        return Resolution.keep_database()
    return Resolution.write({"views": max(entry.current["views"], entry.database["views"])})


async def asks_somebody(entry: Entry[Any]) -> Resolution:
    return Resolution.keep_database()


def no_resolver(entry: Entry[Any]) -> bool:
    return True


def resolvers(entry: Entry[Any]) -> None:
    for resolver in (client_wins, store_wins, merge_fields, reject, per_field(tags=merge_set)):
        assert_type(resolver(entry), Resolution)
    UnitOfWork(engine, on_conflict=higher_wins)
    AsyncUnitOfWork(async_engine, on_conflict=asks_somebody)
    UnitOfWork(engine, on_conflict=no_resolver)  # type: ignore[arg-type]


def policies() -> None:
    assert_type(merge_text("a", "b", "c"), str)
    per_field(body=merge_text, views=max, tags=merge_set, settings=merge_json, stock=add_delta)
    per_field(body="merge")  # type: ignore[arg-type]
    UnitOfWork(engine, on_conflict=merge_fields(together=[("start", "end")]))
    per_field(body=merge_text, together=(("start", "end"),))
    merge_fields(together=3)  # type: ignore[call-overload]


try:
    count()
except PreconditionFailed:
    pass
except ConcurrencyError as conflict:
    assert_type(conflict.entries, tuple[Entry[Any], ...])
except (CommitOutcomeUnknown, CannotMerge, ConfigurationError) as error:
    root: OptilockError = error
    bad_input: ValueError = ConfigurationError("what to write instead")

# -- the type of a version -------------------------------------------------------------------------


class Plain(Versioned, Base):
    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)


class Dated(Versioned, Base):
    __tablename__ = "dated"
    __version_token__ = Timestamp()
    id: Mapped[int] = mapped_column(primary_key=True)


class Numbered(Versioned, Base):
    __tablename__ = "numbered"
    __version_token__ = RowVersion()
    id: Mapped[int] = mapped_column(primary_key=True)


class Ours(Versioned, Base):
    __tablename__ = "ours"
    __version_token__ = Manual(Uuid())
    id: Mapped[int] = mapped_column(primary_key=True)


class Both(Versioned, Base):
    __tablename__ = "both"
    __version_token__ = (Counter(), CompareValues("id"))
    id: Mapped[int] = mapped_column(primary_key=True)


assert_type(Plain().version, int)
assert_type(Page().version, UUID)
assert_type(Dated().version, datetime)
assert_type(Numbered().version, int)
assert_type(Ours().version, Any)
assert_type(Both().version, int)
Ours().version = UUID(int=1)
select(Plain).where(Plain.version == 3).order_by(Page.version.desc())

# -- versions and events ---------------------------------------------------------------------------

assert_type(etag_of(Page()), str)
assert_type(expect(Page(), '"3"'), None)
assert_type(expect(Page(), version=3), None)
assert_type(verify(Page()), None)
whole: Scope = Page.scope()
assert_type(etag_of(sessions(), whole), str)
assert_type(expect(sessions(), whole, '"3"'), None)
assert_type(verify(scoped, whole), None)
assert_type(verify(sessions(), whole, select(Page)), list[Any])
assert_type(lock(sessions(), whole), bool)
assert_type(apply(sessions(), Page, 1, {"title": "New"}, expected=3), Page)
assert_type(apply(scoped, Page, 1, {"title": "New"}, expected=3), Page)
assert_type(bulk_update(scoped, Page, []), BulkResult)
assert_type(apply(sessions(), Page, 1, {}, expected="", seen={"title": "Old"}), Page)
assert_type(merge_changes(sessions(), Page, 1, {}, seen="", etags=ETags()), Page)
assert_type(EditForm(Page, ["title"], etags=ETags()).save(sessions(), 1, {}), FilledForm | None)
assert_type(EditForm(Page, ["title"], etags=ETags()).of(Page()), FilledForm)
assert_type(sign_seen(Page(), ["title"], etags=ETags()), str)


@events.listen
def heard(event: events.Event) -> None:
    match event:
        case events.Conflict(entries) | events.Resolved(entries):
            assert_type(entries, tuple[Entry[Any], ...])
        case events.Retry(number, wait, error, name):
            assert_type((number, wait, error), tuple[int, float, BaseException])
            assert_type(name, str | None)
        case events.Committed(attempts, seconds):
            assert_type((attempts, seconds), tuple[int, float])


events.unlisten(heard)
with events.listening(heard) as listener:
    listener(events.Failed(ValueError(), 1, 0.5, "transfer"))
UnitOfWork(sessions, name="transfer")

# -- touches and bookkeeping -----------------------------------------------------------------------


def touched(session: Session, page: Page) -> None:
    assert_type(touch(page), None)
    with no_bump(session, Page, page) as nothing:
        assert_type(nothing, None)


async def touched_async(session: AsyncSession, page: Page) -> None:
    async with no_bump(session, page):
        page.views += 1


# -- entities --------------------------------------------------------------------------------------


def entities_written(session: Session, tag: str) -> None:
    stored = entities.insert(session, Page, 7, {"title": "Start"}, if_none_match="*")
    assert_type(stored, Stored)
    assert_type(stored.etag, str | None)
    assert_type(entities.merge(session, Page, 7, {"title": "a"}, if_match=[tag]), Stored)
    assert_type(entities.replace(session, Page, 7, if_match=entities.Version(3)), Stored)
    assert_type(entities.delete(session, Page, 7, if_match="*"), Stored)
    entities.merge(session, Page, 7, {"title": "a"}, iff_match=tag)  # type: ignore[call-arg]
    entities.merge(session, Page, 7, {"title": "a"}, etags=tag)  # type: ignore[arg-type]
    entities.delete(session, Page, 7, {"title": "a"})  # type: ignore[call-arg]
    some = [Operation(entities.insert_or_merge, Page, 7, {"title": "a"})]
    assert_type(entities.transaction(session, some), list[Stored])
    again = Idempotency(None, keys=["k" * 16], principal="ada")
    assert_type(again.key_for(Page), UUID)
    once = once_of("POST", "/pages", None, principal="ada", of={"title": "a"}, wait=5)
    assert_type(once, Once | None)
    unit_of_work(sessions, exactly_once=lambda once: once)
    once_of("POST", "/pages", None, of={"title": "a"})  # type: ignore[call-arg]
    assert_type(entities.insert(session, Page, None, idempotency=again).again, bool)
    assert_type(entities.transaction(session, some, idempotency=again), list[Stored])


async def entities_written_async(session: AsyncSession, tag: str) -> None:
    assert_type(
        await optilock.asyncio.merge(session, Page, 7, {"title": "a"}, if_match=tag), Stored
    )
    assert_type(await optilock.asyncio.delete(session, Page, 7, if_match=tag), Stored)
    await optilock.asyncio.delete(session, Page, 7, iff_match=tag)  # type: ignore[call-arg]
    assert_type(await optilock.asyncio.transaction(session, []), list[Stored])


# -- testing ---------------------------------------------------------------------------------------


def stepped(given: Engine, async_given: AsyncEngine) -> None:
    with interleave(sessions, "ada", "bob") as sides:
        assert_type(sides, tuple[Side[OwnSession], ...])
        ada, bob = sides
        assert_type(ada.do(lambda session: session.get_one(Page, 1)), Page)
        step = bob.start(lambda session: session.get_one(Page, 1).views)
        assert_type(step, Step[int])
        assert_type(step.blocked(), Step[int])
        assert_type(step.result(timeout=1.0), int)
        ada.commit()
        ada.rollback()
    with interleave(lambda: UnitOfWork(sessions), "ada") as (only,):
        assert_type(only.do(lambda session: session), OwnSession)
    with count_statements(given) as sent, count_statements(async_given):
        assert_type(sent, Sent)
        assert_type(sent.statements, tuple[Statement, ...])
        assert_type(sent.count, int)
    with postgresql() as server, mariadb() as other:
        assert_type(server, Server)
        assert_type(other.url, str)
    with Faults(given) as faults, Faults(async_given), faults.commit_lost(stored=True) as fault:
        assert_type(faults, Faults)
        assert_type(fault, Fault)
        assert_type(fault.met, int)
        assert_type(faults.cut(statement=3, times=2), Fault)
        assert_type(faults.conflict(Page, 1, title="theirs"), Fault)
        assert_type(faults.deadlock(), Fault)
    with wire(engine.url) as line, line.counting() as trips:
        assert_type(line, Wire)
        assert_type(line.url, str)
        assert_type(trips, Trips)
        assert_type(trips.count, int)


class Leased(leases.Leasable, Versioned, Base):
    __tablename__ = "leased"
    __lease_policy__ = leases.LeasePolicy(longest=300, guards=("delete",))
    id: Mapped[int] = mapped_column(primary_key=True)


class Price(Versioned, Base):
    __tablename__ = "prices_leased"
    __lease_policy__ = leases.LeasePolicy(all_rows=leases.Name("prices"))
    id: Mapped[int] = mapped_column(primary_key=True)


def leased(session: Session, given: Engine) -> None:
    leases.prepare(session, Price)
    assert_type(leases.acquire(session, Price, 30), leases.Lease)
    lease = leases.acquire(session, (Leased, 1), timedelta(seconds=30), if_match="*")
    assert_type(lease, leases.Lease)
    assert_type(lease.fence, int | None)
    assert_type(leases.renew(session, lease), leases.Lease)
    leases.change(session, leases.acquire(session, (Leased, 1), 30, holder="ada"), holder=None)
    assert_type(leases.look(session, (Leased, 1)).holder, str | None)
    assert_type(leases.look(session, leases.Name("import")), leases.LeaseState)
    assert_type(leases.break_(session, (Leased, 1), after=5), leases.LeaseState)
    assert_type(leases.read(session, Leased, 1, str(lease.id)), Leased | None)
    leases.use(session, lease)
    with leases.lease(given, (Leased, 1), 30, on_lost=print, holder="ada") as held:
        assert_type(held, leases.Held)
        assert_type(held.lost, leases.LeaseLost | None)
        with UnitOfWork(given, parts=[held, leases.Under(lease)]):
            pass


async def leased_async(given: AsyncEngine) -> None:
    async with optilock.asyncio.lease(given, (Leased, 1), leases.ENDLESS) as held:
        assert_type(held, leases.Held)


# -- queues: each call is declared once, and typed for threads and for asyncio ---------------------


def send(session: Session, engine: Engine) -> None:
    with Queue(engine, "mails") as mails:
        assert_type(mails.send({"to": "ada"}, session=session, delay=5), SentMessage)
        assert_type(mails.send_many([1, Draft(2, dedup="2")]), list[SentMessage])
        assert_type(mails.receive(10, wait=timedelta(seconds=1)), Received)
        for message in mails.receive(10):
            assert_type(message, Message)
            assert_type(mails.fail(message, ValueError("no")), bool)
        assert_type(mails.dead_letters, Queue)
        assert_type(mails.redrive(5), int)
        assert_type(mails.cancel(7, session=session), bool)
        assert_type(queues(engine), list[QueueSummary])
        assert_type(mails.metrics(exact=True).waiting, int)
        assert_type(mails.worker(print, concurrency=4, timeout=30), Worker)
        mails.send(1, sesion=session)  # type: ignore[call-arg]
        mails.delete(message, session=engine)  # type: ignore[arg-type]


async def send_async(session: AsyncSession, engine: AsyncEngine, sync: Session) -> None:
    async def handle(message: Message) -> None: ...

    async with AsyncQueue(engine, "mails") as mails:
        assert_type(await mails.send({"to": "ada"}, session=session), SentMessage)
        found = await mails.receive(10)
        assert_type(found, Received)
        assert_type(await mails.beat(found, visibility=60), set[int])
        await mails.delete(*found, session=session)
        await mails.delete(*found, session=sync)  # type: ignore[arg-type]
        assert_type(mails.dead_letters, AsyncQueue)
        assert_type(await mails.cancel(7), bool)
        assert_type(await queues(engine), list[QueueSummary])
        mails.worker(handle)
        mails.worker(print)  # type: ignore[arg-type]


# -- units that are stored exactly once ------------------------------------------------------------


@unit_of_work(sessions, exactly_once=lambda number: Once(("ada", f"{number}"), of=number, wait=0))
def pay(session: Session, number: int) -> dict[str, int]:
    after_commit(session, print, number)
    after_commit(session, pay_later, "7")  # type: ignore[arg-type]
    return {"number": number}


def pay_later(number: int) -> None: ...


@unit_of_work(async_sessions, exactly_once=("ada", "k"))
async def pay_async(session: AsyncSession, number: int) -> int:
    after_commit(session, pay_async, number)
    return number


async def once(error: CommitOutcomeUnknown, lost: AlreadyDone | KeyReused | KeyInUse) -> None:
    assert_type(pay(7), dict[str, int])
    assert_type(await pay_async(7), int)
    assert_type(error.token, str | None)
    assert_type(lost.key, str)
    assert_type(committed(sessions, error.token or ""), bool)
    assert_type(await optilock.asyncio.committed(async_sessions, "~"), bool)
    assert_type(purge(engine, tokens=timedelta(days=2), batches=3), int)
    assert_type(await optilock.asyncio.purge(async_engine), int)
    committed(async_engine, "~")  # type: ignore[arg-type]
    purge(engine, age=3)  # type: ignore[call-arg]
    UnitOfWork(engine, exactly_once=7)  # type: ignore[call-overload]
    with serializable(engine, exactly_once=True) as session:
        set_result(session, {"any": "value"})


def explores(engine: Engine) -> None:
    from optilock.testing import Exploration, assert_serializable, explore, replay

    def unit() -> int:
        return 1

    found: Exploration = explore(unit, unit, sessions=engine, reset=unit, limit=10)
    found.require_serializable(partial=True)
    assert_serializable(unit, unit, partial=True, sessions=engine, reset=unit)
    left: frozenset[str] = replay("ab", unit, unit, sessions=engine, reset=unit).gave_up
    assert left is not None
