"""Rooms and their bookings, which have scopes: of a room, and of the whole table."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from optilock import Versioned


class Base(DeclarativeBase):
    pass


class Room(Versioned, Base):
    __tablename__ = "rooms"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    bookings: Mapped[list[Booking]] = relationship(back_populates="room")


class Booking(Versioned, Base):
    __tablename__ = "bookings"
    __version_scopes__ = ("room_id", ())
    __version_ignore__ = ("seen",)
    __version_commutes__ = ("likes",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    room_id: Mapped[int | None] = mapped_column(ForeignKey("rooms.id"))
    hour: Mapped[int] = mapped_column(default=0)
    seen: Mapped[int] = mapped_column(default=0)
    likes: Mapped[int] = mapped_column(default=0)
    room: Mapped[Room | None] = relationship(back_populates="bookings")


class Seat(Versioned, Base):
    """A booking of a class with one scope, so that two rooms have no row in common.

    The attribute has another name than its column.
    """

    __tablename__ = "seats"
    __version_scopes__ = ("room",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    room: Mapped[int] = mapped_column("room_id")
    hour: Mapped[int] = mapped_column(default=0)


class Shift(Versioned, Base):
    """A table without scopes, where decisions about rooms are written."""

    __tablename__ = "shifts"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    note: Mapped[int] = mapped_column(default=0)


SEVEN, EIGHT, ALL = Booking.scope(room_id=7), Booking.scope(room_id=8), Booking.scope()
