"""What a class demands of every session: asked where its rows are written, and paid nowhere else.

A row that can be leased, or opened, is protected in every watched session and unit. What each class
asks of its rows is tested beside it (``tests/database/leases``, ``tests/database/shares``). Here is
what both have in common: nobody can ask a text or an upsert, so it is refused, also as the first
statement of a session; and a session that writes other rows is as light as if there were no such
class in the program.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import DDL, Sequence, delete, event, insert, lambda_stmt, select, text, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import ConfigurationError, UnitOfWork, Versioned, watch
from optilock._watched.guard import connection as guarded_connections
from optilock._watched.session.record import SessionRecord
from optilock.leases import ENDLESS, Leasable, LeaseHeld, acquire
from optilock.shares import Shared, SharingViolation
from optilock.shares import open as open_handle
from optilock.tables.names import SHARES
from optilock.testing import count_statements
from tests.support.models import key, own_base
from tests.support.work import calls_of

Base = own_base()


class Kept(Leasable, Versioned, Base):
    __tablename__ = "standing_kept"
    id: Mapped[int] = key()
    title: Mapped[str] = mapped_column(default="")


class Opened(Shared, Versioned, Base):
    __tablename__ = "standing_opened"
    id: Mapped[int] = key()
    title: Mapped[str] = mapped_column(default="")


class Free(Versioned, Base):
    __tablename__ = "standing_free"
    id: Mapped[int] = key()
    title: Mapped[str] = mapped_column(default="")


@pytest.fixture
def rows(store: Any, engine: Any) -> None:
    with engine.begin() as connection:
        SHARES.tables.create_all(connection)
    store(*(of(id=number) for of in (Kept, Opened, Free) for number in (1, 2, 3)))


both = pytest.mark.parametrize("of", [Kept, Opened])
fresh = pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "used"])


def titles(engine: Any, of: Any) -> set[str]:
    with engine.connect() as connection:
        return set(connection.execute(select(of.__table__.c.title)).scalars())


def upsert(dialect: str, of: Any) -> Any:
    values = {"id": 1, "title": "new", "version": 2}
    if dialect == "mysql":
        made = mysql.insert(of).values(values)
        return made.on_duplicate_key_update(title="new", version=2)
    made = (postgresql if dialect == "postgresql" else sqlite).insert(of).values(values)
    return made.on_conflict_do_update(index_elements=["id"], set_={"title": "new", "version": 2})


def sql(of: Any) -> str:
    return f"UPDATE {of.__tablename__} SET title = 'new', version = version + 1"


#: What nobody can ask, by the name of the way; it gets the session, the class and the database.
REFUSED = {
    "execute": lambda session, of, _: session.execute(text(sql(of))),
    "scalar": lambda session, of, _: session.scalar(text(sql(of))),
    "scalars": lambda session, of, _: session.scalars(text(sql(of))),
    "from_statement": lambda session, of, _: session.scalars(
        select(of).from_statement(text(sql(of)))
    ),
    "connection": lambda session, of, _: session.connection().execute(text(sql(of))),
    "connection-scalar": lambda session, of, _: session.connection().scalar(text(sql(of))),
    "driver": lambda session, of, _: session.connection().exec_driver_sql(sql(of)),
    "upsert": lambda session, of, name: session.execute(upsert(name, of)),
    "upsert-table": lambda session, of, name: session.execute(upsert(name, of.__table__)),
    "upsert-connection": lambda session, of, name: session.connection().execute(
        upsert(name, of.__table__)
    ),
    "compiled": lambda session, of, _: session.connection().execute(
        delete(of.__table__).compile(session.connection())
    ),
    "ddl": lambda session, of, _: session.execute(DDL(f"DELETE FROM {of.__tablename__}")),
    "ddl-connection": lambda session, of, _: session.connection().execute(
        DDL(f"DELETE FROM {of.__tablename__}")
    ),
    "replace": lambda session, of, _: session.execute(
        insert(of).prefix_with("OR REPLACE").values(id=1, title="new")
    ),
    "inside": lambda session, of, _: session.execute(inside(of)),
    "inside-connection": lambda session, of, _: session.connection().execute(inside(of)),
    "inside-lambda": lambda session, of, _: session.execute(lambda_stmt(lambda: inside(of))),
}


def inside(of: Any) -> Any:
    table = of.__table__
    written = update(table).values(title="new").returning(table.c.id).cte("written")
    return select(written.c.id)


@both
@fresh
@pytest.mark.parametrize("way", REFUSED)
def test_what_nobody_can_ask_is_refused(rows, engine, way, of, fresh):
    with watch(sessionmaker(engine))() as session:
        if not fresh:
            session.get_one(of, 1)
        with (
            count_statements(engine) as sent,
            pytest.raises(ConfigurationError, match=rf"(?s)update\({of.__name__}\)|separately"),
        ):
            REFUSED[way](session, of, engine.dialect.name)
        assert sent.count == 0
        session.commit()
    assert titles(engine, of) == {""}


#: What can be asked, although it comes in an unusual form.
ASKED = {
    "lambda": lambda session, of: session.execute(
        lambda_stmt(lambda: delete(of).where(of.id == 1))
    ),
    "uncached": lambda session, of: session.connection().execute(
        delete(of.__table__), execution_options={"compiled_cache": None}
    ),
    "scalar": lambda session, of: session.connection().scalar(delete(of.__table__)),
}


@both
@pytest.mark.parametrize("way", ASKED)
@pytest.mark.parametrize("flushing", [True, False])
def test_what_comes_in_an_unusual_form_is_asked(rows, engine, way, of, flushing):
    with sessionmaker(engine).begin() as other:
        if of is Kept:
            acquire(other, (of, 1), ENDLESS)
        else:
            open_handle(other, (of, 1), "R")
    with watch(sessionmaker(engine))() as session:
        if flushing:
            session.get_one(Free, 1).title = "edited"

            def before_update(mapper: Any, connection: Any, target: Any) -> None:
                ASKED[way](session, of)

            event.listen(Free, "before_update", before_update)
            try:
                with pytest.raises((LeaseHeld, SharingViolation)):
                    session.flush()
            finally:
                event.remove(Free, "before_update", before_update)
        else:
            with pytest.raises((LeaseHeld, SharingViolation)):
                ASKED[way](session, of)
        session.rollback()
    assert titles(engine, of) == {""}


@pytest.mark.engines("postgresql")
def test_a_sequence_writes_no_row(rows, engine):
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SEQUENCE IF NOT EXISTS standing_numbers")
    with watch(sessionmaker(engine))() as session:
        assert session.scalar(Sequence("standing_numbers"))
        assert session.connection().scalar(Sequence("standing_numbers"))


@both
@pytest.mark.parametrize("way", ["execute", "connection-scalar", "driver", "upsert-connection"])
@pytest.mark.parametrize("touched", [True, False])
def test_what_nobody_can_ask_is_refused_of_a_listener_too(rows, engine, way, of, touched):
    """Also while a flush writes rows of other classes alone."""
    with watch(sessionmaker(engine))() as session:
        written = session.get_one(of if touched else Free, 1)
        written.title = "edited"

        def before_update(mapper: Any, connection: Any, target: Any) -> None:
            REFUSED[way](session, of, engine.dialect.name)

        event.listen(type(written), "before_update", before_update)
        try:
            with pytest.raises(ConfigurationError, match=rf"update\({of.__name__}\)"):
                session.flush()
        finally:
            event.remove(type(written), "before_update", before_update)
        session.rollback()
    assert titles(engine, of) == {""}


@pytest.mark.anyio
@both
async def test_an_async_session_refuses_it_as_well(async_engine, of):
    async with watch(async_sessionmaker(async_engine))() as session:
        for send in (session.execute, session.stream, session.scalar):
            with pytest.raises(ConfigurationError, match=rf"update\({of.__name__}\)"):
                await send(text(sql(of)))
        connection = await session.connection()
        with pytest.raises(ConfigurationError, match=rf"update\({of.__name__}\)"):
            await connection.exec_driver_sql(sql(of))


@both
def test_a_unit_refuses_it_as_well(rows, engine, of):
    with UnitOfWork(engine) as session:
        for send in (
            lambda: session.execute(text(sql(of))),
            lambda: session.connection().execute(upsert(engine.dialect.name, of.__table__)),
        ):
            with pytest.raises(ConfigurationError, match=rf"update\({of.__name__}\)"):
                send()


def test_a_class_that_is_mapped_later_is_known_at_once(engine):
    with watch(sessionmaker(engine))() as session:
        for mixin in (Leasable, Shared):
            name = f"standing_later_{mixin.__name__.lower()}"
            session.execute(text("SELECT 1"))  # the names are known by now

            class Own(DeclarativeBase):
                pass

            later = type(
                "Later",
                (mixin, Versioned, Own),
                {
                    "__tablename__": name,
                    "__annotations__": {"id": Mapped[int]},
                    "id": mapped_column(primary_key=True),
                },
            )
            with pytest.raises(ConfigurationError, match=r"update\(Later\)"):
                session.execute(text(f"DELETE FROM {name}"))
            assert later.__table__.name == name


# -- what it costs --------------------------------------------------------------------------------


def in_a_session(do: Any) -> Any:
    def ready(engine: Any) -> Any:
        sessions = watch(sessionmaker(engine))

        def run() -> None:
            with sessions() as session:
                do(session)
                session.commit()

        return run

    return ready


def in_a_unit(engine: Any) -> Any:
    sessions = sessionmaker(engine)

    def run() -> None:
        with UnitOfWork(sessions) as session:
            a_row(session)

    return run


def a_row(session: Session) -> None:
    session.get_one(Free, 1).title += "."


def many_rows(session: Session) -> None:
    for free in session.scalars(select(Free)):
        free.title += "."


def a_delete(session: Session) -> None:
    session.add(Free(id=7))
    session.flush()
    session.delete(session.get_one(Free, 7))


def on_connection(session: Session, statement: Any) -> None:
    session.connection().execute(statement)


NOTHING = "UPDATE standing_free SET title = '' WHERE id = 9"
#: Work with rows of other classes, and how many calls of Python the protection may add.
LIGHT: dict[str, tuple[Any, int]] = {
    "a unit": (in_a_unit, 5),
    "a row": (in_a_session(a_row), 5),
    "many rows": (in_a_session(many_rows), 6),
    "a new row": (in_a_session(a_delete), 12),
    "a query": (in_a_session(lambda session: session.scalars(select(Free)).all()), 8),
    "a text": (in_a_session(lambda session: session.execute(text("SELECT 1"))), 6),
    "a writing text": (in_a_session(lambda session: session.execute(text(NOTHING))), 8),
    "a driver's text": (
        in_a_session(lambda session: session.connection().exec_driver_sql(NOTHING)),
        6,
    ),
    "a query of a connection": (
        in_a_session(lambda session: on_connection(session, select(Free.__table__))),
        8,
    ),
}


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("work", LIGHT)
@pytest.mark.tenth
def test_whoever_writes_other_rows_pays_nothing(rows, engine, monkeypatch, store, work):
    store(*(Free(id=number) for number in range(10, 110)))
    ready, most = LIGHT[work]
    run = ready(engine)

    def calls() -> int:
        for _ in range(3):
            run()
        with count_statements(engine) as sent:
            least = min(len(calls_of(run)) for _ in range(5))
        statements.append(sent.count)
        return least

    statements: list[int] = []
    protected = calls()
    monkeypatch.setattr(SessionRecord, "demands", None)
    assert protected <= calls() + most
    assert statements[0] == statements[1]


def test_rows_join_one_that_is_kept_back_only_where_nothing_is_asked_of_them(
    rows: None, engine: Any, monkeypatch: Any
) -> None:
    routed: list[Any] = []
    original = guarded_connections.route_statement

    def route_statement(*given: Any) -> Any:
        routed.append(given)
        return original(*given)

    monkeypatch.setattr(guarded_connections, "route_statement", route_statement)
    sessions = watch(sessionmaker(engine))
    for of, count in ((Free, 1), (Kept, 3), (Opened, 3)):
        for title in ("first", "second"):  # the first flush of a class is planned
            routed.clear()
            with sessions.begin() as session:
                for row in session.scalars(select(of).order_by(of.id)):
                    row.title = title
        assert len(routed) == count, of
        assert titles(engine, of) == {"second"}
