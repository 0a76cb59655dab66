"""Dialects that leave FOR UPDATE out: rows are judged by their own counts, and looks are refused.

The dialect here is SQLite's under another name, which optilock knows nothing of, and like that of
SQL Server it writes no FOR UPDATE: another program can change a row after it was looked at.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, create_engine, event, select, update
from sqlalchemy.dialects import mssql, registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.orm import sessionmaker as maker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    bulk_update,
    verify,
    watch,
)
from optilock.dialects import database_of
from optilock.tokens import CompareValues


class Lockless(SQLiteDialect_pysqlite):
    name = "lockless"
    supports_statement_cache = True


registry.register("lockless", __name__, "Lockless")


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


class Book(Versioned, Base):
    __tablename__ = "books"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]
    chapters: Mapped[list[Chapter]] = relationship(cascade="all, delete-orphan")


class Chapter(Base):
    __tablename__ = "chapters"
    id: Mapped[int] = mapped_column(primary_key=True)
    book_id: Mapped[int] = mapped_column(ForeignKey("books.id"))


class Compared(Versioned, Base):
    __tablename__ = "compared"
    __version_token__ = CompareValues("n")
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


@pytest.fixture
def lockless(tmp_path):
    engine = create_engine(f"lockless:///{tmp_path}/file.db", connect_args={"timeout": 0.2})
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Page(id=id_, n=1) for id_ in (1, 2, 3)])
        session.add_all([Compared(id=id_, n=1) for id_ in (1, 2, 3)])
        session.add(Book(id=1, n=1, chapters=[Chapter(id=1)]))
        session.commit()
    yield engine
    engine.dispose()


def just_before_the_update(engine: Engine, model: type[Any]) -> None:
    """Another program changes row 1 between what was looked at and what is written."""
    other = create_engine(str(engine.url))
    changed = []

    @event.listens_for(engine, "before_cursor_execute")
    def first(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("UPDATE") and not changed:
            changed.append(statement)
            with Session(other) as session:
                session.get_one(model, 1).n = 99
                session.commit()
            other.dispose()


def edited(engine: Engine, model: type[Any]) -> Session:
    session = watch(maker(engine))()
    for row in session.scalars(select(model)):
        row.n = 5
    return session


def test_a_row_that_comes_back_and_moves_again_is_a_conflict(lockless):
    """Nobody holds it after the look, so nobody knows that a trigger keeps it."""
    with watch(maker(lockless))() as session:
        session.get_one(Page, 1).n = 5
        moves = {1: 7, 2: 1, 3: 8}  # before the UPDATE, the look, and the UPDATE once more

        @event.listens_for(lockless, "before_cursor_execute")
        def others(_: Any, cursor: Any, *___: Any) -> None:
            # On our connection: SQLite itself would keep another writer out.
            version = moves.pop(4 - len(moves), None)
            if version is not None:
                cursor.execute("UPDATE pages SET version = ? WHERE id = 1", (version,))

        with pytest.raises(ConcurrencyError):
            session.flush()
        assert not moves


def test_a_batch_finds_the_row_that_was_changed_while_it_was_written(lockless):
    """Both new versions are 2: a count of the rows that carry a 2 would find them all."""
    with edited(lockless, Page) as session:
        just_before_the_update(lockless, Page)
        with pytest.raises(ConcurrencyError) as caught:
            session.flush()
        [entry] = caught.value.entries
        assert (entry.identity, entry.database["n"]) == ((1,), 99)
        session.rollback()
    with Session(lockless) as session:
        assert session.scalars(select(Page.n).order_by(Page.id)).all() == [99, 1, 1]


def test_many_rows_by_key_find_it_too(lockless):
    rows = [{"id": id_, "version": 1, "n": 5} for id_ in (1, 2, 3)]
    just_before_the_update(lockless, Page)
    with Session(lockless) as session:
        result = bulk_update(session, Page, rows)
        session.commit()
    assert [entry.identity for entry in result.conflicts] == [(1,)]
    with Session(lockless) as session:
        assert session.scalars(select(Page.n).order_by(Page.id)).all() == [99, 5, 5]


def test_a_batch_that_nobody_meets_is_written(lockless):
    with edited(lockless, Page) as session:
        session.delete(session.get_one(Page, 3))
        session.commit()
        assert session.scalars(select(Page.n)).all() == [5, 5]


refusal = pytest.raises(ConfigurationError, match="leaves FOR UPDATE out")


def test_compared_values_are_refused(lockless):
    with edited(lockless, Compared) as session, refusal as caught:
        session.flush()
    assert "CompareValues" in str(caught.value)


def test_a_delete_with_dependents_is_refused(lockless):
    with watch(maker(lockless))() as session:
        session.delete(session.get_one(Book, 1))
        with refusal:
            session.flush()
        assert session.is_active


def test_a_verified_row_is_refused(lockless):
    with refusal, UnitOfWork(lockless) as session:
        verify(session.get_one(Page, 1))


def test_an_update_of_held_objects_is_refused_and_of_others_is_not(lockless):
    with watch(maker(lockless))() as session:
        session.execute(update(Page).values(n=2))
        held = session.get_one(Page, 1)
        with refusal:
            session.execute(update(Page).values(n=3))
        assert held.n == 2


# -- SQL Server: its documentation has a hint for what FOR UPDATE does elsewhere ------------------


@pytest.mark.parametrize(
    ("sharing", "hint"),
    [(False, "WITH (UPDLOCK, ROWLOCK)"), (True, "WITH (REPEATABLEREAD, ROWLOCK)")],
)
@pytest.mark.parametrize("of", [Page, Page.__table__], ids=["class", "table"])
def test_sql_server_locks_by_a_hint(sharing, hint, of):
    dialect = mssql.dialect()
    database, table = database_of(dialect), Page.__table__
    query = select(of).where(Page.id == 1)
    locked = (
        database.locks.share(query, table)
        if sharing
        else database.locks.lock(query, table, deleting=True)
    )

    assert f"FROM pages {hint}" in str(locked.compile(dialect=dialect))
    assert database.locks.locks_rows(dialect)
