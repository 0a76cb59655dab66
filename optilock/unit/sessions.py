"""The sessions of units of work: made as the caller's factory does, in a class of their own.

The factory is not changed. Its settings make a session of a guarded subclass of its session class,
so that its listeners and what ``configure()`` says later go on to count. The subclass is made once,
and listens to its sessions' events once: a unit registers nothing.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

from optilock.errors import ConfigurationError
from optilock.guard.counting import require_row_counts_of
from optilock.guard.watching import guard_class
from optilock.session.connections import refuse_shards
from optilock.unit.parts import Part

__all__ = [
    "Owner",
    "SyncSessions",
    "is_async",
    "make_async_session",
    "make_session",
    "own",
    "owner_of",
    "registry_of",
]

SyncSessions = sessionmaker[Any] | scoped_session[Any] | Engine

#: An attribute of a session.
_OWNER = "_optilock_unit"
#: Does it make AsyncSessions? Of all that units were opened with.
_async: WeakKeyDictionary[object, bool] = WeakKeyDictionary()
_WAYS = "a sessionmaker, a scoped_session or an Engine"
_ASYNC_WAYS = "an async_sessionmaker, an async_scoped_session or an AsyncEngine"


class Owner(Protocol):
    """What a session of a unit tells its unit."""

    parts: tuple[Part, ...]

    def route(self, bind: Engine | Connection) -> Engine | Connection: ...
    def connected(self, connection: Connection) -> None: ...
    def committing_now(self) -> None: ...


def is_async(sessions: object) -> bool:
    """Does ``sessions`` make AsyncSessions?

    Asked for every unit, and looked at once: of what ``configure()`` changes later, the driver of
    a connection is looked at when a unit gets it.

    Raises:
        ConfigurationError: it makes no sessions at all.
    """
    try:
        return _async[sessions]
    except (KeyError, TypeError):  # what makes no sessions may not even have a hash
        found = _async[sessions] = _look_at(sessions)
        return found


def _look_at(sessions: object) -> bool:
    require_row_counts_of(sessions)
    refuse_shards(getattr(getattr(sessions, "session_factory", sessions), "class_", None))
    if isinstance(sessions, (sessionmaker, scoped_session, Engine)):
        return False
    if isinstance(sessions, _async_kinds()):
        return True
    raise ConfigurationError(
        f"a unit of work got {type(sessions).__name__!r}, which makes no sessions: give it"
        f" {_WAYS}, or for async code {_ASYNC_WAYS}."
    )


def _async_kinds() -> tuple[type[Any], ...]:
    """Imported late: SQLAlchemy's asyncio half needs greenlet; without it there are no such."""
    try:
        from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker
    except ImportError:
        return ()
    return async_sessionmaker, async_scoped_session, AsyncEngine


def own(session: Session, owner: Owner | None) -> None:
    """From here on ``session`` tells ``owner`` what happens (None: nobody)."""
    session.__dict__[_OWNER] = owner


def owner_of(session: Session) -> Owner | None:
    """The unit whose session it is."""
    owner: Owner | None = session.__dict__.get(_OWNER)
    return owner


def make_session(sessions: Any) -> Session:
    """A new guarded session of a sync factory."""
    if isinstance(sessions, Engine):
        return _FOR_ENGINES(bind=sessions, expire_on_commit=False)
    factory = _factory_of(sessions, sessionmaker)
    if type(factory).__call__ is sessionmaker.__call__:
        return _unit_class(factory.class_)(**factory.kw)
    factory = copy.copy(factory)  # the application's own kind, with a way of its own
    factory.class_ = _unit_class(factory.class_)
    session: Session = factory()
    return session


def make_async_session(sessions: Any) -> Any:
    """A new AsyncSession of an async factory, with a guarded session behind it."""
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

    if isinstance(sessions, AsyncEngine):
        return AsyncSession(sessions, sync_session_class=_FOR_ENGINES, expire_on_commit=False)
    maker = _factory_of(sessions, async_sessionmaker)
    given = maker.kw.get("sync_session_class") or maker.class_.sync_session_class
    return maker(sync_session_class=_unit_class(given))


def registry_of(sessions: Any) -> Any:
    """The registry of a scoped session, in which the unit's session takes the place."""
    return getattr(sessions, "registry", None)


def _factory_of(sessions: Any, kind: type[Any]) -> Any:
    factory = getattr(sessions, "session_factory", sessions)
    if not isinstance(factory, kind):
        raise ConfigurationError(
            f"the scoped session is made over {type(factory).__name__!r}: make it over"
            f" {'a' if kind is sessionmaker else 'an'} {kind.__name__}."
        )
    return factory


class _UnitSession(Session):
    """Asks the unit that owns it about engine options."""

    def get_bind(self, *args: Any, **kwargs: Any) -> Engine | Connection:
        bind = super().get_bind(*args, **kwargs)
        owner = owner_of(self)
        return owner.route(bind) if owner is not None and owner.parts else bind


def _unit_class(cls: type[Session]) -> type[Session]:
    """The guarded subclass of ``cls``; kept on ``cls``, so that both live equally long."""
    if issubclass(cls, _UnitSession):
        return cls
    known: type[Session] | None = cls.__dict__.get("_optilock_unit_class")
    if known is None:
        known = type(f"Unit{cls.__name__}", (_UnitSession, cls), {})
        guard_class(known)
        _listen(known)
        cls._optilock_unit_class = known  # type: ignore[attr-defined]
    return known


def _listen(cls: type[Session]) -> None:
    @event.listens_for(cls, "after_begin")
    def after_begin(session: Session, over: SessionTransaction, connection: Connection) -> None:
        owner = owner_of(session)
        if owner is not None and not over.nested:
            owner.connected(connection)

    @event.listens_for(cls, "before_commit")
    def before_commit(session: Session) -> None:
        owner = owner_of(session)
        if owner is not None and not session.in_nested_transaction():
            owner.committing_now()


_FOR_ENGINES = _unit_class(Session)
