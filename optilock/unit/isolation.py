"""Isolation levels: asked for, checked to be in force, and put back afterwards.

::

    from optilock import Isolation, UnitOfWork, repeatable_read, serializable

    with serializable(SessionLocal) as session:                 # no anomaly at all
        ...
    with repeatable_read(SessionLocal, read_only=True) as session:   # one picture of the data
        ...
    with UnitOfWork(SessionLocal, isolation=Isolation.READ_COMMITTED) as session:
        ...

A unit without ``isolation=`` runs at the engine's own level. With it:

* the level is set before the transaction begins, on every connection the session takes, also when
  it is bound to several engines;
* the server is asked whether it is in force, which costs a round trip;
* what was set on a connection is undone before the connection goes back to its pool.

``REPEATABLE_READ`` means the same everywhere: *no lost update and a stable snapshot*, whether the
rows have versions or not. MariaDB needs ``innodb_snapshot_isolation`` for that, which is turned on
for the unit, or the unit is refused on servers that do not have it. On SQLite a real BEGIN is
sent and the snapshot is taken with a read; ``SERIALIZABLE`` sends BEGIN IMMEDIATE.

At these two levels a conflict ends the transaction, so it cannot be resolved inside it: use
:func:`optilock.unit_of_work`, which runs the whole unit again. ``docs/isolation.md`` says per
database what each level still allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from sqlalchemy import Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from optilock.errors import ConfigurationError
from optilock.unit.levels import Isolation
from optilock.unit.sessions import is_async
from optilock.unit.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )

    from optilock.unit.async_unit import AsyncUnitOfWork
    from optilock.unit.options import UnitOptionsWithoutIsolation

    AS = TypeVar("AS", bound=AsyncSession)

__all__ = ["Isolation", "repeatable_read", "serializable"]

S = TypeVar("S", bound=Session)


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
    """A unit of work whose result is that of some order of the transactions, one after another.

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
    """A unit of work that sees one snapshot and overwrites nothing that changed since.

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
