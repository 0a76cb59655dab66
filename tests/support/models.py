"""Models that the guard's tests share: each is as small as the question it stands for."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Enum,
    ForeignKey,
    Interval,
    LargeBinary,
    Numeric,
    String,
    Table,
    Uuid,
    func,
)
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from optilock import Versioned, client_wins
from optilock.resolvers import OnDelete
from optilock.tokens import Counter, RowVersion, Timestamp, Unique


class Base(DeclarativeBase):
    type_annotation_map = {str: String(60)}


def own_base() -> Any:
    """A base for the classes of one file, whose names then meet no names of other tests."""

    class Base(DeclarativeBase):
        type_annotation_map = {str: String(60)}

    return Base


def key() -> Any:
    """A primary key that the test chooses."""
    return mapped_column(primary_key=True, autoincrement=False)


class Account(Versioned, Base):
    __tablename__ = "accounts"
    id: Mapped[int] = key()
    owner: Mapped[str | None]
    balance: Mapped[int] = mapped_column(default=0)
    note: Mapped[str | None]


class Note(Versioned, Base):
    """Keys are used again: its token is random."""

    __tablename__ = "notes"
    __version_token__ = Unique()
    id: Mapped[int] = key()
    text: Mapped[str | None]


class Decided(Versioned, Base):
    """The class has a resolver."""

    __tablename__ = "decided"
    __on_conflict__ = client_wins
    id: Mapped[int] = key()
    text: Mapped[str | None]


class Native(Base):
    """SQLAlchemy's own versioning, without the mixin."""

    __tablename__ = "natives"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    revision: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": revision}


class Signed(Versioned, Base):
    """The database moves the version."""

    __tablename__ = "signed"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    owner: Mapped[str | None]


class Timed(Versioned, Base):
    """The version is the server's time."""

    __tablename__ = "timed"
    __version_token__ = Timestamp()
    id: Mapped[int] = key()
    owner: Mapped[str | None]


class Seat(Versioned, Base):
    """A key of two columns; the second is not in alphabetical order."""

    __tablename__ = "seats"
    show: Mapped[str] = key()
    number: Mapped[int] = key()
    guest: Mapped[str | None]


class Odd(Versioned, Base):
    """Names that need quotes, or that look like parameters."""

    __tablename__ = "odd table"
    __version_token__ = Counter(column="_version%id")
    id: Mapped[int] = mapped_column("odd id", primary_key=True, autoincrement=False)
    name: Mapped[str | None] = mapped_column("odd name")
    select: Mapped[str | None] = mapped_column("select")
    colon: Mapped[int | None] = mapped_column("co:lon")


class Ranked(Versioned, Base):
    """The rank is unique."""

    __tablename__ = "ranked"
    id: Mapped[int] = key()
    rank: Mapped[int] = mapped_column(unique=True)
    name: Mapped[str | None]


class Page(Versioned, Base):
    """A counter that neither bumps nor conflicts."""

    __tablename__ = "pages"
    __version_ignore__ = ("views",)
    id: Mapped[int] = key()
    body: Mapped[str | None]
    views: Mapped[int] = mapped_column(default=0)


class Settings(Versioned, Base):
    """Values that are changed in place."""

    __tablename__ = "settings"
    id: Mapped[int] = key()
    data: Mapped[dict[str, Any] | None] = mapped_column(MutableDict.as_mutable(JSON()))
    plain: Mapped[Any | None] = mapped_column(JSON)
    name: Mapped[str | None]


class Colour(enum.Enum):
    red = 1
    green = 2


class Upper(TypeDecorator[str]):
    """Stored in capitals, given back in small letters."""

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.upper()

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.lower()


class Kinds(Versioned, Base):
    """One column of every common type."""

    __tablename__ = "kinds"
    id: Mapped[int] = key()
    big: Mapped[int | None] = mapped_column(BigInteger)
    flag: Mapped[bool | None]
    real: Mapped[float | None]
    price: Mapped[decimal.Decimal | None] = mapped_column(Numeric(10, 2))
    short: Mapped[str | None] = mapped_column(String(5))
    upper: Mapped[str | None] = mapped_column(Upper)
    blob: Mapped[bytes | None] = mapped_column(LargeBinary)
    day: Mapped[datetime.date | None]
    clock: Mapped[datetime.time | None]
    moment: Mapped[datetime.datetime | None]
    zoned: Mapped[datetime.datetime | None] = mapped_column(DateTime(timezone=True))
    span: Mapped[datetime.timedelta | None] = mapped_column(Interval)
    token: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    tag: Mapped[uuid.UUID | None] = mapped_column(Uuid(native_uuid=False))
    colour: Mapped[Colour | None] = mapped_column(Enum(Colour, name="colour_kind"))
    word: Mapped[Colour | None] = mapped_column(Enum(Colour, native_enum=False))
    data: Mapped[Any | None] = mapped_column(JSON)


