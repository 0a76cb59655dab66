"""``count_statements`` records what SQLAlchemy hands to the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, String, insert, select, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from optilock import ConfigurationError, Versioned, serializable, watch
from optilock.testing import count_statements
from tests.engines import Target

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

pytestmark = pytest.mark.modes(full=True)


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "counted_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50), default="")


@pytest.fixture
def pages(tables: Callable[..., None]) -> None:
    tables(Page)


@pytest.mark.usefixtures("pages")
def test_a_flush_of_one_row_is_one_statement_with_its_text(engine: Engine) -> None:
    maker = watch(sessionmaker(engine))
    with maker.begin() as session:
        session.add(Page(id=1, title="Home"))
    with maker() as session:
        session.get_one(Page, 1).title = "Start"
        with count_statements(engine) as sent:
            session.flush()
    assert sent.count == 1
    assert sent.statements[0].text.startswith("UPDATE counted_pages SET")
    assert not sent.statements[0].executemany


@pytest.mark.usefixtures("pages")
def test_an_executemany_is_one_statement_with_the_number_of_its_rows(engine: Engine) -> None:
    rows = [{"id": number, "title": "", "version": 1} for number in (1, 2, 3)]
    with engine.begin() as connection, count_statements(engine) as sent:
        connection.execute(insert(Page), rows)
    [statement] = sent.statements
    assert (statement.executemany, statement.rows) == (True, 3)


def test_connections_count_that_were_open_before_and_commit_is_no_statement(
    engine: Engine,
) -> None:
    with engine.connect() as connection:
        with count_statements(engine) as sent:
            connection.execute(text("SELECT 1"))
            connection.commit()
            assert [statement.text for statement in sent.statements] == ["SELECT 1"]
        connection.execute(text("SELECT 2"))
    assert sent.count == 1


def test_a_statement_that_the_database_refuses_is_counted(engine: Engine) -> None:
    refused = pytest.raises(DatabaseError)
    with engine.connect() as connection, count_statements(engine) as sent, refused:
        connection.execute(text("SELECT nothing FROM nowhere"))
    assert sent.count == 1


def test_units_at_a_level_of_their_own_are_counted(engine: Engine) -> None:
    with count_statements(engine) as sent, serializable(engine) as session:
        session.execute(text("SELECT 42"))
    assert [statement.text for statement in sent.statements].count("SELECT 42") == 1


def test_a_savepoint_is_a_statement(engine: Engine) -> None:
    with engine.begin() as connection, count_statements(engine) as sent:
        connection.begin_nested().commit()
    assert [statement.text.split()[0] for statement in sent.statements] == ["SAVEPOINT", "RELEASE"]


def test_another_engine_on_the_same_database_is_not_counted(
    engine: Engine, database: Target
) -> None:
    other = database.engine()
    with count_statements(engine) as sent, other.connect() as connection:
        connection.execute(text("SELECT 1"))
    other.dispose()
    assert sent.count == 0


@pytest.mark.anyio
async def test_an_async_engine_is_counted_the_same(async_engine: AsyncEngine) -> None:
    with count_statements(async_engine) as sent:
        async with async_engine.connect() as connection:
            await connection.execute(select(1))
    await async_engine.dispose()
    assert [statement.text for statement in sent.statements] == ["SELECT 1"]


def test_what_is_no_engine_is_refused() -> None:
    refused = pytest.raises(ConfigurationError, match="give it the Engine")
    with refused, count_statements(sessionmaker()):  # type: ignore[arg-type]
        pass
