"""What a fast form cannot do, or does not find, the statement of a single row does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, Integer, String, TypeDecorator, event, func, select, text
from sqlalchemy.dialects.mysql import VARCHAR
from sqlalchemy.orm import DeclarativeBase, mapped_column, sessionmaker

from optilock import (
    ConcurrencyError,
    UnitOfWork,
    Versioned,
    bulk_update,
    client_wins,
    lock,
    merge_fields,
    store_wins,
    verify,
    watch,
)


class Base(DeclarativeBase):
    pass


class Spelled(TypeDecorator[str]):
    """A type that puts SQL around its values."""

    impl = String(40)
    cache_ok = True

    def bind_expression(self, bindparam: Any) -> Any:
        return func.replace(bindparam, "o", "0", type_=self)

    def column_expression(self, column: Any) -> Any:
        return func.replace(column, "0", "o", type_=self)


class Shelf(Versioned, Base):
    __tablename__ = "shelves"

    code = mapped_column(Spelled, primary_key=True)
    level = mapped_column(Integer, primary_key=True, autoincrement=False)
    books = mapped_column(Integer, default=0)
    label = mapped_column(String(20), default="")


class Seat(Versioned, Base):
    """On MariaDB its town has another character set than the connection."""

    __tablename__ = "town_seats"

    code = mapped_column(
        String(20).with_variant(VARCHAR(20, charset="latin1"), "mysql", "mariadb"),
        primary_key=True,
    )
    level = mapped_column(Integer, primary_key=True, autoincrement=False)
    books = mapped_column(Integer, default=0)
    label = mapped_column(String(20), default="")


class Town(Versioned, Base):
    """One such key, and its version beside it in a DELETE of many."""

    __tablename__ = "towns"

    code = mapped_column(
        String(20).with_variant(VARCHAR(20, charset="latin1"), "mysql", "mariadb"),
        primary_key=True,
    )
    books = mapped_column(Integer, default=0)
    label = mapped_column(String(20), default="")


CODES = ["north", "Köln", "south", "Ulm"]
KINDS = [Shelf, Seat, Town]


@pytest.fixture
def made(engine: Engine, store: Any) -> Engine:
    store(*(new(cls, code) for cls in KINDS for code in CODES))
    return engine


def new(cls: Any, code: str) -> Any:
    return cls(code=code) if cls is Town else cls(code=code, level=1)


def books_of(engine: Engine, cls: Any) -> dict[str, int]:
    with engine.connect() as connection:
        return {row.code: row.books for row in connection.execute(select(cls.code, cls.books))}


@pytest.mark.parametrize("cls", KINDS)
def test_a_row_is_called_deleted_only_if_it_is(made: Engine, cls: Any) -> None:
    """C10, D1: nobody has written the others, so they are written."""
    sessions = watch(sessionmaker(made))
    with UnitOfWork(sessions, on_conflict=store_wins) as session:
        rows = session.scalars(select(cls)).all()
        with sessions.begin() as other:
            for row in other.scalars(
                select(cls).where((cls.code == "north") | (cls.code == "Ulm"))
            ):
                row.label = "theirs"
        for row in rows:
            row.books = 5
    assert books_of(made, cls) == {"north": 0, "Köln": 5, "south": 5, "Ulm": 0}


@pytest.mark.parametrize("cls", KINDS)
@pytest.mark.parametrize("resolver", [merge_fields, client_wins])
def test_rows_that_moved_are_merged(made: Engine, cls: Any, resolver: Any) -> None:
    """C10, D1: their entries say "updated", and "deleted" of the one that is gone."""
    sessions = watch(sessionmaker(made))
    with UnitOfWork(sessions, on_conflict=resolver) as session:
        rows = session.scalars(select(cls)).all()
        with sessions.begin() as other:
            for row in other.scalars(select(cls)):
                row.label = "theirs"
        for row in rows:
            row.books = 7
    assert set(books_of(made, cls).values()) == {7}
    with sessions() as session:
        rows = session.scalars(select(cls)).all()
        with sessions.begin() as other:
            for row in other.scalars(select(cls)):
                if row.code == "Köln":
                    other.delete(row)
                else:
                    row.books = 8
        for row in rows:
            row.books = 9
        with pytest.raises(ConcurrencyError) as caught:
            session.commit()
    kinds = {entry.identity[0]: entry.kind for entry in caught.value.entries}
    assert kinds == {"north": "updated", "Köln": "deleted", "south": "updated", "Ulm": "updated"}


@pytest.mark.parametrize("cls", KINDS)
def test_rows_are_deleted_verified_and_locked(made: Engine, cls: Any) -> None:
    """C10, D1"""
    sessions = watch(sessionmaker(made))
    with UnitOfWork(sessions, verify_reads=True) as session:
        rows = session.scalars(select(cls)).all()
        lock(rows[0])
        rows[0].books = 1
    with UnitOfWork(sessions) as session:
        for row in session.scalars(select(cls)):
            verify(row)
    with UnitOfWork(sessions) as session:
        for row in session.scalars(select(cls).where(cls.code != "Ulm")):
            session.delete(row)
    assert set(books_of(made, cls)) == {"Ulm"}


# -- tables without a primary key ------------------------------------------------------------------


class Coin(Versioned, Base):
    __tablename__ = "coins"

    code = mapped_column(String(9), primary_key=True)
    worth = mapped_column(Integer, default=0)


class CoinSeen(Versioned, Base):
    __tablename__ = "coins_seen"

    code = mapped_column(String(9), primary_key=True)
    worth = mapped_column(Integer, default=0)


class Numbered(Versioned, Base):
    __tablename__ = "numbered_coins"

    code = mapped_column(Integer, primary_key=True, autoincrement=False)
    worth = mapped_column(Integer, default=0)


class NumberedSeen(Versioned, Base):
    __tablename__ = "numbered_coins_seen"

    code = mapped_column(Integer, primary_key=True, autoincrement=False)
    worth = mapped_column(Integer, default=0)


UNKEYED = [Coin, CoinSeen, Numbered, NumberedSeen]


@pytest.fixture
def unkeyed(engine: Engine) -> Iterator[Engine]:
    for cls in UNKEYED:
        cls.__table__.info.clear()
    with engine.begin() as connection:
        for name, kind in (("coins", "VARCHAR(9)"), ("numbered_coins", "INTEGER")):
            columns = f"code {kind} NOT NULL UNIQUE, worth INTEGER, version BIGINT NOT NULL"
            connection.execute(text(f"CREATE TABLE {name} ({columns})"))
            view = f"CREATE VIEW {name}_seen AS SELECT code, worth, version FROM {name}"
            connection.execute(text(view))
            rows = "('1', 0, 1), ('2', 0, 1), ('3', 0, 1)"
            connection.execute(text(f"INSERT INTO {name} VALUES {rows}"))
    yield engine
    with engine.begin() as connection:
        for name in ("coins", "numbered_coins"):
            connection.execute(text(f"DROP VIEW {name}_seen"))
            connection.execute(text(f"DROP TABLE {name}"))


def worth_of(engine: Engine, cls: Any) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(select(cls.worth).order_by(cls.code)))


@pytest.mark.engines("mariadb", "postgresql")
@pytest.mark.parametrize("first", ["update", "conflict", "verify", "lock", "delete", "bulk"])
@pytest.mark.parametrize("cls", UNKEYED)
def test_a_table_need_not_have_a_primary_key(unkeyed: Engine, cls: Any, first: str) -> None:
    """D2: a UNIQUE key alone, or a view; whatever is the first to find it out."""
    sessions = watch(sessionmaker(unkeyed))
    with UnitOfWork(sessions, on_conflict=client_wins) as session:
        rows = session.scalars(select(cls).order_by(cls.code)).all()
        match first:
            case "update":
                for row in rows:
                    row.worth = 5
            case "conflict":
                with sessions.begin() as other:
                    other.get_one(cls, rows[0].code).worth = 3
                for row in rows[:1]:
                    row.worth = 5
            case "verify":
                verify(rows[0])
            case "lock":
                lock(rows[0])
                rows[0].worth = 5
            case "delete":
                for row in rows[:2]:
                    session.delete(row)
            case "bulk":
                session.expunge_all()
                bulk_update(
                    session, cls, [{"code": r.code, "worth": 5, "version": 1} for r in rows]
                )
    wanted = {
        "update": [5, 5, 5],
        "conflict": [5, 0, 0],
        "verify": [0, 0, 0],
        "lock": [5, 0, 0],
        "delete": [0],
        "bulk": [5, 5, 5],
    }
    assert worth_of(unkeyed, cls) == wanted[first]


# -- settings that forbid a form -------------------------------------------------------------------


class GuardedItem(Versioned, Base):
    __tablename__ = "set_items"

    id = mapped_column(Integer, primary_key=True)
    number = mapped_column(Integer, default=0)
    label = mapped_column(String(20), default="")


SETTINGS = [
    "sql_safe_updates = 1",
    "sql_select_limit = 1",
    "sql_big_selects = 0, max_join_size = 1",
    "sql_safe_updates = 1, sql_select_limit = 1, sql_big_selects = 0, max_join_size = 1",
    "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,TRADITIONAL'",
]


@pytest.mark.engines("mariadb")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_forbids_a_form_is_no_error(engine: Engine, setting: str) -> None:
    """D2: what is refused before anything is written, is written one row after the other."""
    Base.metadata.create_all(engine, tables=[GuardedItem.__table__])
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add_all([GuardedItem(id=n) for n in range(1, 6)])

    def set_up(driver: Any, *_: Any) -> None:
        driver.cursor().execute(f"SET {setting}")

    event.listen(engine, "checkout", set_up)
    everything = [GuardedItem(id=n) for n in range(1, 6)]
    with UnitOfWork(sessions, on_conflict=merge_fields) as session:
        rows = [session.get_one(GuardedItem, one.id) for one in everything]
        with sessions.begin() as other:
            for row in (other.get_one(GuardedItem, 2), other.get_one(GuardedItem, 4)):
                row.label = "theirs"
        for row in rows:
            row.number = 7
    with UnitOfWork(sessions) as session:
        rows = [session.get_one(GuardedItem, one.id) for one in everything]
        assert [(row.number, row.label) for row in rows] == [
            (7, "theirs" if row.id in (2, 4) else "") for row in rows
        ]
        for row in rows[:4]:
            session.delete(row)
    with UnitOfWork(sessions) as session:
        assert [session.get(GuardedItem, one.id) is None for one in everything] == [True] * 4 + [
            False
        ]
    event.remove(engine, "checkout", set_up)
    engine.dispose()
    Base.metadata.drop_all(engine, tables=[GuardedItem.__table__])
