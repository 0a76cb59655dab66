"""The models of the scenarios; what fits in ``tests.support.models`` is taken from there."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

from sqlalchemy import JSON, Column, Float, ForeignKey, LargeBinary, String, Table, Uuid
from sqlalchemy.ext.mutable import MutableComposite
from sqlalchemy.orm import DeclarativeBase, Mapped, composite, mapped_column, relationship

from optilock import Versioned
from optilock.tokens import CompareValues, Counter, Manual, RowVersion, Timestamp, Unique


class Base(DeclarativeBase):
    type_annotation_map = {str: String(60)}


def key() -> Any:
    """A primary key that the test chooses."""
    return mapped_column(primary_key=True, autoincrement=False)


class Doc(Versioned, Base):
    __tablename__ = "spec_docs"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    other: Mapped[str | None]


class Plain(Base):
    """No version at all."""

    __tablename__ = "spec_plain"
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Parent(Versioned, Base):
    __tablename__ = "spec_parents"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    kids: Mapped[list[Kid]] = relationship(
        back_populates="parent", cascade="all, delete-orphan", order_by="Kid.id"
    )


class Kid(Versioned, Base):
    __tablename__ = "spec_kids"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("spec_parents.id"))
    parent: Mapped[Parent | None] = relationship(back_populates="kids")


class Coded(Versioned, Base):
    """Its key is a text."""

    __tablename__ = "spec_coded"
    code: Mapped[str] = key()
    name: Mapped[str | None]


@dataclasses.dataclass
class Address:
    street: str | None
    city: str | None


class Contact(Versioned, Base):
    """One value of two columns, and one table for two classes."""

    __tablename__ = "spec_contacts"
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str | None]
    address: Mapped[Address] = composite(mapped_column("street"), mapped_column("city"))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "contact"}


class Firm(Contact):
    __mapper_args__ = {"polymorphic_identity": "firm"}


class Blob(Base):
    """SQLAlchemy's own versioning with random bytes."""

    __tablename__ = "spec_blobs"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    version: Mapped[bytes] = mapped_column(LargeBinary(8))
    __mapper_args__ = {
        "version_id_col": version,
        "version_id_generator": lambda _: secrets.token_bytes(8),
    }


class Own(Base):
    """SQLAlchemy's own versioning, moved by the application."""

    __tablename__ = "spec_own"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    version: Mapped[int | None] = mapped_column()
    __mapper_args__ = {"version_id_col": version, "version_id_generator": False}


class Club(Versioned, Base):
    """Points to one of its members, which point to it; the version is random."""

    __tablename__ = "spec_clubs"
    __version_token__ = Unique()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    head_id: Mapped[int | None] = mapped_column(
        ForeignKey("spec_members.id", use_alter=True, name="fk_spec_head")
    )
    head: Mapped[Member | None] = relationship(foreign_keys=head_id, post_update=True)


class Member(Versioned, Base):
    __tablename__ = "spec_members"
    __version_token__ = Unique()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    club_id: Mapped[int | None] = mapped_column(ForeignKey("spec_clubs.id"))


class Node(Versioned, Base):
    """Points to its own kind, written after the row itself."""

    __tablename__ = "spec_nodes"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    up_id: Mapped[int | None] = mapped_column(ForeignKey("spec_nodes.id"))
    up: Mapped[Node | None] = relationship(back_populates="downs", remote_side=id, post_update=True)
    downs: Mapped[list[Node]] = relationship(back_populates="up", post_update=True)


class OwnAnimal(Base):
    """Joined tables, and a version that the application moves."""

    __tablename__ = "spec_own_animals"
    id: Mapped[int] = key()
    kind: Mapped[str]
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {
        "polymorphic_on": "kind",
        "polymorphic_identity": "animal",
        "version_id_col": version,
        "version_id_generator": False,
    }


class OwnDog(OwnAnimal):
    __tablename__ = "spec_own_dogs"
    id: Mapped[int] = mapped_column(ForeignKey("spec_own_animals.id"), primary_key=True)
    tricks: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "dog"}


class Whole(Versioned, Base):
    """No version: all values that were read are compared."""

    __tablename__ = "spec_whole"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    other: Mapped[str | None]
    address: Mapped[Address] = composite(mapped_column("street"), mapped_column("city"))
    keeper_id: Mapped[int | None] = mapped_column(ForeignKey("spec_plain.id"))
    keeper: Mapped[Plain | None] = relationship()


