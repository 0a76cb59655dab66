"""optilock for an ``AsyncSession``: the same units, edits, locks, entities, leases, share modes.

:func:`committed` and :func:`purge` are those of :mod:`optilock.exactly_once`.

SQLAlchemy's asyncio half needs greenlet (``pip install "optilock[asyncio]"``); the rest of optilock
does not, so this module is loaded only when it is used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from optilock import entities
from optilock import shares as _shares
from optilock._mapping.scopes import Scope
from optilock.exactly_once.questions import committed_async as committed
from optilock.exactly_once.retention import purge_async as purge
from optilock.leases.holders import acquire_held
from optilock.leases.holders import lease as _lease
from optilock.leases.tasks import held_in_task
from optilock.preconditions.client_merges import merge_changes as merge_row
from optilock.preconditions.edits import apply as edit_row
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.preconditions.row_locks import lock as lock_row
from optilock.preconditions.scopes import expect_scope, verify_scope
from optilock.preconditions.version_demands import NOT_GIVEN
from optilock.shares.guard import open_held
from optilock.unit.async_unit import AsyncUnitOfWork

__all__ = [
    "AsyncUnitOfWork",
    "apply",
    "committed",
    "delete",
    "etag_of",
    "expect",
    "insert",
    "insert_or_merge",
    "insert_or_replace",
    "lease",
    "lock",
    "merge",
    "merge_changes",
    "purge",
    "replace",
    "shares",
    "transaction",
    "verify",
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


async def etag_of(session: AsyncSession, scope: Scope, *, etags: ETags = PLAIN) -> str:
    """:func:`optilock.etag_of` of a scope for an ``AsyncSession``: same rules and errors."""
    return await session.run_sync(etags.of, scope)


async def expect(
    session: AsyncSession, scope: Scope, etag: object, *, etags: ETags = PLAIN
) -> None:
    """:func:`optilock.expect` of a scope for an ``AsyncSession``: same arguments and errors."""
    await session.run_sync(expect_scope, scope, etag, etags=etags)


async def verify(
    session: AsyncSession, scope: Scope, statement: Select[Any] | None = None
) -> list[Any] | None:
    """:func:`optilock.verify` of a scope for an ``AsyncSession``: same arguments and errors."""
    return await session.run_sync(verify_scope, scope, statement)


async def lock(
    session: AsyncSession,
    obj: object,
    *,
    nowait: bool = False,
    skip_locked: bool = False,
    timeout: float | timedelta | None = None,
) -> bool:
    """:func:`optilock.lock` for an object of an ``AsyncSession``: same arguments and errors.

    ``obj`` may be a scope.
    """

    def get(sync: Session) -> bool:
        given = (sync, obj) if isinstance(obj, Scope) else (obj,)
        return lock_row(*given, nowait=nowait, skip_locked=skip_locked, timeout=timeout)

    return await session.run_sync(get)


def _awaited(
    operation: Callable[Concatenate[Session, P], T],
) -> Callable[Concatenate[AsyncSession, P], Awaitable[T]]:
    """Return the operation for an ``AsyncSession``: same arguments, rules and errors."""

    async def awaited(session: AsyncSession, /, *args: P.args, **options: P.kwargs) -> T:
        return await session.run_sync(operation, *args, **options)

    awaited.__name__, awaited.__doc__ = operation.__name__, operation.__doc__
    return awaited


lease = held_in_task("leases.lease", _lease, acquire_held)
merge_changes = _awaited(merge_row)
insert = _awaited(entities.insert)
replace = _awaited(entities.replace)
merge = _awaited(entities.merge)
delete = _awaited(entities.delete)
insert_or_replace = _awaited(entities.insert_or_replace)
insert_or_merge = _awaited(entities.insert_or_merge)
transaction = _awaited(entities.transaction)


class shares:
    """:mod:`optilock.shares` for an ``AsyncSession``: ``await shares.open(session, ...)``."""

    open = staticmethod(_awaited(_shares.open))
    heartbeat = staticmethod(_awaited(_shares.heartbeat))
    close = staticmethod(_awaited(_shares.close))
    opened = staticmethod(held_in_task("shares.opened", _shares.opened, open_held))
    delete_pending = staticmethod(_awaited(_shares.delete_pending))
    check = staticmethod(_awaited(_shares.check))
    create = staticmethod(_awaited(_shares.create))
    delete = staticmethod(_awaited(_shares.delete))
    set_read_only = staticmethod(_awaited(_shares.set_read_only))
    look = staticmethod(_awaited(_shares.look))
    names = staticmethod(_awaited(_shares.names))
