"""A unit of work: one session, one transaction, committed as a whole or not at all.

::

    from optilock import UnitOfWork, merge_fields, unit_of_work

    with UnitOfWork(SessionLocal) as session:              # one unit, no retry
        session.get_one(Account, 42).owner = "Ada"

    @unit_of_work(SessionLocal, attempts=5, on_conflict=merge_fields)   # retry and unit in one
    def rename(session: Session, account_id: int, owner: str) -> None:
        session.get_one(Account, account_id).owner = owner

    rename(42, "Ada")

The rules:

* A unit commits when its block is left, rolls back when an error leaves it, and closes its session
  either way. The session is new, and its flushes are guarded (see :func:`optilock.watch`).
* A unit inside a running one on the same sessions, in the same thread or task, *joins* it: it gets
  the same session and commits nothing. An error that leaves it dooms the outer unit, which then
  refuses to commit even if the error was caught. ``savepoint=True`` undoes only the inner work.
  ``independent=True`` opens a session and a transaction of its own.
* COMMIT is part of the unit: a conflict there is a ``ConcurrencyError``, and a connection lost
  there is ``CommitOutcomeUnknown``.
* Objects live as long as the unit. Return plain values from it, or use a sessionmaker with
  ``expire_on_commit=False`` (an Engine is given one).

``docs/how-to/sessions/units.md`` has the longer story.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)

from sqlalchemy import Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from optilock.errors import ConfigurationError
from optilock.exactly_once.hooks import call_hooks
from optilock.exactly_once.keys import KeyedCall, call_of_block, calls_of_function
from optilock.unit.isolation import Isolation
from optilock.unit.membership import Membership
from optilock.unit.next_attempt import NextAttempt
from optilock.unit.options import (
    Options,
    RetriedUnitOptions,
    UnitOptions,
    UnitOptionsWithoutIsolation,
    named_after,
    options_from,
    policy_from,
    spelled_out,
)
from optilock.unit.retries import Policy
from optilock.unit.running_units import outside_units
from optilock.unit.sessions import is_async, make_session
from optilock.unit.transaction import OwnTransaction

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )

    from optilock.unit.async_unit import AsyncUnitOfWork

    AS = TypeVar("AS", bound=AsyncSession)

S = TypeVar("S", bound=Session)
P = ParamSpec("P")
R = TypeVar("R")
#: Makes the call under a key from the arguments; None: no key this time.
MakesCall = Callable[[Any, Any], KeyedCall | None]


class UnitOfWork(Membership, Generic[S]):
    """One transaction: ``with UnitOfWork(SessionLocal) as session: ...``.

    Args:
        sessions: a ``sessionmaker``, a ``scoped_session`` or an ``Engine``.
        on_conflict: a resolver for every class, or a mapping of model classes to resolvers.
        on_delete: an ``OnDelete`` for every class, or a mapping of model classes to them.
        strict: True refuses writes that no version protects; False sends them without a warning.
        isolation: the level to run at; None keeps the engine's own.
        read_only: the database refuses writes.
        savepoint: when a unit is running already, join it with a savepoint.
        independent: never join; a session and a transaction of its own.
        verify_reads: rows that were only read must be unchanged at COMMIT (see ``verify``).
        short: plain reads outside of a transaction; a single write commits itself.
        pipelined: BEGIN goes with the first statement, COMMIT with the last writes (psycopg 3).
            ``"auto"``: where the server is far away, and the engine can.
        strategy: ``"optimistic"``, ``"pessimistic"``, or ``"adaptive"``: rows on which units
            conflict are locked when they are read. None: adaptive in an attempt of a retry,
            optimistic elsewhere.
        exactly_once: True: after a lost connection the unit finds out what became of its COMMIT.
            A key: as well, its work is stored once (:mod:`optilock.exactly_once`).
        name: of the unit in events and telemetry.

    Raises:
        ConfigurationError: an option cannot work, or ``sessions`` makes no sync sessions.
        AlreadyDone, KeyReused, KeyInUse: (on entering, with a key) the block is not run.
        ConcurrencyError: (on leaving) another writer was first.
        CommitOutcomeUnknown: (on leaving) the connection was lost inside COMMIT.
        NotCommitted: (on leaving) it was, and with ``exactly_once=`` it is certain that nothing is
            stored.
    """

    @overload
    def __init__(
        self: UnitOfWork[S],
        sessions: sessionmaker[S] | scoped_session[S],
        **options: Unpack[UnitOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: UnitOfWork[Session], sessions: Engine, **options: Unpack[UnitOptions]
    ) -> None: ...
    def __init__(self, sessions: Any, **options: Any) -> None:
        if is_async(sessions):
            raise ConfigurationError(
                f"UnitOfWork got {type(sessions).__name__}, which makes async sessions: write"
                " `async with AsyncUnitOfWork(...)`."
            )
        self._sessions, self._options = sessions, options_from(options)
        self._call = call_of_block(self._options.exactly_once)
        self._options.opened(sessions)

    __signature__ = spelled_out(sessions="sessionmaker[S] | scoped_session[S] | Engine")

    async def __aenter__(self) -> NoReturn:
        raise ConfigurationError(
            "UnitOfWork makes sync sessions: write `with`, or `async with AsyncUnitOfWork(...)`"
            " over an async_sessionmaker. Nothing was sent."
        )

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the block is never entered."""

    def __enter__(self) -> S:
        outer = self._outer()
        if outer is not None:
            self._transaction = self._join(outer)
            self._transaction.begin()
            session: S = outer.public
            return session
        fresh: Any = make_session(self._sessions)
        own = OwnTransaction(fresh, fresh, self._options, self._next_attempt, self._call)
        own.begin()
        self._transaction = own
        self._announce(own)
        return fresh  # type: ignore[no-any-return]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raised = None
        try:
            if error is None:
                self._transaction.prepare()
        except BaseException as failed:
            raised = failed
        try:
            self._transaction.complete(error or raised)
        finally:
            self._over()
            if (stored := self._stored) is not None:
                with outside_units():
                    call_hooks(stored.hooks)
        if raised is not None:
            raise raised


