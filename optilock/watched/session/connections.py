"""The connection on which a session writes: what is to be checked is read there.

A session may read from a replica and write to the primary, by a ``get_bind`` of its own that looks
at the statement. A replica knows too late what others have written, and takes no locks for them.

Connections in AUTOCOMMIT mode are refused. There every statement is stored at once: a row that is
locked and looked at is free again before it is written, and a flush that is refused half-way leaves
its first half behind. :func:`optilock.watch` refuses an engine that is known to be in that mode;
what only a connection knows (an option of the driver,
``session.connection(execution_options=...)``) is refused by the first flush that would write
guarded rows over it, before anything is sent. Reading over such a connection is no problem. What
writes by one guarded statement and needs no transaction need not ask here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session

from optilock.dialects import database_of
from optilock.dialects.transient import answer_unknown
from optilock.errors import CommitOutcomeUnknown, ConfigurationError, described
from optilock.undocumented.connections import has_begin_listeners, level_on_connect
from optilock.watched.session.watched import is_watched, watched

#: On the ``connection`` of a watched session class: SQLAlchemy's own.
PLAIN = "_optilock_plain"
_updates: WeakKeyDictionary[Mapper[Any], Update] = WeakKeyDictionary()


def connection_to_write(session: Session, mapper: Mapper[Any]) -> Connection:
    """The connection of the session's transaction that writes rows of ``mapper``."""
    return own_connection(session, bind_to_write(mapper))


def own_connection(session: Session, binds: Mapping[str, Any]) -> Connection:
    """``session.connection()`` for ourselves: a watched session looks at what others send on it."""
    if is_watched(session):
        watched(session).sent_more = True
    connection = type(session).connection
    return getattr(connection, PLAIN, connection)(session, bind_arguments=dict(binds))


@contextmanager
def connection_apart(engine: Engine) -> Iterator[Connection]:
    """A new connection, also where the pool has none left; it sees what others have committed."""
    pool = engine.pool.recreate()
    try:
        with Connection(engine, connection=pool.connect()) as connection:
            yield connection
    finally:
        pool.dispose()


def engine_to_write(session: Session, mapper: Mapper[Any]) -> Engine:
    """The engine to which the session writes rows of ``mapper``."""
    return session.get_bind(**bind_to_write(mapper)).engine


def bind_to_write(mapper: Mapper[Any]) -> Mapping[str, Any]:
    """What ``get_bind`` is told of an UPDATE of ``mapper``'s rows."""
    update = _updates.get(mapper)
    if update is None:
        table: Any = mapper.base_mapper.local_table
        if not isinstance(table, Table):  # the class is mapped to a SELECT
            table = next(one for one in mapper.tables if isinstance(one, Table))
        update = _updates[mapper] = table.update()
    return {"mapper": mapper, "clause": update}


def binds_of_sessions(sessions: Any) -> list[Engine | Connection]:
    """What a session factory is bound to, or an engine itself, as far as it names any."""
    factory = getattr(sessions, "session_factory", sessions)
    options = getattr(factory, "kw", {})
    found = []
    for bind in (options.get("bind", factory), *(options.get("binds") or {}).values()):
        bind = getattr(bind, "sync_engine", None) or getattr(bind, "sync_connection", None) or bind
        if isinstance(bind, (Engine, Connection)):
            found.append(bind)
    return found


def refuse_shards(cls: Any) -> None:
    """Refuse a session class that chooses a connection for each object.

    Raises:
        ConfigurationError: one key may stand for a row on every shard.
    """
    if getattr(cls, "connection_callable", None) is not None:
        raise ConfigurationError(
            f"{cls.__name__} chooses a connection for each object (horizontal sharding). One key"
            " may stand for a row on every shard, and a conflict could be told of the wrong one."
            " Watch a sessionmaker for each shard. Sessions with binds={Model: engine} are no"
            " problem."
        )


