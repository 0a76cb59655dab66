"""A unit of work: one session, one transaction, committed as a whole or not at all.

::

    from optilock import merge_fields, unit_of_work

    with unit_of_work(SessionLocal) as session:            # one unit, no retry
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
  refuses to commit even if the error was caught. ``propagation="savepoint"`` undoes only the
  inner work. ``propagation="independent"`` opens a session and a transaction of its own.
* COMMIT is part of the unit: a conflict there is a ``ConcurrencyError``, and a connection lost
  there is ``CommitOutcomeUnknown``.
* Objects live as long as the unit. Return plain values from it, or use a sessionmaker with
  ``expire_on_commit=False`` (an Engine is given one).

``docs/how-to/sessions/units.md`` has the longer story.
"""

from __future__ import annotations

from collections.abc import Callable
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
from optilock.unit.isolation import Isolation
from optilock.unit.membership import Membership
from optilock.unit.options import (
    UnitOptions,
    UnitOptionsWithoutIsolation,
    spelled_out,
)
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


class UnitOfWork(Membership, Generic[S]):
    """One transaction, as :func:`unit_of_work` opens it: a block, or the decorator of a function.

    Args:
        sessions: a ``sessionmaker``, a ``scoped_session`` or an ``Engine``.
        on_conflict: a resolver for every class, or a mapping of model classes to resolvers.
        on_delete: an ``OnDelete`` for every class, or a mapping of model classes to them.
        strict: True refuses writes that no version protects; False sends them without a warning.
        isolation: the level to run at; None keeps the engine's own.
        read_only: the database refuses writes.
        propagation: inside a running unit: ``"join"`` it, join it with a ``"savepoint"``, or be
            ``"independent"``, with a session and a transaction of its own.
        verify_reads: rows that were only read must be unchanged at COMMIT (see ``verify``).
        pipelined: where the server is far away, BEGIN goes with the first statement, and COMMIT
            with the last writes (psycopg 3).
        strategy: ``"optimistic"``, ``"pessimistic"``, or ``"adaptive"``: rows on which units
            conflict are locked when they are read. None: adaptive in an attempt of a retry,
            optimistic elsewhere.
        exactly_once: True: after a lost connection the unit finds out what became of its COMMIT.
            A key: as well, its work is stored once (:mod:`optilock.exactly_once`).
        name: of the unit in events and telemetry.

    Raises:
        ConfigurationError: an option cannot work, or ``sessions`` makes no sync sessions; (on
            entering) an option is of a retry, or the key is a function.
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
                " `async with unit_of_work(...)`."
            )
        super().__init__(sessions, options)

    __signature__ = spelled_out(sessions="sessionmaker[S] | scoped_session[S] | Engine")

    def __call__(self, function: Callable[Concatenate[S, P], R], /) -> Callable[P, R]:
        """Return the function as a unit, which runs again if it must."""
        run: Callable[P, R] = self._function(function, asynchronous=False)
        return run

    async def __aenter__(self) -> NoReturn:
        raise ConfigurationError(
            f"{type(self._sessions).__name__} makes sync sessions: write `with`, or give"
            " unit_of_work an async_sessionmaker. Nothing was sent."
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
    sessions: sessionmaker[S] | scoped_session[S], **options: Unpack[UnitOptions]
) -> UnitOfWork[S]: ...
@overload
def unit_of_work(sessions: Engine, **options: Unpack[UnitOptions]) -> UnitOfWork[Session]: ...
@overload
def unit_of_work(
    sessions: async_sessionmaker[AS] | async_scoped_session[AS],
    **options: Unpack[UnitOptions],
) -> AsyncUnitOfWork[AS]: ...
@overload
def unit_of_work(
    sessions: AsyncEngine, **options: Unpack[UnitOptions]
) -> AsyncUnitOfWork[AsyncSession]: ...
def unit_of_work(sessions: Any, **options: Any) -> Any:
    """Return a unit of work: a block (``with``, ``async with``), or the decorator of a function.

    A decorated function is retry and unit in one. It gets the session first and is called without
    it. Each attempt has a new session and reads everything again. Called inside a running unit on
    the same sessions, it joins that unit, runs once and lets the error out.

    Takes the options of :class:`UnitOfWork`. A decorated function also has ``attempts=5``, or
    ``retry=`` with what :func:`optilock.retrying` returns, as in ``retry=retrying(deadline=2.0)``.
    A block cannot have them: it runs once.
    Each attempt computes its values from the rows that it reads. A value that a person has typed
    is the same in each attempt, and needs a tag (:func:`optilock.expect`).

    Raises:
        ConfigurationError: an option cannot work; (on decorating) the function is a method, or it
            is async and ``sessions`` is not, or the reverse; (on entering) an option is of a retry.
    """
    if is_async(sessions):
        from optilock.unit.async_unit import AsyncUnitOfWork  # needs greenlet

        return AsyncUnitOfWork(sessions, **options)
    return UnitOfWork(sessions, **options)


vars(unit_of_work)["__signature__"] = spelled_out(sessions="a factory of sessions, or an Engine")


# -- at a level -----------------------------------------------------------------------------------


@overload
def serializable(
    sessions: sessionmaker[S] | scoped_session[S],
    **options: Unpack[UnitOptionsWithoutIsolation],
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

    A block, or the decorator of a function, as :func:`optilock.unit_of_work` is, with its options.
    """
    return _unit(sessions, Isolation.SERIALIZABLE, options)


@overload
def repeatable_read(
    sessions: sessionmaker[S] | scoped_session[S],
    **options: Unpack[UnitOptionsWithoutIsolation],
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

    A block, or the decorator of a function, as :func:`optilock.unit_of_work` is, with its options.
    """
    return _unit(sessions, Isolation.REPEATABLE_READ, options)


def _unit(sessions: Any, level: Isolation, options: dict[str, Any]) -> Any:
    if "isolation" in options:
        raise ConfigurationError(
            f"the level is already in the name ({level.name}): leave isolation= out, or use"
            " unit_of_work(sessions, isolation=...)."
        )
    return unit_of_work(sessions, isolation=level, **options)