@overload
def unit_of_work(
    sessions: sessionmaker[S] | scoped_session[S], **options: Unpack[RetriedUnitOptions]
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[P, R]]: ...
@overload
def unit_of_work(
    sessions: Engine, **options: Unpack[RetriedUnitOptions]
) -> Callable[[Callable[Concatenate[Session, P], R]], Callable[P, R]]: ...
@overload
def unit_of_work(
    sessions: async_sessionmaker[AS] | async_scoped_session[AS],
    **options: Unpack[RetriedUnitOptions],
) -> Callable[
    [Callable[Concatenate[AS, P], Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]
]: ...
@overload
def unit_of_work(
    sessions: AsyncEngine, **options: Unpack[RetriedUnitOptions]
) -> Callable[
    [Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]],
    Callable[P, Coroutine[Any, Any, R]],
]: ...
def unit_of_work(sessions: Any, **options: Any) -> Any:
    """Run the decorated function as a unit of work, again if it must: retry and unit in one.

    The function gets the session first and is called without it. Each attempt has a new session
    and reads everything again. Called inside a running unit on the same sessions, it joins that
    unit, runs once and lets the error out.

    Takes the options of :class:`UnitOfWork` and of :func:`optilock.retry` (``attempts=5``,
    ``on``, ``deadline``, ``wait_initial``, ``wait_max``, ``before_retry``, ``repeat_values``,
    ``idempotent``).
    Each attempt computes its values from the rows that it reads. A value that a person has typed
    is the same in each attempt, and needs a tag (:func:`optilock.expect`).

    Raises:
        ConfigurationError: (on decorating) an option cannot work, the function is a method, or it
            is async and ``sessions`` is not, or the reverse.
    """
    policy, unit_options = policy_from(options)
    asynchronous = is_async(sessions)

    unit_options.opened(sessions)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _refuse_methods(function)
        policy.decorate(function)  # refuses functions that cannot run again, such as generators
        _require_same_kind(function, sessions, asynchronous)
        signature = _without_session(function)
        key: Any = unit_options.exactly_once
        call = None if isinstance(key, bool) else calls_of_function(key, function, signature)
        make = _async_runner if asynchronous else _runner
        run = make(function, sessions, policy, named_after(unit_options, function), call)
        functools.update_wrapper(run, function)
        run.__signature__ = signature  # type: ignore[attr-defined]
        return run

    return _Decorator(decorate)


