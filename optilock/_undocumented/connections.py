"""Connections: how they are made, what they refuse, and their listeners; dialects and types."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from sqlalchemy import Column, Connection, Dialect, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.types import TypeEngine

from optilock._undocumented.names import find_name

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool.base import _ConnectionRecord

_log = logging.getLogger("optilock")


def is_raised_while_connecting(error: BaseException) -> bool:
    """Return whether a pool raised it while making a connection.

    Asyncpg raises the operating system's own errors there, which look the same elsewhere.
    """
    return _connects in _passed_through(error)


def is_raised_while_setting_options(error: BaseException) -> bool:
    """Return whether it was raised while SQLAlchemy set the isolation level of a connection.

    It sets one with the driver alone, whose error it leaves as it is.
    """
    return _sets_options in _passed_through(error)


def is_not_from_commit(error: BaseException) -> bool:
    """Return whether it certainly was not raised while SQLAlchemy was sending COMMIT or PREPARE.

    For errors that name no statement. Errors of a result that was still being read name none, and
    neither do those of the query for a transaction's level. An error that was sent from another
    process does not show where it was raised, so nothing is certain. A ROLLBACK may come after
    statements that have committed themselves.
    """
    passed = set(_passed_through(error))
    return _handles_errors in passed and passed.isdisjoint(_commits)


def error_before_rollback(error: BaseException) -> BaseException:
    """Return the error that a ROLLBACK was to undo, if ``error`` is that of this ROLLBACK.

    After an error SQLAlchemy rolls back. If the server is gone by then, it raises the error of
    ROLLBACK in place of the first one, which is what a retry has to decide on.
    """
    if not isinstance(error, DBAPIError):
        return error
    # An AsyncSession closes in another task, and then SQLAlchemy's own error has the context.
    raised = [error, *_driver_errors(error)]
    contexts = (one.__context__ for one in reversed(raised))
    first = next((one for one in contexts if one is not None and one not in raised), None)
    drivers = {_package(one) for one in raised[1:]} - {"sqlalchemy"}
    while isinstance(first, OSError) and _caught_in(first) in drivers:  # the reason of ROLLBACK's
        first = first.__context__
    if first is None or _rolls_back not in _passed_through(error):
        return error
    if isinstance(first, SQLAlchemyError) or _package(first) not in map(_package, raised[1:]):
        return first
    wrapped: BaseException = DBAPIError(None, None, first)  # the driver's, not wrapped yet
    return wrapped.with_traceback(first.__traceback__)


def _driver_errors(error: DBAPIError) -> Iterator[BaseException]:
    """Yield the driver's error, and before it that of SQLAlchemy's adapter for an async driver."""
    found: BaseException | None = error.orig
    while found is not None:
        yield found
        found = found.__cause__


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _caught_in(error: BaseException) -> str:
    trace = error.__traceback__
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return name.partition(".")[0]


def raise_as_of(
    connection: Connection,
    error: BaseException,
    statement: str | None = None,
    parameters: Any = None,
) -> NoReturn:
    """Raise the driver's error as SQLAlchemy raises the errors of a statement.

    A lost connection is thrown away, and with it all that the pool has made before it. Another
    error than a driver's is raised as it is; after an interrupt the connection is thrown away.
    """
    if isinstance(error, Exception) and not isinstance(
        error, connection.dialect.loaded_dbapi.Error
    ):
        statement = None
    connection._handle_dbapi_exception(error, statement, parameters, None, None)


def _passed_through(error: BaseException) -> Iterator[CodeType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next


_connects = find_name("sqlalchemy.pool.base:_ConnectionRecord._ConnectionRecord__connect.__code__")
_sets_options = find_name(
    "sqlalchemy.engine.default:DefaultDialect._set_connection_characteristics.__code__"
)
_handles_errors = find_name("sqlalchemy:Connection._handle_dbapi_exception.__code__")
_rolls_back = find_name("sqlalchemy:Connection._rollback_impl.__code__")
_commits = {
    find_name("sqlalchemy:Connection._commit_impl.__code__"),
    find_name("sqlalchemy:Connection._commit_twophase_impl.__code__"),
    find_name("sqlalchemy:Connection._prepare_twophase_impl.__code__"),
    _rolls_back,
}


def set_options(connection: Connection, options: Mapping[str, Any]) -> None:
    """Call ``connection.execution_options(...)`` on a new connection, and close it if that fails.

    SQLAlchemy sets a level with the driver alone. An interruption there (a cancelled task, an error
    of the server) would leave the driver's connection out of the pool, until the garbage collector
    finds it. SQLAlchemy does not examine the driver's error either: in a pool whose server has been
    away, each attempt would meet one more dead connection.

    It restores a level while the connection returns to its pool. If the connection is dead by then,
    the driver's error would hide the program's own, or a COMMIT that has succeeded, and the pool
    would count the connection as in use for ever.
    """
    try:
        connection.execution_options(**options)
    except Exception as error:
        try:
            raise_as_of(connection, error)
        finally:
            connection.close()
    except BaseException as error:
        connection.invalidate(error)  # the answer of the server may be half read
        connection.close()
        raise
    record = connection.connection._connection_record
    if record is not None and record.finalize_callback:
        put_back = record.finalize_callback.pop()
        record.finalize_callback.append(partial(_put_back, record, put_back))


def _put_back(
    record: _ConnectionRecord, put_back: Callable[[DBAPIConnection], None], driver: DBAPIConnection
) -> None:
    with thrown_away_on_error(record):
        put_back(driver)


@contextmanager
def thrown_away_on_error(record: _ConnectionRecord) -> Iterator[None]:
    """Throw a connection away that cannot be put right; its place in the pool is kept."""
    try:
        yield
    except Exception:
        _log.warning("a connection could not be put right and is thrown away", exc_info=True)
        record.invalidate()
    except BaseException:
        _throw_away(record)
        raise


def _throw_away(record: _ConnectionRecord) -> None:
    """Give the place in the pool back, when an interrupt keeps the pool from doing so."""
    record.invalidate()
    pool: Any = getattr(record, "_ConnectionRecord__pool")  # noqa: B009
    pool._return_conn(record)


def renew_pool(connection: Connection) -> None:
    """Let the pool make its connections again, each when it is next needed."""
    connection.engine.pool._invalidate(connection.connection, _checkin=False)


_OF_STATEMENTS = (
    "before_execute",
    "after_execute",
    "before_cursor_execute",
    "after_cursor_execute",
)


_ONLY_LOOKS = "optilock_only_looks"
L = TypeVar("L", bound=Callable[..., Any])


def only_looks(listener: L) -> L:
    """Mark a listener to statements that need not see those that the driver gets directly.

    It is registered with ``retval=True``: otherwise SQLAlchemy calls it through a function of its
    own, which has no mark.
    """
    setattr(listener, _ONLY_LOOKS, True)
    return listener


def has_statement_listeners(connection: Connection, *, except_for: object) -> bool:
    """Return whether a log or a listener, other than the one given, sees its statements.

    A listener of the class ``Engine`` leaves ``_has_events`` behind when it is removed. Those that
    :func:`only_looks` has marked do not count.
    """
    dialect, engine = connection.dialect, connection.engine
    return bool(
        connection._echo
        or (
            (connection._has_events or engine._has_events)
            and any(
                not hasattr(one, _ONLY_LOOKS)
                for target in (connection, engine)
                for name in _OF_STATEMENTS
                for one in getattr(target.dispatch, name)
            )
        )
        or (
            dialect._has_events
            and any(one is not except_for for one in dialect.dispatch.do_execute)
        )
    )


def has_begin_listeners(engine: Engine) -> bool:
    """Return whether listeners are called when a transaction begins; one may send its own BEGIN."""
    return bool(engine.dispatch.begin)


def has_commit_listeners(connection: Connection) -> bool:
    """Return whether listeners are called before each COMMIT of the connection."""
    return bool(connection.dispatch.commit or connection.engine.dispatch.commit)


def has_listeners_after_statements(connection: Connection) -> bool:
    """Return whether listeners are called after each statement; one may send another."""
    return any(
        one.after_cursor_execute or one.after_execute
        for one in (connection.dispatch, connection.engine.dispatch)
    )


# -- dialects and types ----------------------------------------------------------------------------


def doubles_percents(dialect: Dialect) -> bool:
    """Return whether the compiler doubles ``%``, for a driver that would read a parameter."""
    return dialect.identifier_preparer._double_percents


def default_in_ddl(column: Column[Any], dialect: Dialect) -> str:
    """Return the SQL of a column's ``server_default``, as CREATE TABLE has it."""
    compiler = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type]
    found = compiler.get_column_default_string(column)
    assert found is not None  # of columns that have one
    return found.replace("%%", "%") if doubles_percents(dialect) else found


