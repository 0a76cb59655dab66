"""Models of the tests of entity operations: one for each token, and what replacements reset."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Computed, Integer, String, func
from sqlalchemy.orm import Mapped, mapped_column

from optilock import Versioned
from optilock.tokens import Counter, RowVersion, Timestamp, Unique
from tests.support.hash_token import Hash
from tests.support.models import key, own_base
from tests.support.tens_token import Tens

__all__ = ["KINDS", "Reset", "Thing", "Visited"]

TOKENS = {
    "Counter": Counter(),
    "Unique": Unique(),
    "Timestamp": Timestamp(),
    "RowVersion": RowVersion(),
    "Xmin": RowVersion(xmin=True),
    "Tens": Tens(),
    "Hash": Hash("title", "body"),
}

Base = own_base()


def _kind(name: str, token: Any) -> Any:
    body = {
        "__tablename__": f"ent_{name.lower()}",
        "__version_token__": token,
        "__annotations__": {"title": Mapped[str | None], "body": Mapped[str | None]},
        "id": mapped_column(Integer, primary_key=True, autoincrement=False),
    }
    return type(f"{name}Entity", (Versioned, Base), body)


#: A class for each token that moves by itself.
KINDS = {name: _kind(name, token) for name, token in TOKENS.items()}


class Native(Base):
    """SQLAlchemy's own versioning, with random versions."""

    __tablename__ = "ent_native"
    id: Mapped[int] = key()
    title: Mapped[str | None]
    body: Mapped[str | None]
    revision: Mapped[uuid.UUID] = mapped_column()
    __mapper_args__ = {
        "version_id_col": revision,
        "version_id_generator": lambda version: uuid.uuid4(),
    }


KINDS["Native"] = Native


class Thing(Versioned, Base):
    """The database makes its key."""

    __tablename__ = "ent_things"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


class Reset(Versioned, Base):
    """A column of each kind that a replacement has to give a value."""

    __tablename__ = "ent_reset"
    id: Mapped[int] = key()
    plain: Mapped[str | None]
    scalar: Mapped[int] = mapped_column(default=5)
    called: Mapped[str] = mapped_column(default=lambda: "made")
    derived: Mapped[str | None] = mapped_column(
        default=lambda context: f"{context.get_current_parameters().get('plain')}!"
    )
    sql: Mapped[str | None] = mapped_column(default=func.lower("SQL"))
    server: Mapped[int] = mapped_column(server_default="7")
    text: Mapped[str] = mapped_column(server_default="it's 100%")
    touched: Mapped[str | None] = mapped_column(onupdate=lambda: "touched")
    double: Mapped[int | None] = mapped_column(Computed("scalar * 2"))


class Visited(Versioned, Base):
    """``visits`` neither moves the version nor conflicts."""

    __tablename__ = "ent_visited"
    __version_ignore__ = ("visits",)
    id: Mapped[int] = key()
    name: Mapped[str | None]
    visits: Mapped[int] = mapped_column(default=0)
