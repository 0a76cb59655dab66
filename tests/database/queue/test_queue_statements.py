"""On PostgreSQL a queue sends its own statements by psycopg's cursor, and reads the index alone."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from optilock.queue import AsyncQueue, Draft, Queue
from tests.support.queues import bodies, make_tables

pytestmark = pytest.mark.engines("postgresql")

_MANY = text(
    "INSERT INTO optilock_message (tenant, queue, visible_at, sent_at, receives, body)"
    " SELECT '', 'work', now() - interval '1 hour', now(), 0, n::text"
    " FROM generate_series(1, 20000) AS n"
)


@pytest.fixture
def queue(engine):
    make_tables(engine)
    with Queue(engine, "work") as queue:
        yield queue


@pytest.fixture
def described(monkeypatch):
    """The statements whose columns were asked for, as SQLAlchemy does after each of its own."""
    asked = []
    for cursors in (psycopg.Cursor, psycopg.AsyncCursor):
        description = cursors.description.fget

        def counted(self, description=description):
            asked.append(self._query.query.decode())
            return description(self)

        monkeypatch.setattr(cursors, "description", property(counted))
    return asked


def _hear(*given):
    pass


def rows_read(queue: Queue, engine) -> tuple[int, int]:
    """Rows of the table that were read without an index, and with one."""
    [kept] = queue.connections._idle
    kept.execute(text("SELECT pg_stat_force_next_flush()"))
    with engine.connect() as connection:
        return connection.execute(
            text(
                "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables"
                " WHERE relname = 'optilock_message'"
            )
        ).one()


@pytest.mark.parametrize("along", [True, False], ids=["in one trip", "in two trips"])
def test_a_plan_of_a_small_table_is_not_kept_for_a_large_one(queue, engine, along):
    def take(times: int) -> None:
        done = []
        for _ in range(times):
            done = queue.receive(2, done=done)
            if not along:
                queue.delete(*done)
                done = []

    queue.send_many(range(40))
    take(20)  # the driver prepares a statement at the sixth time, and PostgreSQL keeps plans then
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE) optilock_message"))
    queue.send_many(range(40))
    take(20)
    with engine.begin() as connection:
        connection.execute(_MANY)
    before = rows_read(queue, engine)
    take(10)
    after = rows_read(queue, engine)
    assert after[0] == before[0]
    assert after[1] - before[1] <= 100


def test_metrics_of_a_small_queue_do_not_read_the_messages_of_others(queue, engine):
    with engine.begin() as connection:
        connection.execute(_MANY)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE) optilock_message"))
    found = queue.metrics()
    assert (found.waiting, found.hidden, found.dead, found.exact) == (10_001, 0, 0, False)
    with Queue(engine, "small") as small:
        small.send_many([1, 2, Draft(3, group="g")])
        before = rows_read(small, engine)
        assert small.metrics().waiting == 3
        after = rows_read(small, engine)
    assert after[0] == before[0]
    assert after[1] - before[1] <= 20


def test_sqlalchemy_sends_none_of_them(queue, described):
    """Nor after a listener of all engines has come and gone."""
    for change in (event.listen, event.remove):
        change(Engine, "before_cursor_execute", _hear)
    queue.send("a")
    queue.send_many("bcd")
    found = queue.receive(2, done=queue.receive())
    queue.delete(*found)
    queue.delete(*queue.receive())
    assert not [sql for sql in described if "optilock_message" in sql and "body" in sql]


@pytest.mark.anyio
async def test_in_asyncio_sqlalchemy_sends_none_of_them(queue, database, described):
    engine = create_async_engine(database.url)
    async with AsyncQueue(engine, "work") as letters:
        await letters.send("a")
        found = await letters.receive(2, done=await letters.receive())
        assert found == []
    await engine.dispose()
    assert not [sql for sql in described if "optilock_message" in sql and "body" in sql]


@pytest.mark.parametrize("seen_by", ["before_cursor_execute", "do_execute"])
def test_a_listener_sees_them_and_changes_nothing(queue, engine, seen_by):
    queue.send({"to": "ada"}, headers={"a": 1})
    (unseen,) = queue.receive()
    queue.fail(unseen, "again", delay=0)
    statements = []

    def listener(*given):
        statements.extend(one for one in given if isinstance(one, str))

    event.listen(engine, seen_by, listener)
    (seen,) = queue.receive()
    event.remove(engine, seen_by, listener)
    assert len([sql for sql in statements if sql.startswith("WITH found")]) == 1
    for name in ("id", "body", "headers", "sent_at", "expires_at"):
        assert getattr(seen, name) == getattr(unseen, name)
    assert seen.visible_at > unseen.visible_at
    assert (unseen.receives, seen.receives) == (1, 2)


def test_an_error_names_its_statement_and_hides_its_parameters(queue, database):
    engine = create_engine(database.url, hide_parameters=True)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE optilock_message ADD CHECK (body <> '\"secret\"')"))
    with Queue(engine, "work") as hiding:
        with pytest.raises(DBAPIError) as caught:
            hiding.send("secret")
        assert caught.value.statement.startswith("INSERT INTO optilock_message")
        assert "[SQL parameters hidden" in str(caught.value)
        hiding.send("public")
        assert bodies(hiding.receive()) == ["public"]
    engine.dispose()
