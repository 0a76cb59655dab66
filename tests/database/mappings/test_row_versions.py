"""``RowVersion``: whoever writes a row moves its version, and a missing trigger is noticed."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, String, inspect, select, text, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from optilock import ConcurrencyError, ConfigurationError, Versioned, watch
from optilock._mapping.triggers import moved_column, trigger_ddl, trigger_name
from optilock.testing import count_statements
from optilock.tokens import RowVersion
from tests.support.models import Base, key


class Item(Versioned, Base):
    __tablename__ = "rv_items"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Place(Versioned, Base):
    """A key of two columns, no rowid on SQLite, and names that need quotes."""

    __tablename__ = 'rv "places" with a name as long as databases allow it to be'
    __table_args__ = {"sqlite_with_rowid": False}
    __version_token__ = RowVersion(name="revision", column="re vision%")
    show: Mapped[str] = mapped_column("sh ow", String(20), primary_key=True)
    number: Mapped[int] = key()
    guest: Mapped[str | None]


class NumberedByTrigger(Versioned, Base):
    __tablename__ = "rv_numbered"
    __version_token__ = RowVersion(xmin=True)
    id: Mapped[int] = key()
    name: Mapped[str | None]


def test_a_program_that_knows_no_version_moves_it(engine: Engine, store, watched, refused):
    store(Item(id=1, name="a"))
    session = watched()
    row = session.get(Item, 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE rv_items SET name = 'theirs' WHERE id = 1"))
    row.name = "ours"
    assert refused(session).entries[0].database["version"] == 2


def test_a_statement_moves_it_by_one(engine: Engine, store, stored):
    store(Item(id=1, name="a"))
    with Session(engine) as session, session.begin():
        session.execute(update(Item).values(name="b"))
    assert stored(Item, 1)["version"] == 2
    with engine.begin() as connection:
        connection.execute(update(Item.__table__).values(version=Item.__table__.c.version + 1))
    assert stored(Item, 1)["version"] == 3


def test_keys_of_several_columns_and_odd_names_are_found(engine: Engine, store, stored):
    store(Place(show="a", number=1), Place(show="a", number=2))
    with watch(sessionmaker(engine))() as session:
        row = session.get(Place, ("a", 1))
        for guest in "xyz":
            row.guest = guest
            session.flush()
        session.commit()
    assert stored(Place, ("a", 1))["revision"] == 4
    assert stored(Place, ("a", 2))["revision"] == 1


@pytest.mark.engines("sqlite-wal")
def test_recursive_triggers_move_it_once(engine: Engine, store, stored):
    store(Item(id=1, name="a"))
    with engine.begin() as connection:
        connection.execute(text("PRAGMA recursive_triggers = ON"))
        connection.execute(text("UPDATE rv_items SET name = 'b'"))
    assert stored(Item, 1)["version"] == 2


@pytest.mark.parametrize("sessions", [sessionmaker, lambda e: watch(sessionmaker(e))])
def test_a_missing_trigger_is_refused_by_the_first_write(engine: Engine, store, stored, sessions):
    store(Item(id=1, name="a"))
    table = Item.__table__
    ddl = trigger_ddl(table, table.c.version, engine.dialect)
    with engine.begin() as connection:
        for statement in ddl.drop:
            connection.exec_driver_sql(statement)
    with sessions(engine)() as session:
        session.get(Item, 1).name = "b"
        with pytest.raises(ConfigurationError, match=r"Item\.version did not move .*\.trigger_ddl"):
            session.commit()
    assert stored(Item, 1)["name"] == "a"
    with engine.begin() as connection:
        for statement in ddl.create:
            connection.exec_driver_sql(statement)
    with sessions(engine)() as session:
        session.get(Item, 1).name = "b"
        session.commit()
    assert stored(Item, 1)["version"] == 2


def test_what_is_dropped_can_be_created_again(engine: Engine, tables, store, stored):
    tables(Item)
    Base.metadata.drop_all(engine, tables=[Item.__table__])
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            left = text("SELECT count(*) FROM pg_proc WHERE proname LIKE 'rv_items%'")
            assert connection.scalar(left) == 0
    store(Item(id=1, name="a"))
    assert stored(Item, 1)["version"] == 1


def test_a_write_that_changes_nothing_is_no_missing_trigger(engine: Engine, store):
    store(Item(id=1, name="a"))
    with watch(sessionmaker(engine))() as session:
        row = session.get(Item, 1)
        row.name = "b"
        row.name = "a"
        session.commit()


def test_on_sqlite_alone_the_version_takes_one_statement_more(engine: Engine, store):
    """There RETURNING shows the row before its trigger; MariaDB has no UPDATE … RETURNING."""
    store(Item(id=1, name="a"))
    with watch(sessionmaker(engine))() as session:
        row = session.get(Item, 1)
        row.name = "b"
        with count_statements(engine) as sent:
            session.flush()
        assert sent.count == (1 if engine.dialect.name == "postgresql" else 2)


def test_an_insert_takes_no_statement_more(engine: Engine, tables):
    tables(Item)
    with watch(sessionmaker(engine))() as session:
        session.add(row := Item(id=1, name="a"))
        with count_statements(engine) as sent:
            session.flush()
        assert sent.count == 1
        assert row.version == 1


# -- PostgreSQL's own ------------------------------------------------------------------------------


@pytest.mark.engines("postgresql")
def test_xmin_needs_no_column_and_notices_raw_sql(engine: Engine, store, watched, refused):
    store(NumberedByTrigger(id=1, name="a"))
    assert {c["name"] for c in inspect(engine).get_columns("rv_numbered")} == {"id", "name"}
    session = watched()
    row = session.get(NumberedByTrigger, 1)
    seen = row.version
    with engine.begin() as connection:
        connection.execute(text("UPDATE rv_numbered SET name = 'theirs' WHERE id = 1"))
    row.name = "ours"
    entry = refused(session).entries[0]
    assert isinstance(seen, int)
    assert entry.original["version"] == seen != entry.database["version"]


@pytest.mark.engines("postgresql")
def test_xmin_can_be_asked_for_in_a_query(engine: Engine, store):
    store(NumberedByTrigger(id=1, name="a"))
    with Session(engine) as session:
        version = session.scalar(select(NumberedByTrigger.version))
        assert (
            session.scalar(select(NumberedByTrigger.id).where(NumberedByTrigger.version == version))
            == 1
        )


@pytest.mark.engines("sqlite-wal", "mariadb")
def test_xmin_is_refused_where_there_is_none(engine: Engine, tables):
    with pytest.raises(ConfigurationError, match="PostgreSQL's system column"):
        tables(NumberedByTrigger)
    with Session(engine) as session, pytest.raises(ConfigurationError, match="which a trigger"):
        session.get(NumberedByTrigger, 1)


@pytest.mark.parametrize("dialect", [postgresql.dialect(), sqlite.dialect(), mysql.dialect()])
@pytest.mark.parametrize("cls", [Item, Place])
def test_a_stored_trigger_tells_which_column_it_moves(dialect, cls):
    table, column = cls.__table__, cls.__table__.c[cls.__version_token__.name]
    source = " ".join(trigger_ddl(table, column, dialect).create)
    name = trigger_name(table.name, column.name)
    assert moved_column(table.name, name, source) == column.name
    assert moved_column(table.name, "another_trigger", source) is None


# -- async drivers ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_async_sessions_move_and_check_it(async_engine, async_tables):
    from sqlalchemy.ext.asyncio import async_sessionmaker

    sessions = watch(async_sessionmaker(async_engine))
    xmin = async_engine.dialect.name == "postgresql"
    classes = (Item, NumberedByTrigger) if xmin else (Item,)
    async_tables(*classes)
    for cls in classes:
        async with sessions.begin() as session:
            session.add(cls(id=1, name="a"))
        async with sessions() as session:
            row = await session.get(cls, 1)
            async with sessions.begin() as other:
                (await other.get(cls, 1)).name = "theirs"
            row.name = "ours"
            with pytest.raises(ConcurrencyError):
                await session.commit()
            await session.rollback()
            await session.refresh(row)
            row.name = "again"
            await session.commit()
