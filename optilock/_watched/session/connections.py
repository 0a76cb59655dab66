"""The connection on which a session writes, and on which the rows of its checks are read.

A session may read from a replica and write to the primary, by a ``get_bind`` of its own that looks
at the statement. A replica knows too late what others have written, and takes no locks for them.

Connections in AUTOCOMMIT mode are refused. There every statement is stored at once: a row that is
locked and looked at is free again before it is written, and a flush that is refused half-way leaves
its first half behind. :func:`optilock.watch` refuses an engine that is known to be in that mode.
Where only the connection is (by an option of the driver, or by
``session.connection(execution_options=...)``), the first flush that would write guarded rows over
it raises ``ConfigurationError``, before anything is sent. Reading over such a connection is
allowed, and so is a write by one guarded statement that needs no transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session

from optilock._undocumented.connections import has_begin_listeners, level_on_connect
from optilock._watched.session.record import is_watched, session_record
from optilock.dialects import database_of
from optilock.dialects.transient import answer_unknown
from optilock.errors import CommitOutcomeUnknown, ConfigurationError, describe

#: On the ``connection`` of a watched session class: SQLAlchemy's own.
ORIGINAL_KEY = "_optilock_plain"
_updates: WeakKeyDictionary[Mapper[Any], Update] = WeakKeyDictionary()


def connection_to_write(
    session: Session, mapper: Mapper[Any], *, for_queries: bool = False, writes: bool = False
) -> Connection:
    """Return the connection of the session's transaction that writes rows of ``mapper``.

    ``writes``: rows are changed on it, and not only looked at.
    """
    if writes and is_watched(session):
        session_record(session).note_other_statement(writes=True)
    return own_connection(session, bind_to_write(mapper), for_queries=for_queries)


def own_connection(
    session: Session, binds: Mapping[str, Any], *, for_queries: bool = False
) -> Connection:
    """Return ``session.connection()`` for optilock itself: statements on it are not checked.

    The session's record notes that statements may be sent, unless it is ``for_queries`` alone.
    """
    if not for_queries and is_watched(session):
        session_record(session).note_other_statement()
    connection = type(session).connection
    return getattr(connection, ORIGINAL_KEY, connection)(session, bind_arguments=dict(binds))


@contextmanager
def separate_connection(engine: Engine) -> Iterator[Connection]:
    """Open a new connection, even if the pool has none left; it sees what others have committed."""
    pool = engine.pool.recreate()
    try:
        with Connection(engine, connection=pool.connect()) as connection:
            yield connection
    finally:
        pool.dispose()


@contextmanager
def own_statements(engine: Engine) -> Iterator[Connection]:
    """Open such a connection, on which each statement commits itself.

    A listener of the application's may have sent its settings when it was opened, and psycopg
    changes nothing within a transaction.
    """
    with separate_connection(engine) as connection:
        connection.dialect.do_commit(connection.connection)
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with connection.begin():
            yield connection


def has_two_phases(sessions: Any) -> bool:
    """Return whether the sessions of a factory are known to end in two phases."""
    factory = getattr(sessions, "session_factory", sessions)  # of a scoped session
    return bool(getattr(factory, "kw", {}).get("twophase"))


def engine_to_write(session: Session, mapper: Mapper[Any]) -> Engine:
    """Return the engine to which the session writes rows of ``mapper``."""
    return session.get_bind(**bind_to_write(mapper)).engine


def bind_to_write(mapper: Mapper[Any]) -> Mapping[str, Any]:
    """Return the arguments of ``get_bind`` for an UPDATE of ``mapper``'s rows."""
    update = _updates.get(mapper)
    if update is None:
        table: Any = mapper.base_mapper.local_table
        if not isinstance(table, Table):  # the class is mapped to a SELECT
            table = next(one for one in mapper.tables if isinstance(one, Table))
        update = _updates[mapper] = table.update()
    return {"mapper": mapper, "clause": update}


def binds_of_sessions(sessions: Any) -> list[Engine | Connection]:
    """Return the engines and connections that a session factory names, or an engine itself."""
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
            " may stand for a row on every shard, and a conflict could name the wrong one."
            " Watch a sessionmaker for each shard. Sessions with binds={Model: engine} are no"
            " problem."
        )


def given_session(session: Any, call: str, in_async_code: str) -> Session:
    """Return the session that ``call`` got, or the current one of a ``scoped_session``.

    Raises:
        ConfigurationError: it is no session; the message advises ``in_async_code`` for an
            ``AsyncSession``.
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
    """Refuse anything but an ``Engine``; an ``AsyncEngine`` is refused, too.

    Raises:
        ConfigurationError: the message names ``call``, the function that got it.
    """
    if not isinstance(engine, Engine):
        raise ConfigurationError(
            f"{call}() takes an Engine, not {describe(engine)}: write create_engine(url), for an"
            " async application with a sync driver of the same database (psycopg, pymysql, sqlite)."
        )


def is_autocommit(connection: Any) -> bool:
    """Return whether every statement on it commits by itself, once its transaction has begun."""
    return isinstance(connection, Connection) and database_of(connection.dialect).locks.autocommits(
        connection
    )


def refuse_autocommit(connection: Connection, what: str) -> None:
    """Refuse to do ``what`` over a connection in AUTOCOMMIT mode.

    Raises:
        ConfigurationError: the connection is in that mode; nothing was sent.
    """
    if is_autocommit(connection):
        raise ConfigurationError(
            f"{what} over a connection in AUTOCOMMIT mode is refused: every statement is stored at"
            " once, locked rows are free again at once, and half of the work could not be taken"
            f" back. {AUTOCOMMIT_HINT} Nothing was sent."
        )


def require_answer(error: DBAPIError, mapper: Mapper[Any]) -> None:
    """Raise for a lost statement that commits by itself, if it may be stored all the same.

    Raises:
        CommitOutcomeUnknown: the row may be stored.
    """
    if answer_unknown(error):
        raise CommitOutcomeUnknown(
            f"the connection was lost while a row of {mapper.class_.__name__} was written over a"
            " connection in AUTOCOMMIT mode, where each statement commits by itself, so the row is"
            " either written or not, and the outcome is unknown. Read it again and compare before"
            " you run this once more; or give idempotency= (entities), which recognises the write"
            " and runs it again."
        ) from error


def refuse_autocommit_of(target: Any) -> None:
    """Refuse a session factory whose engine, or connection, is known to be in that mode.

    Engines of single classes (``binds=``) may hold classes without a version: they are checked when
    a flush writes over them.

    Raises:
        ConfigurationError: the engine, or the connection, is in that mode.
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
            f" once, and a refused flush could not be taken back. {AUTOCOMMIT_HINT}"
        )


def _is_autocommit(level: object) -> bool:
    return isinstance(level, str) and level.replace("_", " ").upper() == "AUTOCOMMIT"


AUTOCOMMIT_HINT = (
    'Give the sessions an engine without isolation_level="AUTOCOMMIT", and without the autocommit'
    " of its driver. For statements that need it, such as VACUUM, connect by"
    ' engine.execution_options(isolation_level="AUTOCOMMIT").'
)
