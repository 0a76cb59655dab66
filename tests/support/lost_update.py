"""One story for every mapping: two sessions change the same row, and the second one is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import MetaData, create_engine, select
from sqlalchemy.orm import DeclarativeBase, registry, sessionmaker
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import StaticPool

from optilock import ConcurrencyError, watch

__all__ = ["base", "errors_of_a_lost_update", "is_protected"]


def base(*bases: type[Any]) -> Any:
    """A declarative base of its own."""
    return type("Base", (*bases, DeclarativeBase), {"registry": registry()})


def is_protected(cls: Any, metadata: MetaData, *, query: Any = None, **values: Any) -> bool:
    """Is the second writer of ``name`` told, in a plain session and in a watched one?"""
    told = list(errors_of_a_lost_update(cls, metadata, query=query, **values))
    return told == [StaleDataError, ConcurrencyError]


def errors_of_a_lost_update(
    cls: Any, metadata: MetaData, *, query: Any = None, **values: Any
) -> Iterator[type[Exception] | None]:
    for wrap in (lambda maker: maker, watch):
        engine = create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(engine)
        sessions = wrap(sessionmaker(engine, expire_on_commit=False))
        with sessions.begin() as session:
            session.add(cls(**{"id": 1, "name": "a", **values}))
        with sessions() as mine, sessions() as theirs:
            ours = mine.scalars(select(cls) if query is None else query).one()
            assert ours.name == "a"
            mine.commit()
            theirs.get_one(cls, 1).name = "theirs"
            theirs.commit()
            ours.name = "mine"
            try:
                mine.commit()
            except Exception as error:
                yield type(error)
            else:
                yield None
        metadata.drop_all(engine)
        engine.dispose()
