"""``optilock check``: drivers and settings that make the check void, or weaker."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, event, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.check import Severity, check

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def base(engine):
    class Base(DeclarativeBase):
        pass

    class Page(Versioned, Base):
        __tablename__ = "ck_pages"
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.kept = Page
    Base.metadata.create_all(engine)
    return Base


def about_connection(findings):
    return {(f.code, f.severity) for f in findings if f.subject == "connection"}


def test_a_driver_that_counts_no_rows_is_an_error(engine, base, monkeypatch):
    monkeypatch.setattr(engine.dialect, "supports_sane_rowcount", False)
    assert ("no-row-counts", Severity.ERROR) in about_connection(check(base, engine))


@pytest.mark.engines("sqlite-wal")
def test_a_sqlite_engine_that_sends_begin_itself_is_sound(database, base):
    """SQLAlchemy's own recipe for transactions that hold (dialects/sqlite.html)."""
    engine = database.engine(connect_args={"isolation_level": None})
    assert ("autocommit", Severity.ERROR) in about_connection(check(base, engine))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    assert about_connection(check(base, engine)) == set()
    engine.dispose()


@pytest.mark.engines("mariadb")
def test_a_connection_that_counts_changed_rows_is_an_error(engine, base):
    import pymysql

    url = engine.url
    made = create_engine(
        "mysql+pymysql://",
        creator=lambda: pymysql.connect(
            host=url.host, port=url.port, user=url.username, database=url.database
        ),
    )
    assert ("counts-changed-rows", Severity.ERROR) in about_connection(check(base, made))
    assert ("counts-changed-rows", Severity.ERROR) not in about_connection(check(base, engine))
    made.dispose()


@pytest.mark.engines("postgresql")
class TestPooler:
    """One that stands between tells another process number than the server has."""

    def test_prepared_statements_through_it_are_told(self, engine, base):
        with pooled(engine.url) as url:
            made = create_engine(url)
            assert about_connection(check(base, made)) == {("pooled-prepared", Severity.WARNING)}
            made.dispose()

    def test_without_prepared_statements_it_is_sound(self, engine, base):
        with pooled(engine.url) as url:
            made = create_engine(url, connect_args={"prepare_threshold": None})
            assert about_connection(check(base, made)) == set()
            made.dispose()

    def test_statements_that_asyncpg_numbers_are_told(self, engine, base):
        with pooled(engine.url) as url:
            made = create_async_engine(
                url.set(drivername="postgresql+asyncpg", query={}), connect_args={"ssl": False}
            )
            assert about_connection(check(base, made)) == {("pooled-prepared", Severity.WARNING)}

    def test_statements_with_names_of_their_own_are_sound(self, engine, base):
        with pooled(engine.url) as url:
            names = {"prepared_statement_name_func": lambda: f"__{uuid4()}__"}
            made = create_async_engine(
                url.set(drivername="postgresql+asyncpg", query={}),
                connect_args={"ssl": False, "statement_cache_size": 0, **names},
            )
            assert about_connection(check(base, made)) == set()

    def test_without_a_pooler_it_is_sound(self, engine, base):
        assert about_connection(check(base, engine)) == set()


@contextmanager
def pooled(url):
    """The server behind something that gives its own process number, as PgBouncer does."""
    server = make_url(url)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            upstream = socket.create_connection((server.host, server.port))
            for a, b, change in ((client, upstream, bytes), (upstream, client, another_number)):
                threading.Thread(target=forward, args=(a, b, change), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    port = listening.getsockname()[1]
    try:
        yield server.set(port=port).update_query_dict({"sslmode": "disable"})
    finally:
        listening.close()


def forward(source, target, change):
    try:
        while data := source.recv(65536):
            target.sendall(change(data))
    except OSError:
        pass
    finally:
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)  # closing alone tells nothing while it is read
        target.close()


def another_number(data):
    """BackendKeyData: ``K``, the length 12, the process, and its key."""
    head = b"K\x00\x00\x00\x0c"
    at = data.find(head)
    return data if at < 0 else data[: at + 5] + b"\x00\x00\x00\x07" + data[at + 9 :]