class _Decorator:
    """The decorator of a function; a ``with`` statement gets the right name."""

    def __init__(self, decorate: Callable[..., Callable[..., Any]]) -> None:
        self._decorate = decorate

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self._decorate(function)

    def __enter__(self) -> NoReturn:
        raise ConfigurationError(
            "unit_of_work(sessions) decorates a function: write `with UnitOfWork(sessions) as"
            " session:` for a block. Nothing was sent."
        )

    def __exit__(self, *_: object) -> None:
        """Do nothing: the block is never entered."""

    async def __aenter__(self) -> NoReturn:
        raise ConfigurationError(
            "unit_of_work(sessions) decorates a function: write `async with"
            " AsyncUnitOfWork(sessions) as session:` for a block. Nothing was sent."
        )

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the block is never entered."""


def _runner(
    function: Callable[..., R],
    sessions: Any,
    policy: Policy,
    options: Options,
    keyed: MakesCall | None,
) -> Callable[..., R]:
    kind: type[UnitOfWork[Any]] = UnitOfWork
    attempts = _attempts_after_waits(policy)

    def run(*args: Any, **kwargs: Any) -> R:
        call = None if keyed is None else keyed(args, kwargs)
        following = NextAttempt(attempts)
        try:
            for attempt in policy.run(
                once=_once(options), at_once=following.locks_rows, name=options.name
            ):
                with attempt:
                    unit = kind.from_checked(sessions, options, following, call)
                    if call is not None:
                        result: R = call.run(unit, function, args, kwargs)
                        return result
                    with unit as session:
                        return function(session, *args, **kwargs)
        finally:
            if following.held is not None:
                following.drop()
        raise AssertionError("a run ends with a result or an error")

    return run


def _async_runner(
    function: Callable[..., Coroutine[Any, Any, R]],
    sessions: Any,
    policy: Policy,
    options: Options,
    keyed: MakesCall | None,
) -> Callable[..., Coroutine[Any, Any, R]]:
    from optilock.unit.async_unit import AsyncUnitOfWork, drop_transaction

    kind: type[AsyncUnitOfWork[Any]] = AsyncUnitOfWork
    attempts = _attempts_after_waits(policy)

    async def run(*args: Any, **kwargs: Any) -> R:
        call = None if keyed is None else keyed(args, kwargs)
        following = NextAttempt(attempts)
        try:
            async for attempt in policy.run(
                once=_once(options), at_once=following.locks_rows, name=options.name
            ):
                with attempt:
                    unit = kind.from_checked(sessions, options, following, call)
                    if call is not None:
                        result: R = await call.run_async(unit, function, args, kwargs)
                        return result
                    async with unit as session:
                        return await function(session, *args, **kwargs)
        finally:
            if following.held is not None:
                await drop_transaction(following)
        raise AssertionError("a run ends with a result or an error")

    return run


def _attempts_after_waits(policy: Policy) -> int:
    """Return the most attempts if waits for locks fail."""
    return policy.attempts if policy.is_usual else 1


def _once(options: Options) -> bool | None:
    """Return False for an independent unit, which can run again inside a running one."""
    return False if options.independent else None


def _require_same_kind(function: Any, sessions: Any, asynchronous: bool) -> None:
    if inspect.iscoroutinefunction(function) is not asynchronous:
        name = getattr(function, "__qualname__", repr(function))
        kind, other = ("a plain def", "async") if asynchronous else ("an async def", "sync")
        raise ConfigurationError(
            f"{name} is {kind}, but {type(sessions).__name__} makes {other} sessions: write"
            f" {'async def' if asynchronous else 'def'}, or give unit_of_work"
            f" {'a sessionmaker' if asynchronous else 'an async_sessionmaker'}."
        )


#: The usual names of a method's first argument.
_OF_METHODS = ("self", "cls")


def _refuse_methods(function: Any) -> None:
    """Refuse methods, which would get their object in place of the session.

    Raises:
        ConfigurationError: it is a ``staticmethod`` or ``classmethod`` that is decorated.
    """
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise _method(f"{function.__qualname__} is a {kind} already, so", "self")


def _method(what: str, first: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} {first!r} would be given to it where unit_of_work passes the session. Write"
        " @retry(...) above the method, and `with UnitOfWork(sessions) as session:` in it; or,"
        " where the work needs no object, @staticmethod above @unit_of_work(...), and the session"
        " as the first argument."
    )


def _without_session(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that callers see.

    Raises:
        ConfigurationError: no positional parameter could take the session, or it is a method.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is not None and first.name in _OF_METHODS:
        raise _method(f"{function.__qualname__}({first.name}, ...) is a method, so", first.name)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(
            f"{name} takes no session: unit_of_work passes the session as the first argument, so"
            f" write def {name}(session, ...)."
        )
    if first.kind is first.VAR_POSITIONAL:
        return signature
    return signature.replace(parameters=parameters[1:])


# -- at a level -----------------------------------------------------------------------------------


@overload
def serializable(
    sessions: sessionmaker[S] | scoped_session[S], **options: Unpack[UnitOptionsWithoutIsolation]
) -> UnitOfWork[S]: ...
@overload
def serializable(
    sessions: Engine, **options: Unpack[UnitOptionsWithoutIsolation]
) -> UnitOfWork[Session]: ...
@overload
def serializable(
    sessions: async_sessionmaker[AS] | async_scoped_session[AS],
    **options: Unpack[UnitOptionsWithoutIsolation],
) -> AsyncUnitOfWork[AS]: ...
@overload
def serializable(
    sessions: AsyncEngine, **options: Unpack[UnitOptionsWithoutIsolation]
) -> AsyncUnitOfWork[AsyncSession]: ...
def serializable(sessions: Any, **options: Any) -> Any:
    """Return a unit of work whose result is that of some serial order of the transactions.

    Takes the options of :class:`optilock.UnitOfWork`; async sessions give an async unit.
    """
    return _unit(sessions, Isolation.SERIALIZABLE, options)


@overload
def repeatable_read(
    sessions: sessionmaker[S] | scoped_session[S], **options: Unpack[UnitOptionsWithoutIsolation]
) -> UnitOfWork[S]: ...
@overload
def repeatable_read(
    sessions: Engine, **options: Unpack[UnitOptionsWithoutIsolation]
) -> UnitOfWork[Session]: ...
@overload
def repeatable_read(
    sessions: async_sessionmaker[AS] | async_scoped_session[AS],
    **options: Unpack[UnitOptionsWithoutIsolation],
) -> AsyncUnitOfWork[AS]: ...
@overload
def repeatable_read(
    sessions: AsyncEngine, **options: Unpack[UnitOptionsWithoutIsolation]
) -> AsyncUnitOfWork[AsyncSession]: ...
def repeatable_read(sessions: Any, **options: Any) -> Any:
    """Return a unit of work that sees one snapshot and overwrites no later change.

    Takes the options of :class:`optilock.UnitOfWork`; async sessions give an async unit.
    """
    return _unit(sessions, Isolation.REPEATABLE_READ, options)


def _unit(sessions: Any, level: Isolation, options: dict[str, Any]) -> Any:
    if "isolation" in options:
        raise ConfigurationError(
            f"the level is already in the name ({level.name}): leave isolation= out, or use"
            " UnitOfWork(sessions, isolation=...)."
        )
    if is_async(sessions):
        from optilock.unit.async_unit import AsyncUnitOfWork  # needs greenlet

        return AsyncUnitOfWork(sessions, isolation=level, **options)
    return UnitOfWork(sessions, isolation=level, **options)