class Dirty(Versioned, Base):
    """No version: the values that are changed are compared."""

    __tablename__ = "spec_dirty"
    __version_token__ = CompareValues.changed()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    other: Mapped[str | None]
    address: Mapped[Address] = composite(mapped_column("street"), mapped_column("city"))
    keeper_id: Mapped[int | None] = mapped_column(ForeignKey("spec_plain.id"))
    keeper: Mapped[Plain | None] = relationship()


class Sheet(Versioned, Base):
    """All values that were read are compared, of types that SQL does not compare well."""

    __tablename__ = "spec_sheets"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    real: Mapped[float | None] = mapped_column(Float(53))
    blob: Mapped[bytes | None] = mapped_column(LargeBinary)
    data: Mapped[Any | None] = mapped_column(JSON)
    late: Mapped[str | None] = mapped_column(deferred=True)


@dataclasses.dataclass
class Point(MutableComposite):
    x: int
    y: int

    def __setattr__(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)
        self.changed()


class Mark(Versioned, Base):
    """A value of two columns that is changed in place."""

    __tablename__ = "spec_marks"
    id: Mapped[int] = key()
    at: Mapped[Point] = composite(mapped_column("x"), mapped_column("y"))


class Placed(Versioned, Base):
    """One part of the composite is the token, and may be NULL."""

    __tablename__ = "spec_placed"
    __version_token__ = CompareValues("city")
    id: Mapped[int] = key()
    name: Mapped[str | None]
    address: Mapped[Address] = composite(mapped_column("street"), mapped_column("city"))


class Beast(Versioned, Base):
    """Joined tables, with a relationship in the second."""

    __tablename__ = "spec_beasts"
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "beast"}


class Tame(Beast):
    __tablename__ = "spec_tame"
    id: Mapped[int] = mapped_column(ForeignKey("spec_beasts.id"), primary_key=True)
    tricks: Mapped[str | None]
    keeper_id: Mapped[int | None] = mapped_column(ForeignKey("spec_plain.id"))
    keeper: Mapped[Plain | None] = relationship()
    __mapper_args__ = {"polymorphic_identity": "tame"}


@dataclasses.dataclass(frozen=True)
class Tens(Counter):
    """A token of one's own: it begins at 10 and counts down by ten."""

    def next(self, value: Any) -> int:
        return 10 if value is None else int(value) - 10


class Counted(Versioned, Base):
    __tablename__ = "spec_counted"
    __version_token__ = Tens()
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Clock(Versioned, Base):
    """The server's time is the version."""

    __tablename__ = "spec_clocks"
    __version_token__ = Timestamp()
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Contract(Versioned, Base):
    """The application moves the version."""

    __tablename__ = "spec_contracts"
    __version_token__ = Manual(Uuid())
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Shelf(Versioned, Base):
    """Sees the others of its name, and does not write them."""

    __tablename__ = "spec_shelves"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    twins: Mapped[list[Shelf]] = relationship(
        primaryjoin="foreign(Shelf.name) == remote(Shelf.name)", viewonly=True, uselist=True
    )


class Moved(Versioned, Base):
    """The database moves the version by a trigger."""

    __tablename__ = "spec_moved"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    name: Mapped[str | None]


label_links = Table(
    "spec_label_links",
    Base.metadata,
    Column("order_id", ForeignKey("spec_aggregates.id"), primary_key=True),
    Column("label_id", ForeignKey("spec_labels.id"), primary_key=True),
)


class Order(Versioned, Base):
    """Stands for its lines, their parts, and the labels it has."""

    __tablename__ = "spec_aggregates"
    __version_root_of__ = ("lines", "labels")
    id: Mapped[int] = key()
    name: Mapped[str | None]
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade="all, delete-orphan", order_by="Line.id"
    )
    labels: Mapped[list[Label]] = relationship(secondary=label_links, back_populates="orders")


class Line(Versioned, Base):
    __tablename__ = "spec_lines"
    __version_root_of__ = ("parts",)
    id: Mapped[int] = key()
    amount: Mapped[int] = mapped_column(default=1)
    order_id: Mapped[int | None] = mapped_column(ForeignKey("spec_aggregates.id"))
    order: Mapped[Order | None] = relationship(back_populates="lines")
    parts: Mapped[list[Part]] = relationship(cascade="all, delete-orphan")


class Part(Base):
    __tablename__ = "spec_parts"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    line_id: Mapped[int] = mapped_column(ForeignKey("spec_lines.id"))


class Label(Versioned, Base):
    __tablename__ = "spec_labels"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    orders: Mapped[list[Order]] = relationship(secondary=label_links, back_populates="labels")
