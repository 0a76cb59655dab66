"""What ``check`` finds about classes with ``__version_scopes__``."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock._mapping.scope_triggers import scope_trigger_of
from optilock.check import check
from optilock.dialects import database_of
from optilock.dialects.values import plain_ddl
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


class Row(Versioned, Guarded):
    __tablename__ = "hall_rows"
    __version_scopes__ = ("hall_id",)
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
        silent = {"scope-cascade"} if engine.dialect.name in ("mariadb", "mysql") else set()
        assert codes(engine, Seat) == silent
        assert codes(engine, Row) == {"scope-cascade"}
        dialect = engine.dialect
        triggers = database_of(dialect).scope_triggers(dialect)
        wanted = scope_trigger_of(inspect(Seat))
        with engine.begin() as connection:
            for statement in triggers.drop(wanted):
                connection.execute(plain_ddl(statement))
        assert codes(engine, Seat) == {*silent, "scope-not-moved"}
    finally:
        scopes.drop(engine, checkfirst=True)
        for base in (Guarded, Base):
            base.metadata.drop_all(engine)
