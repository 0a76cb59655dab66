"""The tables of explored units, and how their rows are put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, ForeignKey, UniqueConstraint, delete, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned


class Base(DeclarativeBase):
    pass


def key() -> Any:
    return mapped_column(primary_key=True, autoincrement=False)


class Counter(Base):
    __tablename__ = "x_counters"
    id: Mapped[int] = key()
    n: Mapped[int] = mapped_column(default=0)


class Guarded(Versioned, Base):
    """The same with a version."""

    __tablename__ = "x_guarded"
    id: Mapped[int] = key()
    n: Mapped[int] = mapped_column(default=0)
    note: Mapped[int] = mapped_column(default=0)


class Likes(Versioned, Base):
    """The same with a column that is added to."""

    __tablename__ = "x_likes"
    __version_commutes__ = ("n",)
    id: Mapped[int] = key()
    n: Mapped[int] = mapped_column(default=0)
    note: Mapped[int] = mapped_column(default=0)


class Room(Base):
    __tablename__ = "x_rooms"
    id: Mapped[int] = key()


class Booking(Base):
    __tablename__ = "x_bookings"
    id: Mapped[int] = mapped_column(primary_key=True)
    room_id: Mapped[int] = mapped_column(ForeignKey(Room.id))
    hour: Mapped[int]


class Slot(Base):
    """A booking that the database does not store twice."""

    __tablename__ = "x_slots"
    __table_args__ = (UniqueConstraint("room", "hour"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    room: Mapped[int]
    hour: Mapped[int]


CLASSES: tuple[type[Base], ...] = (Counter, Guarded, Likes, Room, Booking, Slot)
TABLES = [cls.__table__ for cls in CLASSES]
#: Rows by class: values without the version, which begins anew.
Rows = dict[type[Base], list[dict[str, int]]]


def reset_of(engine: Engine, rows: Rows) -> Callable[[], None]:
    """Return a function that puts these rows back, and leaves no others of their classes."""

    def reset() -> None:
        with engine.begin() as connection:
            for cls in reversed(CLASSES):
                if cls in rows:
                    connection.execute(delete(cls.__table__))
            for cls in CLASSES:
                if rows.get(cls):
                    first = {"version": 1} if issubclass(cls, Versioned) else {}
                    connection.execute(insert(cls.__table__), [one | first for one in rows[cls]])

    return reset