def _next_stamp(context: Any) -> str:
    """Depends on the other values of the row."""
    return f"{context.get_current_parameters().get('name')}!"


class Stamped(Versioned, Base):
    """``onupdate`` in every form, and what the server fills in."""

    __tablename__ = "stamped"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    scalar: Mapped[int | None] = mapped_column(onupdate=7)
    called: Mapped[str | None] = mapped_column(onupdate=lambda: uuid.uuid4().hex)
    derived: Mapped[str | None] = mapped_column(onupdate=_next_stamp)
    born: Mapped[int] = mapped_column(server_default="5")


class Clocked(Versioned, Base):
    """The database computes the new value of one column."""

    __tablename__ = "clocked"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    lower: Mapped[str | None] = mapped_column(onupdate=func.lower("ABC"))


class Eager(Versioned, Base):
    """What the database computes is asked for at once."""

    __tablename__ = "eager"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    lower: Mapped[str | None] = mapped_column(onupdate=func.lower("ABC"))
    __mapper_args__ = {"eager_defaults": True}


class Animal(Versioned, Base):
    """Joined tables: the version is in the base one."""

    __tablename__ = "animals"
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}


class Dog(Animal):
    __tablename__ = "dogs"
    id: Mapped[int] = mapped_column(ForeignKey("animals.id"), primary_key=True)
    tricks: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "dog"}


class Employee(Versioned, Base):
    """One table for several classes."""

    __tablename__ = "employees"
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "employee"}


class Manager(Employee):
    budget: Mapped[int | None]
    __mapper_args__ = {"polymorphic_identity": "manager"}


class Vehicle(Base):
    """Joined tables: only the child has a version."""

    __tablename__ = "vehicles"
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "vehicle"}


class Car(Versioned, Vehicle):
    __tablename__ = "cars"
    id: Mapped[int] = mapped_column(ForeignKey("vehicles.id"), primary_key=True)
    doors: Mapped[int | None]
    __mapper_args__ = {"polymorphic_identity": "car"}


post_tags = Table(
    "post_tags",
    Base.metadata,
    Column("post_id", ForeignKey("posts.id"), primary_key=True),
    Column("tag_id", ForeignKey("tags.id"), primary_key=True),
)


class Post(Versioned, Base):
    """Children that go with it, and links."""

    __tablename__ = "posts"
    id: Mapped[int] = key()
    title: Mapped[str | None]
    comments: Mapped[list[Comment]] = relationship(
        back_populates="post", cascade="all, delete-orphan", order_by="Comment.id"
    )
    tags: Mapped[list[Tag]] = relationship(secondary=post_tags, order_by="Tag.id")


class Comment(Versioned, Base):
    __tablename__ = "comments"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    post_id: Mapped[int | None] = mapped_column(ForeignKey("posts.id"))
    post: Mapped[Post | None] = relationship(back_populates="comments")


class Tag(Base):
    __tablename__ = "tags"
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Folder(Versioned, Base):
    """The database deletes the files."""

    __tablename__ = "folders"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    files: Mapped[list[File]] = relationship(cascade="all, delete", passive_deletes=True)


class File(Base):
    __tablename__ = "files"
    id: Mapped[int] = key()
    folder_id: Mapped[int] = mapped_column(ForeignKey("folders.id", ondelete="CASCADE"))


class Team(Versioned, Base):
    """Two tables that point to each other: the second pointer needs a second UPDATE."""

    __tablename__ = "teams"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    captain_id: Mapped[int | None] = mapped_column(
        ForeignKey("players.id", use_alter=True, name="fk_captain")
    )
    captain: Mapped[Player | None] = relationship(foreign_keys=captain_id, post_update=True)
    players: Mapped[list[Player]] = relationship(
        back_populates="team", foreign_keys="Player.team_id"
    )


class Player(Versioned, Base):
    __tablename__ = "players"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    team_id: Mapped[int | None] = mapped_column(ForeignKey("teams.id"))
    team: Mapped[Team | None] = relationship(back_populates="players", foreign_keys=team_id)


class Draft(Versioned, Base):
    """Whoever deletes it first is right."""

    __tablename__ = "drafts"
    __on_delete__ = OnDelete.IGNORE_GONE
    id: Mapped[int] = key()
    text: Mapped[str | None]
