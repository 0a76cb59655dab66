"""The models of the scenarios; what fits in ``tests.models`` is taken from there."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import DeclarativeBase, Mapped, composite, mapped_column, relationship

from optilock import Unique, Versioned


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
