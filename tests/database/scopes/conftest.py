"""Bookings of rooms, with the table of scopes.

``rooms``        the engine; booking 1 is of room 7, booking 2 of room 8
``sessions``     watched sessions of it
``versions()``   the stored versions of scopes by key
``moved(act)``   the keys that a function of a session moves, in its own transaction or unit
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, sessionmaker

from optilock import watch
from optilock.tables.names import scopes
from tests.support.rooms import ALL, Booking, Room, Seat, Shift

Do = Callable[..., Any]


@pytest.fixture
def rooms(engine: Engine, tables: Do) -> Engine:
    tables(Room, Booking, Shift, Seat)
    scopes.create(engine, checkfirst=True)
    with Session(engine) as session, session.begin():
        session.add_all([Room(id=7), Room(id=8), Room(id=9), Shift(id=1)])
        session.add_all([Booking(id=1, room_id=7), Booking(id=2, room_id=8)])
    with engine.begin() as connection:
        connection.execute(scopes.delete())
    return engine


@pytest.fixture
def sessions(rooms: Engine) -> sessionmaker[Session]:
    return watch(sessionmaker(rooms))


@pytest.fixture
def versions(rooms: Engine) -> Callable[[], dict[str, int]]:
    def versions() -> dict[str, int]:
        with rooms.connect() as connection:
            return dict(map(tuple, connection.execute(select(scopes))))

    return versions


@pytest.fixture
def moved(sessions: sessionmaker[Session], versions: Callable[[], dict[str, int]]) -> Do:
    """Returns short names: 7 for room 7, ``None`` for none, ``all``, and ``*``."""

    def moved(act: Do, begin: Do = sessions.begin) -> set[Any]:
        before = versions()
        with begin() as session:
            act(session)
        return {_short(key) for key, v in versions().items() if v > before.get(key, 0)}

    return moved


def _short(key: str) -> Any:
    known = {ALL.key: "all", ALL.any_key: "*", Booking.scope(room_id=None).key: None}
    return known[key] if key in known else int(key.rpartition(":")[2])