def session_given(session: Any, call: str, in_async_code: str) -> Session:
    """The session that ``call`` was given; a ``scoped_session`` stands for the one of its scope.

    Raises:
        ConfigurationError: it is none; ``in_async_code`` is what to write for an ``AsyncSession``.
    """
    registry = getattr(session, "registry", None)  # scoped_session, async_scoped_session
    found = session if registry is None else registry()
    if not isinstance(found, Session):
        raise ConfigurationError(
            f"{call}() got {type(session).__name__} as its session: give it a Session, or the"
            f" scoped_session of one; with an AsyncSession write {in_async_code}."
        )
    return found


def require_engine(engine: Any, call: str) -> None:
    """Refuse what is no ``Engine``; an ``AsyncEngine`` is none.

    Raises:
        ConfigurationError: so it is; ``call`` is the function that got it.
    """
    if not isinstance(engine, Engine):
        raise ConfigurationError(
            f"{call}() takes an Engine, not {described(engine)}: write create_engine(url), for an"
            " async application with a sync driver of the same database (psycopg, pymysql, sqlite)."
        )


def autocommits(connection: Any) -> bool:
    """Does every statement on it commit by itself? Asked once its transaction has begun."""
    return isinstance(connection, Connection) and database_of(connection.dialect).autocommits(
        connection
    )


def refuse_autocommit(connection: Connection, what: str) -> None:
    """Refuse to do ``what`` over a connection in AUTOCOMMIT mode.

    Raises:
        ConfigurationError: so it is; nothing was sent.
    """
    if autocommits(connection):
        raise ConfigurationError(
            f"{what} over a connection in AUTOCOMMIT mode is refused: every statement is stored at"
            " once, locked rows are free again at once, and half of the work could not be taken"
            f" back. {INSTEAD} Nothing was sent."
        )


def require_answer(error: DBAPIError, mapper: Mapper[Any]) -> None:
    """Tell that a statement which commits by itself was lost, if it may be stored all the same.

    Raises:
        CommitOutcomeUnknown: so it may.
    """
    if answer_unknown(error):
        raise CommitOutcomeUnknown(
            f"the connection was lost while a row of {mapper.class_.__name__} was written over a"
            " connection in AUTOCOMMIT mode, where each statement commits by itself, so the row is"
            " either written or not, and nobody can tell from here. Read it again and compare"
            " before you run this once more; or give idempotency= (entities), by which the write is"
            " known again, and it is run again."
        ) from error


def refuse_autocommit_of(target: Any) -> None:
    """Refuse a session factory whose engine, or connection, is known to be in that mode.

    Engines of single classes (``binds=``) may hold classes without a version: they are asked when
    a flush writes over them.

    Raises:
        ConfigurationError: so it is.
    """
    factory = getattr(target, "session_factory", target)
    bind: Any = getattr(factory, "kw", {}).get("bind")
    bind = getattr(bind, "sync_engine", None) or getattr(bind, "sync_connection", None) or bind
    if bind is None or not hasattr(bind, "get_execution_options"):
        return
    level = bind.get_execution_options().get("isolation_level") or level_on_connect(bind.dialect)
    # A listener that sends BEGIN makes transactions in this mode, too: asked again by a flush.
    if _is_autocommit(level) and not has_begin_listeners(bind.engine):
        raise ConfigurationError(
            "watch() got sessions of an engine in AUTOCOMMIT mode: every statement is stored at"
            f" once, and a refused flush could not be taken back. {INSTEAD}"
        )


def _is_autocommit(level: object) -> bool:
    return isinstance(level, str) and level.replace("_", " ").upper() == "AUTOCOMMIT"


INSTEAD = (
    'Give the sessions an engine without isolation_level="AUTOCOMMIT", and without the autocommit'
    " of its driver. For statements that need it, such as VACUUM, connect by"
    ' engine.execution_options(isolation_level="AUTOCOMMIT").'
)
