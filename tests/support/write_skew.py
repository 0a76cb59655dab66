"""Two transactions at SERIALIZABLE, of which PostgreSQL refuses the second one at COMMIT."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, Session, mapped_column

from optilock import ConcurrencyError, Versioned, is_transient
from tests.support.models import Base, key


class Room(Versioned, Base):
    __tablename__ = "refused_rooms"
    id: Mapped[int] = key()
    guests: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def rooms(store: Any) -> None:
    store(Room(id=1), Room(id=2))


@pytest.fixture
def strict(engine: Engine, rooms: None) -> Engine:
    return engine.execution_options(isolation_level="SERIALIZABLE")


def skewed(session: Session, engine: Engine) -> None:
    """Both read two rows and write one; the other one commits first."""
    other = Session(engine)
    rooms = session.scalars(select(Room).order_by(Room.id)).all()
    others = other.scalars(select(Room).order_by(Room.id)).all()
    rooms[0].guests = 1
    session.flush()
    others[1].guests = 1
    other.commit()
    other.close()


def is_refused(error: ConcurrencyError) -> None:
    assert isinstance(error.__cause__, DBAPIError)
    assert error.__cause__.statement is None
    assert is_transient(error)
