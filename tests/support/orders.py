"""An aggregate with all kinds of parts, and a session, watched or plain, over two such orders."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, ForeignKey, Table
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from optilock import Versioned
from tests.support.models import Base, key

links = Table(
    "ag_links",
    Base.metadata,
    Column("order_id", ForeignKey("ag_orders.id"), primary_key=True),
    Column("label_id", ForeignKey("ag_labels.id"), primary_key=True),
)


class Order(Versioned, Base):
    __tablename__ = "ag_orders"
    __version_root_of__ = ("lines", "labels", "receipt", "remarks")
    id: Mapped[int] = key()
    name: Mapped[str | None]
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade="all, delete-orphan", order_by="Line.id"
    )
    labels: Mapped[list[Label]] = relationship(secondary=links, back_populates="orders")
    receipt: Mapped[Receipt | None] = relationship(back_populates="order", uselist=False)
    remarks: Mapped[list[Remark]] = relationship()


class Line(Versioned, Base):
    """A child that is a root itself."""

    __tablename__ = "ag_lines"
    __version_root_of__ = ("parts",)
    __version_ignore__ = ("seen",)
    id: Mapped[int] = key()
    text: Mapped[str | None]
    seen: Mapped[int | None]
    order_id: Mapped[int | None] = mapped_column(ForeignKey("ag_orders.id"))
    order: Mapped[Order | None] = relationship(back_populates="lines")
    parts: Mapped[list[Part]] = relationship(back_populates="line")


class Part(Base):
    """A grandchild without a version."""

    __tablename__ = "ag_parts"
    __version_token__ = None
    id: Mapped[int] = key()
    text: Mapped[str | None]
    line_id: Mapped[int | None] = mapped_column(ForeignKey("ag_lines.id"))
    line: Mapped[Line | None] = relationship(back_populates="parts")


class Label(Versioned, Base):
    """Linked, not owned."""

    __tablename__ = "ag_labels"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    orders: Mapped[list[Order]] = relationship(secondary=links, back_populates="labels")


class Receipt(Base):
    """One to one."""

    __tablename__ = "ag_receipts"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    order_id: Mapped[int | None] = mapped_column(ForeignKey("ag_orders.id"), unique=True)
    order: Mapped[Order | None] = relationship(back_populates="receipt")


class Remark(Base):
    """A child that does not know its parent."""

    __tablename__ = "ag_remarks"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    order_id: Mapped[int | None] = mapped_column(ForeignKey("ag_orders.id"))


@pytest.fixture(params=["watched", "plain"])
def session(request, store, tables, watched, engine):
    """Two orders; the first one with a line that has a part, a label, a receipt and a remark."""
    tables(Order, Line, Part)
    label = Label(id=1, text="a")
    store(
        Order(
            id=1,
            lines=[Line(id=1, text="a", parts=[Part(id=1, text="a")]), Line(id=2)],
            labels=[label],
            receipt=Receipt(id=1),
            remarks=[Remark(id=1)],
        ),
        Order(id=2),
        Label(id=2),
    )
    if request.param == "watched":
        yield watched()
    else:
        with Session(engine) as plain:
            yield plain
