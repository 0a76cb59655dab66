"""Connections: how they are made, what they refuse, and their listeners; dialects and types."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType
from typing import Any, NoReturn

from sqlalchemy import Column, Connection, Dialect, Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool.base import _ConnectionRecord
from sqlalchemy.types import TypeEngine

_log = logging.getLogger("optilock")


def while_connecting(error: BaseException) -> bool:
    """Did it come out of a pool that was making a connection?

    Asyncpg raises the operating system's own errors there, and nothing else tells them from others.
    """
    return _connects in _passed_through(error)


def while_setting_options(error: BaseException) -> bool:
    """Did it come out of a level that SQLAlchemy was setting on a connection?

    It sets one with the driver alone, whose error it leaves as it is.
    """
    return _sets_options in _passed_through(error)


def not_from_commit(error: BaseException) -> bool:
    """Is it certain that SQLAlchemy was not sending COMMIT, or PREPARE, when this was raised?

    For errors that name no statement: so do those of a result that was still being read, and of the
    question at which level a transaction runs. An error that was sent from another process does not
    show where it was raised, so nothing is certain; and a ROLLBACK may come after statements that
    have committed themselves.
    """
    passed = set(_passed_through(error))
    return _handles_errors in passed and passed.isdisjoint(_commits)


def _raise_as_of(connection: Connection, error: Exception) -> NoReturn:
    """Raise what the driver raised as SQLAlchemy raises the errors of a statement.

    A connection that is lost is thrown away, and with it all that the pool has made before it.
    """
    connection._handle_dbapi_exception(error, None, None, None, None)


def _passed_through(error: BaseException) -> Iterator[CodeType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next


_connects = vars(_ConnectionRecord)["_ConnectionRecord__connect"].__code__
_sets_options = DefaultDialect._set_connection_characteristics.__code__
_handles_errors = Connection._handle_dbapi_exception.__code__
_commits = {
    Connection._commit_impl.__code__,
    Connection._commit_twophase_impl.__code__,
    Connection._prepare_twophase_impl.__code__,
    Connection._rollback_impl.__code__,
}


def demand_rollback(connection: Connection) -> None:
    """Let the connection refuse statements and COMMIT until its transaction is rolled back.

    So SQLAlchemy leaves a transaction whose COMMIT has failed.
    """
    transaction = connection.get_transaction()
    if transaction is not None:
        transaction.is_active = False


def set_options(connection: Connection, options: Mapping[str, Any]) -> None:
    """``connection.execution_options(...)`` on a new connection, which is closed when that fails.

    SQLAlchemy sets a level with the driver alone. What ends it there (a task that is cancelled, an
    error of the server) leaves nobody who could give the driver's connection back to the pool, and
    it would wait there for the garbage collector. Nor does SQLAlchemy look at the driver's error:
    of a pool whose server has been away, each attempt would meet one more dead connection.

    It puts a level back while the connection returns to its pool. Where the connection is dead by
    then, the driver's error would hide the program's own, or a COMMIT that has succeeded, and the
    pool would count the connection as in use for ever.
    """
    try:
        connection.execution_options(**options)
    except Exception as error:
        try:
            _raise_as_of(connection, error)
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
    try:
        put_back(driver)
    except Exception:
        _log.warning("a connection could not be put right and is thrown away", exc_info=True)
        record.invalidate()
    except BaseException:
        thrown_away(record)
        raise


def thrown_away(record: _ConnectionRecord) -> None:
    """Give the place in the pool back, when an interrupt keeps the pool from doing so."""
    record.invalidate()
    pool: Any = getattr(record, "_ConnectionRecord__pool")  # noqa: B009
    pool._return_conn(record)


def renew_pool(connection: Connection) -> None:
    """Let the pool make its connections anew, each when it is next asked for."""
    connection.engine.pool._invalidate(connection.connection, _checkin=False)


def is_over(connection: Connection) -> bool:
    """Does the connection demand that?"""
    transaction = connection.get_transaction()
    return transaction is not None and not transaction.is_active


def has_begin_listeners(engine: Engine) -> bool:
    """Does a listener hear of each transaction that begins, and may send a BEGIN of its own?"""
    return bool(engine.dispatch.begin)


def has_commit_listeners(connection: Connection) -> bool:
    """Does a listener hear of each COMMIT of the connection, before it is sent?"""
    return bool(connection.dispatch.commit or connection.engine.dispatch.commit)


# -- dialects and types ----------------------------------------------------------------------------


def double_percents(dialect: Dialect) -> bool:
    """Does the compiler write ``%`` twice, for a driver that would take it for a parameter?"""
    return dialect.identifier_preparer._double_percents


def default_in_ddl(column: Column[Any], dialect: Dialect) -> str:
    """The SQL of a column's ``server_default``, as CREATE TABLE has it."""
    compiler = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type]
    found = compiler.get_column_default_string(column)
    assert found is not None  # of columns that have one
    return found.replace("%%", "%") if double_percents(dialect) else found


def reads_json_itself(dialect: Dialect) -> bool:
    """Has the application its own reader of JSON (``create_engine(json_deserializer=...)``)?"""
    return getattr(dialect, "_json_deserializer", None) is not None


def json_writer(dialect: Dialect | None) -> Callable[[Any], Any]:
    """What makes the text of a JSON value: ``create_engine(json_serializer=...)``, or Python's."""
    return getattr(dialect, "_json_serializer", None) or json.dumps


def level_on_connect(dialect: Dialect) -> str | None:
    """The ``isolation_level`` that ``create_engine`` was given."""
    level: str | None = dialect._on_connect_isolation_level
    return level


def skips_rollback(dialect: Dialect) -> bool:
    """``create_engine(skip_autocommit_rollback=True)``, which SQLAlchemy has since 2.0.43."""
    return bool(getattr(dialect, "skip_autocommit_rollback", False))


def has_bind_expression(kind: TypeEngine[Any]) -> bool:
    """Does the type put SQL of its own around a parameter?"""
    return bool(kind._has_bind_expression)


def type_on(kind: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    """The type that stands for it on this database."""
    found: TypeEngine[Any] = kind._variant_mapping.get(dialect.name, kind)
    return found


def variants_of(kind: TypeEngine[Any]) -> list[TypeEngine[Any]]:
    """The types that stand for it on some databases (``with_variant()``)."""
    return list(kind._variant_mapping.values())
