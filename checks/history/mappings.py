"""What the histories are about: a few small mappings, each with several tokens.

All columns but keys are short texts, because every value that is written is unique. ``body`` is
deferred; ``views`` and ``mark`` are ignored. ``likes`` are numbers, to which authors add.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, ForeignKey, String, Table, event, insert, inspect, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    configure_mappers,
    mapped_column,
    object_session,
    relationship,
    sessionmaker,
)

from checks.history.model import VERSION, Kind, Row, Values
from optilock import Versioned, watch
from optilock.tokens import CompareValues, Counter, RowVersion, Timestamp, Unique

__all__ = ["EARLY", "MAPPINGS", "POLICIES", "Mapping_", "mapping"]

#: Sessions that were watched before any mapper was configured, which is the usual order.
POLICIES = ("none", "client_wins", "store_wins", "merge_fields")
EARLY = {expire: watch(sessionmaker(expire_on_commit=expire)) for expire in (True, False)}

_TOKENS: dict[str, Callable[[], Any]] = {
    "counter": Counter,
    "unique": Unique,
    "timestamp": Timestamp,
    "rowversion": RowVersion,
    "named": lambda: CompareValues("title", "note"),
    "all": CompareValues.all,
    "changed": CompareValues.changed,
    "plain": lambda: None,
}
_CHECKS = {"named": "named", "all": "all", "changed": "changed", "plain": "nothing"}


@dataclass(frozen=True)
class Mapping_:
    """Classes, what the model knows of them, and the rows that every history begins with."""

    name: str
    base: type[DeclarativeBase]
    classes: Mapping[str, type[Any]]
    kinds: tuple[Kind, ...]
    #: Statements that read the rows of a kind as they are stored.
    reads: Mapping[str, Any]
    #: Table rows, parents first.
    first: tuple[tuple[Table, tuple[dict[str, Any], ...]], ...]

    def kind(self, name: str) -> Kind:
        return next(kind for kind in self.kinds if kind.name == name)

    @property
    def rows(self) -> list[Row]:
        """The rows of versioned classes that are there at first."""
        return [
            (name, values["id"])
            for table, rows in self.first
            for name, cls in self.classes.items()
            if cls.__table__ is table and name != "tag"
            for values in rows
        ]

    def row_of(self, obj: Any) -> Row | None:
        for name, cls in self.classes.items():
            if type(obj) is cls:
                key = inspect(obj).identity
                return (name, key[0]) if key else None
        return None

    def reset(self, connection: Connection) -> None:
        for table in reversed(self.base.metadata.sorted_tables):
            connection.execute(table.delete())
        for table, rows in self.first:
            connection.execute(insert(table), list(rows))

    def stored(self, connection: Connection) -> dict[Row, Values]:
        found: dict[Row, Values] = {}
        for kind in self.kinds:
            for values in connection.execute(self.reads[kind.name]).mappings():
                if kind.links:
                    found[kind.name, tuple(values.values())] = {}
                else:
                    columns = {name: value for name, value in values.items() if name != "id"}
                    found[kind.name, values["id"]] = columns
        return found


def _base(token: str) -> tuple[type[DeclarativeBase], type[Any]]:
    """A declarative base, and the class from which versioned ones are derived."""

    class Base(DeclarativeBase):
        type_annotation_map = {str: String(20)}

    class Plain:
        """No version, as SQLAlchemy comes."""

    if token == "plain":
        return Base, Plain

    class Guarded(Versioned):
        __version_token__ = _TOKENS[token]()

    return Base, Guarded


def _key() -> Any:
    return mapped_column(primary_key=True, autoincrement=False)


def _read(table: Table, *others: Table) -> Any:
    columns = {column.key: column for other in reversed((table, *others)) for column in other.c}
    whole = table
    for other in others:
        whole = whole.join(other)  # type: ignore[assignment]
    return select(*(column.label(key) for key, column in columns.items())).select_from(whole)


def _values(row: int, *columns: str) -> dict[str, Any]:
    return {column: f"{column}-{row}" for column in columns}


def _pages(token: str) -> Mapping_:
    base, guarded = _base(token)
    # What the database moves by itself, it moves at every write.
    ignored = () if token == "rowversion" else ("views", "mark")

    class Page(guarded, base):  # type: ignore[misc, valid-type]
        __tablename__ = f"history_pages_{token}"
        if token != "plain":
            __version_ignore__ = ignored
        id: Mapped[int] = _key()
        title: Mapped[str]
        note: Mapped[str]
        body: Mapped[str] = mapped_column(deferred=True)
        views: Mapped[str]
        mark: Mapped[str]

    columns = ("title", "note", "body", "views", "mark")
    kind = Kind(
        "page",
        columns,
        ignored=frozenset(ignored),
        check=_CHECKS.get(token, VERSION),
        named=frozenset({"title", "note"}) if token == "named" else frozenset(),
    )
    rows = tuple({"id": n, **_values(n, *columns)} for n in (1, 2, 3))
    return Mapping_(
        f"pages-{token}",
        base,
        {"page": Page},
        (kind,),
        {"page": _read(Page.__table__)},
        ((Page.__table__, rows),),
    )


def _liked(token: str) -> Mapping_:
    """Pages to whose ``likes`` authors add."""
    base, guarded = _base(token)

    class Liked(guarded, base):  # type: ignore[misc, valid-type]
        __tablename__ = f"history_liked_{token}"
        __version_commutes__ = ("likes",)
        id: Mapped[int] = _key()
        title: Mapped[str]
        note: Mapped[str]
        body: Mapped[str] = mapped_column(deferred=True)
        likes: Mapped[int]

    columns = ("title", "note", "body")
    rows = tuple({"id": n, "likes": 0, **_values(n, *columns)} for n in (1, 2, 3))
    return Mapping_(
        f"liked-{token}",
        base,
        {"liked": Liked},
        (Kind("liked", columns, counter="likes"),),
        {"liked": _read(Liked.__table__)},
        ((Liked.__table__, rows),),
    )


def _dogs(token: str) -> Mapping_:
    base, guarded = _base(token)

    class Animal(guarded, base):  # type: ignore[misc, valid-type]
        __tablename__ = f"history_animals_{token}"
        id: Mapped[int] = _key()
        kind: Mapped[str]
        title: Mapped[str]
        note: Mapped[str]
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}

    class Dog(Animal):
        __tablename__ = f"history_dogs_{token}"
        id: Mapped[int] = mapped_column(ForeignKey(Animal.id), primary_key=True)
        body: Mapped[str]
        trick: Mapped[str]
        __mapper_args__ = {"polymorphic_identity": "dog"}

    animals, dogs = Animal.__table__, Dog.__table__
    kind = Kind("dog", ("title", "note", "body", "trick"))
    return Mapping_(
        f"dogs-{token}",
        base,
        {"dog": Dog},
        (kind,),
        {"dog": _read(animals, dogs)},
        (
            (
                animals,
                tuple({"id": n, "kind": "dog", **_values(n, "title", "note")} for n in (1, 2)),
            ),
            (dogs, tuple({"id": n, **_values(n, "body", "trick")} for n in (1, 2))),
        ),
    )


def _orders(token: str) -> Mapping_:
    base, guarded = _base(token)

    class Order(guarded, base):  # type: ignore[misc, valid-type]
        __tablename__ = f"history_orders_{token}"
        __version_root_of__ = ("lines",)
        id: Mapped[int] = _key()
        title: Mapped[str]
        note: Mapped[str]
        lines: Mapped[list[Any]] = relationship("Line", back_populates="order", order_by="Line.id")

    class Line(guarded, base):  # type: ignore[misc, valid-type]
        __tablename__ = f"history_lines_{token}"
        id: Mapped[int] = _key()
        title: Mapped[str]
        note: Mapped[str]
        body: Mapped[str] = mapped_column(deferred=True)
        order_id: Mapped[int | None] = mapped_column(ForeignKey(Order.id))
        order: Mapped[Any] = relationship("Order", back_populates="lines")

    orders, lines = Order.__table__, Line.__table__
    return Mapping_(
        f"orders-{token}",
        base,
        {"order": Order, "line": Line},
        (
            Kind("order", ("title", "note")),
            Kind(
                "line",
                ("title", "note", "body"),
                root="order",
                parent="order",
                parent_column="order_id",
            ),
        ),
        {"order": _read(orders), "line": _read(lines)},
        (
            (orders, tuple({"id": n, **_values(n, "title", "note")} for n in (1, 2))),
            (
                lines,
                tuple(
                    {"id": n, "order_id": 1 + n // 3, **_values(n, "title", "note", "body")}
                    for n in (1, 2, 3)
                ),
            ),
        ),
    )


def _posts(token: str) -> Mapping_:
    base, guarded = _base(token)
    links = Table(
        f"history_post_tags_{token}",
        base.metadata,
        Column("post_id", ForeignKey(f"history_posts_{token}.id"), primary_key=True),
        Column("tag_id", ForeignKey(f"history_tags_{token}.id"), primary_key=True),
    )

    class Post(guarded, base):  # type: ignore[misc, valid-type]
        __tablename__ = f"history_posts_{token}"
        id: Mapped[int] = _key()
        title: Mapped[str]
        note: Mapped[str]
        comments: Mapped[list[Any]] = relationship(
            "Comment", back_populates="post", cascade="all, delete-orphan", order_by="Comment.id"
        )
        tags: Mapped[list[Any]] = relationship("Tag", secondary=links, order_by="Tag.id")

    class Comment(guarded, base):  # type: ignore[misc, valid-type]
        __tablename__ = f"history_comments_{token}"
        id: Mapped[int] = _key()
        title: Mapped[str]
        note: Mapped[str]
        post_id: Mapped[int | None] = mapped_column(ForeignKey(Post.id))
        post: Mapped[Any] = relationship("Post", back_populates="comments")

    class Tag(base):  # type: ignore[misc, valid-type]
        __tablename__ = f"history_tags_{token}"
        id: Mapped[int] = _key()

    posts, comments, tags = Post.__table__, Comment.__table__, Tag.__table__
    return Mapping_(
        f"posts-{token}",
        base,
        {"post": Post, "comment": Comment, "tag": Tag},
        (
            Kind("post", ("title", "note")),
            Kind("comment", ("title", "note"), parent="post", parent_column="post_id"),
            Kind("link", (), parent="post"),
        ),
        {"post": _read(posts), "comment": _read(comments), "link": select(links)},
        (
            (posts, tuple({"id": n, **_values(n, "title", "note")} for n in (1, 2))),
            (
                comments,
                tuple(
                    {"id": n, "post_id": 1 + n // 3, **_values(n, "title", "note")}
                    for n in (1, 2, 3)
                ),
            ),
            (tags, ({"id": 1}, {"id": 2}, {"id": 3})),
            (links, ({"post_id": 1, "tag_id": 1}, {"post_id": 1, "tag_id": 2})),
        ),
    )


_FAMILIES = {"pages": _pages, "liked": _liked, "dogs": _dogs, "orders": _orders, "posts": _posts}
_WITH = {
    "pages": ("counter", "unique", "timestamp", "rowversion", "named", "all", "changed"),
    "liked": ("counter", "unique", "timestamp", "rowversion"),
    "dogs": ("counter", "timestamp", "rowversion"),
    "orders": ("counter", "unique", "rowversion"),
    "posts": ("counter", "rowversion"),
}
MAPPINGS = tuple(f"{family}-{token}" for family, tokens in _WITH.items() for token in tokens)


@functools.cache
def mapping(name: str) -> Mapping_:
    family, token = name.split("-")
    made = _FAMILIES[family](token)
    for cls in (mapper.class_ for mapper in made.base.registry.mappers):
        # A pickle names its class.
        cls.__qualname__ = cls.__tablename__
        globals()[cls.__tablename__] = cls
        event.listen(cls, "after_update", _tell)
    configure_mappers()
    return made


def _tell(mapper: Any, connection: Connection, obj: Any) -> None:
    """An author's own listener is told of a row that was written."""
    session = object_session(obj)
    told = session.info.get("after_update") if session is not None else None
    if told is not None:
        told(obj, connection)
