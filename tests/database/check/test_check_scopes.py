"""What ``check`` finds about classes with ``__version_scopes__``."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.check import check
from optilock.tables.names import scopes
from tests.support.rooms import Base, Booking, Room


class Guarded(DeclarativeBase):
    pass


class Hall(Versioned, Guarded):
    __tablename__ = "halls"
    id: Mapped[int] = mapped_column(primary_key=True)


class Seat(Versioned, Guarded):
    __tablename__ = "hall_seats"
    __version_scopes__ = ("hall_id",)
    __version_guard__ = "bump"
    id: Mapped[int] = mapped_column(primary_key=True)
    hall_id: Mapped[int] = mapped_column(ForeignKey("halls.id", ondelete="CASCADE"))


def codes(engine: Engine, *models: Any) -> set[str]:
    found = check(list(models), engine)
    return {one.code for one in found if "scope" in one.code}


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_check_finds_what_moves_no_scope(engine: Engine) -> None:
    for base in (Base, Guarded):
        base.metadata.create_all(engine)
    try:
        assert codes(engine, Room) == set()
        assert codes(engine, Booking) == {"no-scopes"}
        scopes.create(engine)
        assert codes(engine, Booking) == set()
        assert codes(engine, Seat) == {"scope-cascade", "scope-not-moved"}
    finally:
        scopes.drop(engine, checkfirst=True)
        for base in (Guarded, Base):
            base.metadata.drop_all(engine)
