"""Round trips of a flush, counted between driver and server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, insert, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import Versioned, watch
from optilock.testing import Wire, wire
from tests.engines import Target

pytestmark = pytest.mark.needs("server")


class Base(DeclarativeBase):
    pass


class Row(Versioned, Base):
    __tablename__ = "wired_rows"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int]


#: psycopg prepares a statement when it is sent for the fifth time, which is a trip of its own.
_UNPREPARED = {"postgresql+psycopg": {"prepare_threshold": None}}


@pytest.fixture
def far(line: Wire) -> Iterator[Engine]:
    """An engine by way of the line, with 1,000 rows."""
    engine = create_engine(
        line.url, connect_args=_UNPREPARED.get(make_url(line.url).drivername, {})
    )
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        rows = [{"id": number, "value": 0, "version": 1} for number in range(1000)]
        connection.execute(insert(Row.__table__), rows)
    yield engine
    engine.dispose()


def trips_of_a_flush(line: Wire, session: Session, rows: int) -> int:
    for row in session.query(Row).filter(Row.id < rows):
        row.value += 1
    with line.counting() as trips:
        session.flush()
    return trips.count


@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_a_guarded_flush_takes_as_many_trips_for_a_thousand_rows_as_for_ten(
    line: Wire, far: Engine, database: Target, rows: int
) -> None:
    """One, or two where locking the rows and writing them are two statements."""
    at_once = rows == 1 or "batch-statement" in database.capabilities
    with watch(sessionmaker(far))() as session:
        assert trips_of_a_flush(line, session, rows) == (1 if at_once else 2)


@pytest.mark.parametrize("rows", [1, 10])
def test_sqlalchemys_own_takes_one_for_each_row(line: Wire, far: Engine, rows: int) -> None:
    with sessionmaker(far)() as session:
        assert trips_of_a_flush(line, session, rows) == rows


def test_begin_and_commit_are_trips_and_opening_a_block_is_none(line: Wire, far: Engine) -> None:
    with line.counting() as trips, far.connect() as connection:
        assert trips.count == 0
        connection.execute(text("SELECT 1"))
        before = trips.count
        connection.commit()
        assert trips.count == before + 1


def test_what_others_send_directly_is_not_counted(line: Wire, far: Engine, engine: Engine) -> None:
    with line.counting() as trips, engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    assert trips.count == 0


def test_the_line_is_cut_at_the_end(database: Target) -> None:
    with wire(database.url) as line:
        engine = create_engine(line.url)
        connection = engine.connect()
        connection.execute(text("SELECT 1"))
    with pytest.raises(OperationalError):
        connection.execute(text("SELECT 1"))
    connection.close()
    with pytest.raises(OperationalError):
        engine.connect()
    engine.dispose()
