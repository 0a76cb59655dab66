"""The sessions of units of work, and the session of a scope that a unit replaces.

**Made as the caller's factory makes them.** The factory is not changed. Its settings make a session
of a guarded subclass of its session class, so that its listeners and later calls of ``configure()``
count. The subclass is made once: a unit registers nothing.

**Replaced.** A web application has one session per request (``db.session``), and a unit on that
``scoped_session`` has another one. An object of the first session that is changed inside the unit
is in the wrong session: the unit does not store the change, and perhaps nothing does::

    g.user = db.session.get(User, 1)
    with UnitOfWork(db.session):
        g.user.name = "Grace"        # refused when the unit is left

So the unit compares the pending changes at its begin with those at its end. Checking a clean
session is three attribute reads. A session that flushed its changes in between (autoflush, when a
relationship was read) has noted them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Mapper, Session, scoped_session, sessionmaker
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State
from optilock._undocumented.connections import set_options
from optilock._undocumented.statements import locks_rows
from optilock._watched.guard.installation import guard_class
from optilock._watched.guard.release import check_release
from optilock._watched.rows.entries import detached_copy
from optilock._watched.session.connections import bind_to_write, refuse_shards
from optilock._watched.session.order import add_step
from optilock._watched.session.record import RECORD_KEY, Owner, SessionRecord
from optilock._watched.writes.send import require_row_counts_of
from optilock.errors import ConfigurationError

#: An attribute of a session class: its guarded subclass.
_UNIT_CLASS = "_optilock_unit_class"
#: An attribute of factories and engines that units were opened with: they make AsyncSessions.
_ASYNC = "_optilock_async"
_SYNC_FACTORIES = "a sessionmaker, a scoped_session or an Engine"
_ASYNC_FACTORIES = "an async_sessionmaker, an async_scoped_session or an AsyncEngine"

_names: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()


def is_async(sessions: object) -> bool:
    """Return whether ``sessions`` makes AsyncSessions.

    Called for every unit, and examined once. After a later ``configure()``, the driver is examined
    when a unit gets a connection.

    Raises:
        ConfigurationError: it makes no sessions at all.
    """
    found: bool | None = getattr(sessions, _ASYNC, None)
    if found is None:
        found = _examine(sessions)
        with suppress(AttributeError):  # an AsyncEngine takes none
            setattr(sessions, _ASYNC, found)
    return found


def _examine(sessions: object) -> bool:
    check_release()
    require_row_counts_of(sessions)
    refuse_shards(getattr(getattr(sessions, "session_factory", sessions), "class_", None))
    if isinstance(sessions, (sessionmaker, scoped_session, Engine)):
        return False
    if isinstance(sessions, _async_kinds()):
        return True
    raise ConfigurationError(
        f"a unit of work got {type(sessions).__name__!r}, which makes no sessions: give it"
        f" {_SYNC_FACTORIES}, or for async code {_ASYNC_FACTORIES}."
    )


def _async_kinds() -> tuple[type[Any], ...]:
    """Return the classes, or none without greenlet, which SQLAlchemy's asyncio half needs."""
    try:
        from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker
    except ImportError:
        return ()
    return async_sessionmaker, async_scoped_session, AsyncEngine


def owner_of(session: Session) -> Owner | None:
    """Return the unit that owns the session."""
    known: SessionRecord | None = session.__dict__.get(RECORD_KEY)
    return None if known is None else known.owner


def choose_engines(
    session: Session, choose: Callable[[Engine | Connection], Engine | Connection]
) -> None:
    """Pass each engine that ``session`` finds through ``choose`` from here on."""
    found = session.get_bind

    def get_bind(*args: Any, **kwargs: Any) -> Engine | Connection:
        return choose(found(*args, **kwargs))

    session.__dict__["get_bind"] = get_bind


def lock_where_written(session: Session) -> None:
    """Send locking queries to the database that the session writes; a replica locks nothing."""
    found = session.get_bind

    def get_bind(*args: Any, **asked: Any) -> Engine | Connection:
        mapper = asked.get("mapper")
        if isinstance(mapper, Mapper) and locks_rows(asked.get("clause")):
            asked.update(bind_to_write(mapper))
        return found(*args, **asked)

    session.__dict__["get_bind"] = get_bind


def forget_engine_choice(session: Session) -> None:
    """Let the session find its engines itself again."""
    session.__dict__.pop("get_bind", None)


def name_of(bind: Engine | Connection) -> str:
    """Return the name of the database behind an engine, without the password."""
    engine = bind.engine
    found = _names.get(engine)
    if found is None:
        url = engine.url
        place = (url.get_backend_name(), url.host, url.port, url.database)
        found = _names[engine] = "/".join(str(part) for part in place if part is not None)
    return found


