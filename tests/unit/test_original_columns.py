"""Of which columns the original values are copied when a row is loaded."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, PickleType, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock._mapping.original_values import kept_names


class Base(DeclarativeBase):
    pass


class Plain(Versioned, Base):
    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]
    blob: Mapped[bytes]
    number: Mapped[float]
    price: Mapped[Decimal]
    on: Mapped[bool]
    day: Mapped[date]
    at: Mapped[time]
    when: Mapped[datetime]
    lasts: Mapped[timedelta]
    uuid: Mapped[UUID]


class Changing(Versioned, Base):
    __tablename__ = "changing"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[float]
    data: Mapped[Any] = mapped_column(JSON)
    thing: Mapped[Any] = mapped_column(PickleType)


def test_values_that_cannot_be_changed_in_place_are_not_copied():
    assert kept_names(inspect(Plain)) == ()


def test_those_that_can_are():
    assert kept_names(inspect(Changing)) == ("data", "thing")
