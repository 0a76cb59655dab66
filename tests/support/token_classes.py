"""A class with each kind of token, with a subclass in a joined table; what a new row needs."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import ForeignKey, Integer, String, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from optilock import Versioned
from optilock.tokens import Counter, Manual, RowVersion, Timestamp, Unique
from tests.support.hash_token import Hash
from tests.support.models import Base
from tests.support.tens_token import Random64, Tens

__all__ = ["TOKENS", "docs", "new", "with_version"]


def _model(prefix: str, name: str, token: Any) -> Any:
    """A class with this token; ``.Letter`` is a subclass whose rows have a joined table."""
    table = f"{prefix}_{name.lower()}"
    body = {
        "__tablename__": table,
        "__version_token__": token,
        "__annotations__": {"title": Mapped[str | None], "body": Mapped[str | None]},
        "id": mapped_column(Integer, primary_key=True, autoincrement=False),
        "kind": mapped_column(String(10)),
        "__mapper_args__": {"polymorphic_on": "kind", "polymorphic_identity": "doc"},
    }
    doc: Any = type(f"{prefix.title()}{name}Doc", (Versioned, Base), body)
    joined = {
        "__tablename__": f"{table}_letters",
        "__annotations__": {"to": Mapped[str | None]},
        "id": mapped_column(ForeignKey(f"{table}.id"), primary_key=True),
        "__mapper_args__": {"polymorphic_identity": "letter"},
    }
    doc.Letter = type(f"{prefix.title()}{name}Letter", (doc,), joined)
    return doc


TOKENS = {
    "Counter": Counter(),
    "Unique": Unique(),
    "Timestamp": Timestamp(),
    "RowVersion": RowVersion(),
    "Xmin": RowVersion(xmin=True),
    "Manual": Manual(Uuid()),
    "Tens": Tens(),
    "Random64": Random64(),
    "Hash": Hash("title", "body", "to"),
}


def docs(prefix: str) -> dict[str, Any]:
    """The classes, in tables of their own."""
    return {name: _model(prefix, name, token) for name, token in TOKENS.items()}


def with_version(cls: Any, values: dict[str, Any]) -> dict[str, Any]:
    """An application that makes the versions gives a new one with each edit."""
    manual = cls.__version_token__.made_by == "application"
    return {**values, "version": uuid.uuid4()} if manual else values


def new(cls: Any, **values: Any) -> Any:
    return cls(**with_version(cls, values))