def same_database(one: Engine | Connection, other: Engine | Connection) -> bool:
    """Return whether two units on these would be two transactions of one database.

    They share a pool or an address, which databases in the memory of the process do not have. On
    one connection they share the transaction.
    """
    if one is other and isinstance(one, Connection):
        return False
    if one.engine.pool is other.engine.pool:
        return True
    a, b = one.engine.url, other.engine.url
    if not a.database or "memory" in a.database:
        return False
    return (a.get_backend_name(), a.host, a.port, a.database) == (
        b.get_backend_name(),
        b.host,
        b.port,
        b.database,
    )


def with_options(engine: Engine, options: Mapping[str, Any]) -> Engine:
    """Return the engine with these execution options; no connection is lost if they fail."""
    routed: Engine = engine.execution_options()

    @event.listens_for(routed, "engine_connect")
    def engine_connect(connection: Connection) -> None:
        set_options(connection, options)

    return routed


def make_session(sessions: Any) -> Session:
    """Return a new guarded session of a sync factory."""
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
    """Return a new AsyncSession of an async factory, with a guarded session behind it."""
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
    """Return the guarded subclass of ``cls``, which is kept on ``cls`` and lives as long."""
    known: type[Session] | None = cls.__dict__.get(_UNIT_CLASS)
    if known is None:
        known = type(f"Unit{cls.__name__}", (cls,), {})
        guard_class(known)
        for one in (cls, known):
            setattr(one, _UNIT_CLASS, known)
    return known


_FOR_ENGINES = _unit_class(Session)


# -- the session of a scope that a unit replaces -------------------------------------------------

#: An attribute of a session: its :class:`ReplacedSession`, while the unit runs.
_KEY = "_optilock_beside"

#: The pending change of an object: whether it is new or deleted, and its changed attributes.
Pending = dict[State, tuple[object, ...]]


class ReplacedSession:
    """The pending changes of the scope's own session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before = _pending(session)
        #: Objects that were changed inside and flushed, and the transaction of that flush.
        self._flushed: list[str] = []
        self._transaction: ref[Any] | None = None
        add_step("beside", _KEY, before_flush=_before_flush)
        session.__dict__[_KEY] = self

    def release(self) -> None:
        """End the comparison of the session."""
        self._session.__dict__.pop(_KEY, None)

    def note_flush(self) -> None:
        """Note the changes of before the unit and those made inside, which are written now."""
        changed, transaction = self._changed(), self._session.get_transaction()
        if changed and transaction is not None:
            self._flushed += changed
            self._transaction = ref(transaction)
        self._before = _pending(self._session)

    def refuse_changes(self) -> None:
        """Refuse to leave the unit as if it had stored the changes of the other session.

        Raises:
            ConfigurationError: objects of the scope's session were changed inside.
        """
        changed, current = self._changed(), self._session.get_transaction()
        if current is not None and self._transaction is not None and self._transaction() is current:
            changed += self._flushed
        if changed:
            raise ConfigurationError(
                "inside this unit of work objects of another session were changed, the one that"
                f" the scoped session had before: {', '.join(sorted(set(changed)))}. The unit has a"
                " session of its own and would not store them, so it is rolled back as a whole."
                " Read these objects inside the unit, with its session, or change them outside of"
                " it and commit their own session."
            )

    def _changed(self) -> list[str]:
        """Return names and keys of the objects whose pending change differs from before."""
        return [
            _named(state)
            for state, wanted in _pending(self._session).items()
            if self._before.get(state) != wanted
            and (state in self._before or wanted[0] or self._session.is_modified(state.obj()))
        ]


def _pending(session: Session) -> Pending:
    found: Pending = {}
    for kind, objects in (("", session.dirty), ("new", session.new), ("gone", session.deleted)):
        for state in map(instance_state, objects):
            found[state] = (kind, *_changes(state))
    return found


def _changes(state: State) -> Iterable[tuple[str, object]]:
    """Yield each changed attribute with its new value, or the objects added and removed."""
    columns = state.mapper.column_attrs
    for name in sorted(state.committed_state):
        if name in columns:
            yield name, detached_copy(state.dict.get(name), name)
        else:
            history = state.attrs[name].history
            yield name, ([*map(id, history.added or ())], [*map(id, history.deleted or ())])


def _named(state: State) -> str:
    name = state.class_.__name__
    return f"a new {name}" if state.key is None else f"{name} {tuple(state.key[1])!r}"


def _before_flush(session: Session, *_: object) -> None:
    session.__dict__[_KEY].note_flush()


# -- around --------------------------------------------------------------------------------------
