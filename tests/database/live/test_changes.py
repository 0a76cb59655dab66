"""Open pages are told of changes of their rows: after COMMIT, and of none too few."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import ExitStack, asynccontextmanager
from datetime import date
from functools import partial

import psycopg
import pytest
from sqlalchemy import JSON, Date, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import Versioned
from optilock.errors import ConfigurationError, NotFound
from optilock.live import Changes
from optilock.live.rows import RowState
from optilock.live.streams import Follower
from optilock.preconditions.entity_tags import ETags
from tests.support.failing_servers import restarted
from tests.support.models import Account, Native, Note, Seat
from tests.support.waiting import until, until_awaited

pytestmark = pytest.mark.anyio


class Base(DeclarativeBase):
    pass


class Draft(Versioned, Base):
    __tablename__ = "drafts"
    __version_notify__ = True
    __version_author__ = "changed_by"
    __version_ignore__ = ("views",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str | None] = mapped_column("the title")
    body: Mapped[str | None]
    views: Mapped[int] = mapped_column(default=0)
    changed_by: Mapped[str | None]


class Day(Versioned, Base):
    """Its key has no one text, and its content has none in ``jsonb``."""

    __tablename__ = "days"
    __version_notify__ = True
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    content: Mapped[object] = mapped_column(JSON)


class Page:
    """One open page."""

    def __init__(self, stream) -> None:
        self._events = aiter(stream)
        self._waiting = None

    async def open(self):
        assert (await anext(self._events)).startswith(b"retry: ")
        self.listen()
        return self

    def listen(self):
        self._waiting = asyncio.create_task(self._next())

    async def _next(self):
        while (event := await anext(self._events)).startswith(b":"):
            pass
        return event.decode()

    @property
    def is_told(self):
        return self._waiting.done()

    async def told(self):
        """The data of the next event; its id is the tag."""
        *ids, data = (await self._waiting).splitlines()[:-1]
        found = json.loads(data.removeprefix("data: "))
        assert ids == ([f"id: {found['tag']}"] if found["tag"] else [])
        self.listen()
        return found

    async def close(self):
        self._waiting.cancel()
        await asyncio.gather(self._waiting, return_exceptions=True)
        await self._events.aclose()


@asynccontextmanager
async def pages(changes, *rows, **options):
    opened = []
    for model, key in rows:
        stream = await changes.stream(model, key, **{"authorize": None, **options})
        opened.append(await Page(stream).open())
    try:
        yield opened
    finally:
        for page in opened:
            await page.close()


def write(engine, model, key, **values):
    with Session(engine) as session, session.begin():
        row = session.get_one(model, key)
        for name, value in values.items():
            setattr(row, name, value)


@asynccontextmanager
async def following(engine, *rows, **options):
    """Pages of a process that listens."""
    async with Changes(engine, dsn=engine.url, **options) as changes, pages(changes, *rows) as all_:
        yield all_


@pytest.fixture
def drafts(engine, store):
    store(*(Draft(id=n, title="old", body="old") for n in range(1, 301)))
    yield
    with engine.begin() as connection:
        Base.metadata.drop_all(connection)


on_postgresql = pytest.mark.engines("postgresql")


@on_postgresql
async def test_a_page_is_told_after_commit_and_of_no_rollback(engine, drafts):
    async with following(engine, (Draft, 1), (Draft, 2), (Draft, 1)) as (one, two, again):
        for key, opened in ((1, (one, again)), (2, (two,))):
            write(engine, Draft, key, body="first")
            for page in opened:  # the look of its opening is over then, which knows no fields
                await page.told()
        with Session(engine) as session:
            session.get_one(Draft, 1).title = "undone"
            session.flush()
            session.rollback()
            page = session.get_one(Draft, 1)
            page.title, page.changed_by = "new", "Ada"
            session.flush()
            write(engine, Draft, 2, body="new", changed_by="Bob")
            told = await two.told()
            assert (told["by"], told["fields"], told["deleted"]) == ("Bob", ["body"], False)
            assert not one.is_told
            session.commit()
        told = await one.told()
        assert (told["by"], told["fields"]) == ("Ada", ["title"])
        assert told == await again.told()

        with engine.begin() as connection:
            connection.execute(text("UPDATE drafts SET views = 7 WHERE id = 2"))
            connection.execute(text("DELETE FROM drafts WHERE id = 1"))
        assert (await one.told())["deleted"]
        assert not two.is_told


@on_postgresql
async def test_a_statement_sends_one_notice(engine, drafts):
    url = make_url(engine.url).set(drivername="postgresql")
    listener = await psycopg.AsyncConnection.connect(
        url.render_as_string(hide_password=False), autocommit=True
    )
    async with listener, Changes(engine, dsn=engine.url) as changes:
        await listener.execute("LISTEN optilock_changes")
        async with pages(changes, (Draft, 7), (Draft, 8)) as (seven, eight):
            with engine.begin() as connection:
                for chosen, set_ in (
                    ("id > 0", "body = 'all', version = version + 1"),
                    ("id IN (7, 9)", "body = 'two', version = version + 1"),
                    ("id = -1", "body = 'none', version = version + 1"),
                    ("id = 8", "id = 8000"),
                ):
                    connection.execute(text(f"UPDATE drafts SET {set_} WHERE {chosen}"))
            with engine.begin() as connection:
                connection.execute(text("TRUNCATE drafts"))
            assert (await seven.told())["deleted"]
            assert (await eight.told())["deleted"]
        notices = [json.loads(one.payload) async for one in listener.notifies(stop_after=4)]
    assert [notice["table"] for notice in notices] == ["drafts"] * 4
    whole, two, moved, truncated = (notice["rows"] for notice in notices)
    assert whole is truncated is None
    assert sorted(two, key=str) == [[{"id": n}, ["body", "version"]] for n in (7, 9)]
    assert sorted(moved, key=str) == [[{"id": 8000}, ANY], [{"id": 8}, None]]


class _Any:
    def __eq__(self, other):
        return True


ANY = _Any()


@on_postgresql
async def test_nothing_is_missed_while_the_listener_is_away(engine, drafts, caplog):
    allow = "UPDATE pg_database SET datallowconn = {} WHERE datname = current_database()"
    listens = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN optilock_changes%'"
    async with following(engine, *((Draft, n) for n in range(1, 21))) as opened:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as admin:
            admin.execute(text(allow.format("false")))
            try:
                pids = admin.scalars(text(f"SELECT pg_terminate_backend(pid) FROM ({listens})"))
                assert pids.all() == [True]
                until(lambda: not admin.scalars(text(listens)).all())
                admin.execute(
                    text("UPDATE drafts SET body = 'new', version = version + 1 WHERE id < 21")
                )
                await until_awaited(lambda: "is cut off" in caplog.text)
            finally:
                admin.execute(text(allow.format("true")))
        for page in opened:
            assert (await page.told())["fields"] is None
        write(engine, Draft, 3, title="after it")
        assert (await opened[2].told())["fields"] == ["title"]


@pytest.mark.full
@on_postgresql
async def test_no_page_is_behind_after_the_server_was_killed(engine, drafts):
    """Each of 200 pages is told of the write after it; that before it is perhaps not kept."""
    rows = [(Draft, n) for n in range(1, 201)]
    write_all = text("UPDATE drafts SET body = 'new', version = :version WHERE id < 201")
    async with following(engine, *rows) as opened:
        with engine.begin() as connection:
            connection.execute(write_all, {"version": 2})
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, restarted(engine))
            with engine.begin() as connection:
                connection.execute(write_all, {"version": 3})
            for page in opened:
                while not (await page.told())["tag"].endswith('.3"'):
                    pass


@on_postgresql
async def test_an_error_of_the_question_is_no_change_that_is_missed(engine, drafts, caplog):
    caplog.set_level(logging.WARNING, "optilock")
    async with (
        Changes(engine, dsn=engine.url) as changes,
        pages(changes, (Draft, 1)) as (page,),
    ):
        with Session(engine) as session, session.begin():
            session.execute(text("ALTER TABLE drafts RENAME COLUMN version TO hidden"))
            session.execute(text("UPDATE drafts SET hidden = 5 WHERE id = 1"))
        await until_awaited(lambda: "tries again" in caplog.text)
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE drafts RENAME COLUMN hidden TO version"))
        assert (await page.told())["tag"].endswith('.5"')


@on_postgresql
async def test_a_table_without_triggers_is_asked_for_and_any_notice_is_taken(
    engine, store, drafts, caplog
):
    store(Account(id=1, owner="Ada"))
    rows = [(Account, 1), (Account, 1), (Draft, 1)]
    async with following(engine, *rows, poll=0.01) as (one, two, draft):
        assert caplog.text.count("op.add_change_notice('accounts')") == 1
        write(engine, Account, 1, balance=5)
        assert (await one.told())["fields"] is None
        await two.told()
        assert not draft.is_told
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE drafts DISABLE TRIGGER USER"))
        write(engine, Draft, 1, title="unnoticed")
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_notify('optilock_changes', 'what is this?')"))
        assert (await draft.told())["fields"] is None
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE drafts ENABLE TRIGGER USER"))


@on_postgresql
async def test_a_row_that_no_notice_can_show_is_written_and_told_of(engine, store):
    today = date(2026, 1, 31)
    store(Day(day=today, content="old"))
    async with (
        Changes(engine, dsn=engine.url) as changes,
        pages(changes, (Day, today)) as (day,),
    ):
        write(engine, Day, today, content="new")
        assert (await day.told())["fields"] is None
        write(engine, Day, today, content="a \x00")
        assert (await day.told())["tag"].endswith('.3"')
    with engine.begin() as connection:
        Base.metadata.drop_all(connection)


@pytest.mark.parametrize(
    ("row", "key", "change"),
    [
        (partial(Account, id=1, owner="Ada"), 1, {"balance": 5}),
        (partial(Seat, show="Aida", number=7, guest="Ada"), ("Aida", 7), {"guest": "Bob"}),
        (partial(Note, id=1, text="old"), "1", {"text": "new"}),
        (partial(Native, id=1, text="old"), 1, {"text": "new"}),
    ],
    ids=["counter", "two columns", "unique", "without the mixin"],
)
async def test_rows_are_asked_for_on_every_database(engine, store, row, key, change):
    model = row.func
    store(row())
    async with Changes(engine, poll=0.01) as changes, pages(changes, (model, key)) as (page,):
        identity = tuple(key) if isinstance(key, tuple) else int(key)
        write(engine, model, identity, **change)
        told = await page.told()
        assert (told["fields"], told["deleted"]) == (None, False)
        with Session(engine) as session, session.begin():
            session.delete(session.get_one(model, identity))
        assert (await page.told())["deleted"]


@pytest.mark.parametrize("async_database", ["postgresql-asyncpg", "sqlite-wal"], indirect=True)
async def test_an_async_engine_asks_too(async_engine, async_store, async_database):
    async_store(Account(id=1, owner="Ada"))
    async with Changes(async_engine, poll=0.01) as changes, pages(changes, (Account, 1)) as (page,):
        other = async_database.engine()
        write(other, Account, 1, balance=5)
        other.dispose()
        assert (await page.told())["tag"].endswith('.2"')


async def test_a_row_that_may_not_be_read_is_not_there(engine, store, account):
    asked = []

    def refuse(row):
        asked.append(row.owner)
        return False

    async def allow(row):
        return True

    async with Changes(engine) as changes:
        for key, authorize in ((1, refuse), (3, None), ("one", None)):
            with pytest.raises(NotFound):
                await changes.stream(account, key, authorize=authorize)
        assert asked == ["Ada"]
        with pytest.raises(ConfigurationError, match="plain function"):
            await changes.stream(account, 1, authorize=allow)
        with pytest.raises(ConfigurationError, match="a mapped class with a version"):
            await changes.stream(Base, 1, authorize=None)
    with pytest.raises(ConfigurationError, match="async with changes"):
        await changes.stream(account, 1, authorize=None)
    with pytest.raises(ConfigurationError, match="seconds above 0"):
        Changes(engine, poll=0)


async def test_a_page_that_comes_back_is_told_at_once_if_the_row_has_moved(engine, account):
    tags = ETags(keys=["a secret of many bytes"])
    async with Changes(engine, poll=0.01, etags=tags) as changes:
        with Session(engine) as session:
            seen = tags.of(session.get_one(account, 1))
        async with pages(changes, (account, 1), seen=seen) as (current,):
            write(engine, account, 1, balance=5)
            moved = await current.told()
        assert moved["tag"] != seen
        async with pages(changes, (account, 1), seen=seen) as (stale,):
            assert (await stale.told())["tag"] == moved["tag"]
        forged = ETags()
        async with pages(changes, (account, 1), seen=moved["tag"], etags=forged) as (other,):
            assert (await other.told())["tag"] == forged.of_row(account.__mapper__, (1,)).tag(2)


async def test_a_silent_stream_sends_comments_and_ends_with_its_time_or_its_process(
    engine, account
):
    async with Changes(engine, heartbeat=0.001, lifetime=0.02) as changes:
        stream = await changes.stream(account, 1, authorize=None)
        assert {line async for line in stream if line.startswith(b":")} == {b": still here\n\n"}
    async with Changes(engine) as changes:
        events = aiter(await changes.stream(account, 1, authorize=None))
        await anext(events)
        rest = asyncio.create_task(_all(events))
        await until_awaited(lambda: not rest.done())
    assert len(await rest) <= 1


async def _all(events):
    return [event async for event in events]


async def test_a_slow_page_gets_the_newest_state_with_all_fields():
    page = Follower((1, False))
    page.tell(RowState((7,), 1))
    assert not page.arrived.is_set()
    page.tell(RowState((7,), 2, fields=frozenset({"title"})))
    page.tell(RowState((7,), 3, "Ada", fields=frozenset({"body"})))
    row = await page.next(60)
    assert (row.version, row.by, row.fields) == (3, "Ada", {"title", "body"})
    page.tell(RowState((7,), 4, fields=frozenset({"title"})))
    page.tell(RowState((7,), 5))
    row = await page.next(60)
    assert (row.version, row.fields) == (5, None)


@pytest.mark.engines("sqlite")
async def test_a_class_that_cannot_be_read_holds_up_no_other_one(engine, drafts, store, caplog):
    store(Day(day=date(2026, 1, 1), content={}))
    rows = (Day, date(2026, 1, 1)), (Draft, 1)
    async with Changes(engine, poll=0.01) as changes, pages(changes, *rows) as (_, page):
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE days RENAME TO others"))
        await until_awaited(lambda: "tries again" in caplog.text)
        write(engine, Draft, 1, title="new")
        assert (await page.told())["tag"]


def test_it_runs_again_in_another_loop(engine, account):
    changes = Changes(engine)

    async def run():
        async with changes, pages(changes, (account, 1)):
            pass

    asyncio.run(run())
    asyncio.run(run())


@on_postgresql
async def test_rows_whose_triggers_have_gone_are_asked_for_too(engine, drafts, monkeypatch):
    monkeypatch.setattr("optilock.live.changes._SELDOM", 0.01)
    async with following(engine, (Draft, 1), poll=0.01) as (page,):
        write(engine, Draft, 1, title="first")
        await page.told()  # so the look of its opening is over
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE drafts DISABLE TRIGGER USER"))
        write(engine, Draft, 1, title="new")
        assert (await page.told())["tag"]


@on_postgresql
async def test_a_listener_of_another_database_is_refused(engine, drafts, monkeypatch):
    monkeypatch.setattr("optilock.live.listener._PATIENCE", 0.2)
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("CREATE DATABASE elsewhere"))
        with pytest.raises(ConfigurationError, match="another database than the sessions"):
            async with Changes(engine, dsn=engine.url.set(database="elsewhere")):
                pass
        connection.execute(text("DROP DATABASE elsewhere WITH (FORCE)"))
