"""optilock for an ``AsyncSession``: the same units, edits, entities and leases.

SQLAlchemy's asyncio half needs greenlet (``pip install "optilock[asyncio]"``); the rest of optilock
does not, so this module is loaded only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from optilock import entities
from optilock.leases.tasks import lease
from optilock.preconditions.apply import apply as edit_row
from optilock.preconditions.etag import NOT_GIVEN
from optilock.preconditions.merge import merge_changes as merge_row
from optilock.unit.async_unit import AsyncUnitOfWork

__all__ = [
    "AsyncUnitOfWork",
    "apply",
    "delete",
    "insert",
    "insert_or_merge",
    "insert_or_replace",
    "lease",
    "merge",
    "merge_changes",
    "replace",
    "transaction",
]

T = TypeVar("T")
P = ParamSpec("P")


async def apply(
    session: AsyncSession,
    model: type[T],
    pk: Any,
    changes: Mapping[str, Any],
    *,
    expected: object = NOT_GIVEN,
    version: object = NOT_GIVEN,
    seen: Mapping[str, Any] | None = None,
) -> T:
    """:func:`optilock.apply` for an ``AsyncSession``: same arguments, rules and errors."""

    def edit(sync: Session) -> T:
        return edit_row(sync, model, pk, changes, expected=expected, version=version, seen=seen)

    return await session.run_sync(edit)


def _awaited(
    operation: Callable[Concatenate[Session, P], T],
) -> Callable[Concatenate[AsyncSession, P], Awaitable[T]]:
    """The operation for an ``AsyncSession``: same arguments, rules and errors."""

    async def awaited(session: AsyncSession, /, *args: P.args, **options: P.kwargs) -> T:
        return await session.run_sync(operation, *args, **options)

    awaited.__name__, awaited.__doc__ = operation.__name__, operation.__doc__
    return awaited


merge_changes = _awaited(merge_row)
insert = _awaited(entities.insert)
replace = _awaited(entities.replace)
merge = _awaited(entities.merge)
delete = _awaited(entities.delete)
insert_or_replace = _awaited(entities.insert_or_replace)
insert_or_merge = _awaited(entities.insert_or_merge)
transaction = _awaited(entities.transaction)
