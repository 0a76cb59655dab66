"""The sessions of units of work: made as the caller's factory does, in a class of their own.

The factory is not changed. Its settings make a session of a guarded subclass of its session class,
so that its listeners and what ``configure()`` says later go on to count. The subclass is made once:
a unit registers nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Mapper, Session, scoped_session, sessionmaker

from optilock.errors import ConfigurationError
from optilock.undocumented.connections import set_options
from optilock.undocumented.statements import locks_rows
from optilock.watched.guard.releases import check_release
from optilock.watched.guard.watching import guard_class
from optilock.watched.session.connections import bind_to_write, refuse_shards
from optilock.watched.session.watched import KNOWN, Owner, Watched
from optilock.watched.writes.send import require_row_counts_of

SyncSessions = sessionmaker[Any] | scoped_session[Any] | Engine

#: An attribute of a session class: its guarded subclass.
_UNIT_CLASS = "_optilock_unit_class"
#: An attribute of what units were opened with: does it make AsyncSessions?
_ASYNC = "_optilock_async"
_WAYS = "a sessionmaker, a scoped_session or an Engine"
_ASYNC_WAYS = "an async_sessionmaker, an async_scoped_session or an AsyncEngine"


def is_async(sessions: object) -> bool:
    """Does ``sessions`` make AsyncSessions?

    Asked for every unit, and looked at once: of what ``configure()`` changes later, the driver of
    a connection is looked at when a unit gets it.

    Raises:
        ConfigurationError: it makes no sessions at all.
    """
    found: bool | None = getattr(sessions, _ASYNC, None)
    if found is None:
        found = _look_at(sessions)
        with suppress(AttributeError):  # an AsyncEngine takes none
            setattr(sessions, _ASYNC, found)
    return found


def _look_at(sessions: object) -> bool:
    check_release()
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


def owner_of(session: Session) -> Owner | None:
    """The unit whose session it is."""
    known: Watched | None = session.__dict__.get(KNOWN)
    return None if known is None else known.owner


def choose_engines(
    session: Session, choose: Callable[[Engine | Connection], Engine | Connection]
) -> None:
    """From here on ``session`` asks ``choose`` about each engine that it finds."""
    found = session.get_bind

    def get_bind(*args: Any, **kwargs: Any) -> Engine | Connection:
        return choose(found(*args, **kwargs))

    session.__dict__["get_bind"] = get_bind


def lock_where_written(session: Session) -> None:
    """Send queries that lock to where the session writes; a replica would lock nothing."""
    if type(session).get_bind is Session.get_bind:
        return
    found = session.get_bind

    def get_bind(*args: Any, **asked: Any) -> Engine | Connection:
        mapper = asked.get("mapper")
        if isinstance(mapper, Mapper) and locks_rows(asked.get("clause")):
            asked.update(bind_to_write(mapper))
        return found(*args, **asked)

    session.__dict__["get_bind"] = get_bind


def choose_no_more(session: Session) -> None:
    """The session finds its engines by itself again."""
    session.__dict__.pop("get_bind", None)


def with_options(engine: Engine, options: Mapping[str, Any]) -> Engine:
    """``engine.execution_options(**options)``, and no connection is lost on the way."""
    routed: Engine = engine.execution_options()

    @event.listens_for(routed, "engine_connect")
    def engine_connect(connection: Connection) -> None:
        set_options(connection, options)

    return routed


def make_session(sessions: Any) -> Session:
    """A new guarded session of a sync factory."""
    if isinstance(sessions, Engine):
        return _FOR_ENGINES(bind=sessions, expire_on_commit=False)
    factory = getattr(sessions, "session_factory", sessions)
    if type(factory).__call__ is sessionmaker.__call__:
        cls = factory.class_
        return (cls.__dict__.get(_UNIT_CLASS) or _unit_class(cls))(**factory.kw)
    factory = copy.copy(_factory_of(sessions, sessionmaker))  # the application's own kind
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


def _factory_of(sessions: Any, kind: type[Any]) -> Any:
    factory = getattr(sessions, "session_factory", sessions)
    if not isinstance(factory, kind):
        raise ConfigurationError(
            f"the scoped session is made over {type(factory).__name__!r}: make it over"
            f" {'a' if kind is sessionmaker else 'an'} {kind.__name__}."
        )
    return factory


def _unit_class(cls: type[Session]) -> type[Session]:
    """The guarded subclass of ``cls``; kept on ``cls``, so that both live equally long."""
    known: type[Session] | None = cls.__dict__.get(_UNIT_CLASS)
    if known is None:
        known = type(f"Unit{cls.__name__}", (cls,), {})
        guard_class(known)
        for one in (cls, known):
            setattr(one, _UNIT_CLASS, known)
    return known


_FOR_ENGINES = _unit_class(Session)
