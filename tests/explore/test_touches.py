"""What a statement touches: pruning is sound only if nothing is missing there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, event, func, insert, select, text, update

from checks.explore.rows import Base, Booking, Room, Slot
from optilock.testing.exploration.touches import EVERYTHING, Way, touches_of

ROOMS, BOOKINGS, SLOTS = (one.__tablename__ for one in (Room, Booking, Slot))
KNOWN = {ROOMS: frozenset({(1,), (2,)}), BOOKINGS: frozenset({(1,)})}


@pytest.fixture
def touched() -> Iterator[Callable[[Any], set[Any]]]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    seen: set[Any] = set()

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, sql: str, parameters: Any, context: Any, _: Any) -> None:
        seen.update(touches_of(context, sql, KNOWN, {}))

    def touched(statement: Any) -> set[Any]:
        seen.clear()
        with engine.connect() as connection:
            connection.execute(statement)
        return {*seen}

    yield touched
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "locks"),
    [
        (update(Booking).where(Booking.id == 1).values(hour=2), {(BOOKINGS, (1,))}),
        # a foreign key locks the row that it refers to
        (
            update(Booking).where(Booking.id == 1).values(room_id=2),
            {(BOOKINGS, (1,)), (ROOMS, None)},
        ),
        (insert(Booking).values(room_id=1, hour=1), {(BOOKINGS, None), (ROOMS, None)}),
        # rows that refer to it are looked for
        (delete(Room).where(Room.id == 1), {(ROOMS, (1,)), (BOOKINGS, None)}),
        # a value that no other row may have waits for whoever writes it
        (update(Slot).where(Slot.id == 1).values(hour=2), {(SLOTS, None)}),
        # a row that is not put back, or not named by its key
        (delete(Room).where(Room.id == 3), {(ROOMS, None), (BOOKINGS, None)}),
        (update(Booking).where(Booking.hour == 1).values(hour=2), {(BOOKINGS, None)}),
        (select(Room).where(Room.id == 1).with_for_update(), set()),  # SQLite has no such lock
        (text("SELECT 1"), {EVERYTHING}),
    ],
    ids=lambda value: None if isinstance(value, set) else str(value),  # a set has no order
)
def test_a_write_locks_its_rows_and_what_the_database_looks_at(
    touched: Any, statement: Any, locks: Any
) -> None:
    assert {place for way, place in touched(statement) if way is Way.LOCKS} == locks


def test_a_read_touches_the_row_that_its_key_names(touched: Any) -> None:
    assert touched(select(Room).where(Room.id == 1)) == {(Way.READS, (ROOMS, (1,)))}
    assert touched(select(Room).where(Room.id.in_([1, 2]))) == {
        (Way.READS, (ROOMS, (number,))) for number in (1, 2)
    }
    assert touched(select(Room).where(Room.id > 1)) == {(Way.READS, (ROOMS, None))}


def test_a_read_of_columns_that_are_not_of_the_table_touches_the_whole_table(touched: Any) -> None:
    """It names the table, and no column of it."""
    assert touched(select(func.count()).select_from(Room)) == {(Way.READS, (ROOMS, None))}
