"""What tests use that the oldest supported SQLAlchemy (2.0.20) does not have: ``get_one``."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import NoResultFound
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

__all__ = ["add_get_one"]


def add_get_one() -> None:
    """``Session.get_one`` and ``AsyncSession.get_one``, which came with SQLAlchemy 2.0.22."""
    if not hasattr(Session, "get_one"):
        setattr(Session, "get_one", _get_one)  # noqa: B010
        setattr(AsyncSession, "get_one", _get_one_async)  # noqa: B010


def _get_one(self: Session, *key: Any, **options: Any) -> Any:
    return _found(self.get(*key, **options))


async def _get_one_async(self: AsyncSession, *key: Any, **options: Any) -> Any:
    return _found(await self.get(*key, **options))


def _found(obj: Any) -> Any:
    if obj is None:
        raise NoResultFound("No row was found when one was required")
    return obj