def reads_json_itself(dialect: Dialect) -> bool:
    """Return whether the application reads JSON (``create_engine(json_deserializer=...)``)."""
    return getattr(dialect, "_json_deserializer", None) is not None


def json_writer(dialect: Dialect | None) -> Callable[[Any], Any]:
    """Return the function that writes JSON: ``create_engine(json_serializer=...)``, or Python's."""
    return getattr(dialect, "_json_serializer", None) or json.dumps


def level_on_connect(dialect: Dialect) -> str | None:
    """Return the ``isolation_level`` given to ``create_engine``."""
    level: str | None = dialect._on_connect_isolation_level
    return level


def skips_rollback(dialect: Dialect) -> bool:
    """Return ``create_engine(skip_autocommit_rollback=True)``, in SQLAlchemy since 2.0.43."""
    return bool(getattr(dialect, "skip_autocommit_rollback", False))


def has_bind_expression(kind: TypeEngine[Any]) -> bool:
    """Return whether the type puts its own SQL around a parameter."""
    return bool(kind._has_bind_expression)


def type_on(kind: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    """Return the type that replaces it on this database."""
    found: TypeEngine[Any] = kind._variant_mapping.get(dialect.name, kind)
    return found


def variants_of(kind: TypeEngine[Any]) -> list[TypeEngine[Any]]:
    """Return the types that replace it on some databases (``with_variant()``)."""
    return list(kind._variant_mapping.values())
