"""Functions that are called once a unit is stored: mails, requests, caches.

::

    with unit_of_work(SessionLocal) as session:
        session.add(Order(number=7))
        after_commit(session, send_mail, "order 7")

They are called in the order in which they were given, outside of units, when its connection is
back in the pool. They are not called for an attempt, a savepoint or a unit that was rolled back;
those of a unit that joins are called after the COMMIT of the outer one. Async functions, of async
units, are awaited. An error in one is logged, and the others are called.

They are called at most once: a process that ends between COMMIT and the call never calls them, and
neither does a unit whose outcome stays unknown. What must not be lost is a row that is stored with
the unit: a message of a queue (:mod:`optilock.queue`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVarTuple

from sqlalchemy.orm import Session, scoped_session

from optilock._watched.session.record import session_record
from optilock.errors import ConfigurationError, describe

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

    #: A session of a unit, or the registry that has it.
    OfUnit = Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]

Args = TypeVarTuple("Args")
_log = logging.getLogger("optilock")


class Hook(NamedTuple):
    """A function to call, and the savepoints that were open when it was given."""

    function: Callable[..., object]
    args: tuple[Any, ...]
    savepoints: tuple[object, ...]


def after_commit(session: OfUnit, function: Callable[[*Args], object], *args: *Args) -> None:
    """Call ``function(*args)`` once the unit of this session is stored.

    Args:
        session: the session, or AsyncSession, of a running unit of work.
        function: a function; in an async unit also an async one, which is awaited.

    Raises:
        ConfigurationError: the session belongs to no unit, or ``function`` cannot be called there.
    """
    owner, sync = owner_of_unit(session, "after_commit")
    if not callable(function):
        raise ConfigurationError(
            f"after_commit() takes a function and its arguments, not {describe(function)}: write"
            " after_commit(session, send_mail, address)."
        )
    if iscoroutinefunction(function) and owner.public is sync:
        raise ConfigurationError(
            "after_commit() got an async function in a unit of sync sessions, where nothing could"
            " await it: give it a plain def, or use async sessions."
        )
    owner.hooks.append(Hook(function, args, open_savepoints(sync)))


def open_savepoints(session: Session) -> tuple[object, ...]:
    """Return the open savepoints of a session, the innermost first."""
    savepoints = []
    nested: Any = session.get_nested_transaction()
    while nested is not None and nested.nested:
        savepoints.append(nested)
        nested = nested.parent
    return tuple(savepoints)


def owner_of_unit(session: Any, call: str) -> tuple[Any, Session]:
    """Return the unit that a session, or AsyncSession, was made for, and the sync session.

    Raises:
        ConfigurationError: there is none.
    """
    registry = getattr(session, "registry", None)  # of a scoped session
    found = session if registry is None else registry()
    sync = getattr(found, "sync_session", found)
    owner = session_record(sync).owner if isinstance(sync, Session) else None
    if owner is None:
        raise ConfigurationError(
            f"{call}() got {describe(session)} that belongs to no unit of work, so nothing would"
            " come of it: give it the session of a running unit of work."
        )
    return owner, sync


def call_hooks(hooks: list[Hook]) -> None:
    """Call the functions of a unit that is stored."""
    for hook in hooks:
        try:
            found = hook.function(*hook.args)
            if iscoroutine(found):
                found.close()
                raise ConfigurationError("a plain function returned a coroutine: nothing awaits it")
        except Exception:
            _log.exception(_FAILED)


async def call_hooks_async(hooks: list[Hook]) -> None:
    """Do the same, and await those that are async."""
    for hook in hooks:
        try:
            found: Awaitable[object] | object = hook.function(*hook.args)
            if isawaitable(found):
                await found
        except Exception:
            _log.exception(_FAILED)
        except asyncio.CancelledError:  # of something that the function has awaited
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            _log.exception(_FAILED)


_FAILED = "a function of after_commit() has failed; its unit of work is stored, and the others run"
