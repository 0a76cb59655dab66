"""optilock for an ``AsyncSession``: the same units, and the same edits under a precondition.

SQLAlchemy's asyncio half needs greenlet (``pip install "optilock[asyncio]"``); the rest of optilock
does not, so this module is loaded only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from optilock.preconditions.apply import apply as edit_row
from optilock.preconditions.etag import NOT_GIVEN
from optilock.unit.async_unit import AsyncUnitOfWork

__all__ = ["AsyncUnitOfWork", "apply"]

T = TypeVar("T")


async def apply(
    session: AsyncSession,
    model: type[T],
    pk: Any,
    changes: Mapping[str, Any],
    *,
    expected: object = NOT_GIVEN,
    version: object = NOT_GIVEN,
) -> T:
    """:func:`optilock.apply` for an ``AsyncSession``: same arguments, rules and errors."""

    def edit(sync: Session) -> T:
        return edit_row(sync, model, pk, changes, expected=expected, version=version)

    return await session.run_sync(edit)
