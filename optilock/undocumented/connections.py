"""Connections: how they are made, what they refuse, and who listens to them."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import NoReturn

from sqlalchemy import Connection, Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.pool.base import _ConnectionRecord


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

    For errors that name no statement: so do those of a ROLLBACK, of a result that was still being
    read, and of the question at which level a transaction runs. An error that was sent from another
    process does not show where it was raised, so nothing is certain.
    """
    passed = set(_passed_through(error))
    return _handles_errors in passed and passed.isdisjoint(_commits)


def raise_as_of(connection: Connection, error: Exception) -> NoReturn:
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
}


def demand_rollback(connection: Connection) -> None:
    """Let the connection refuse statements and COMMIT until its transaction is rolled back.

    So SQLAlchemy leaves a transaction whose COMMIT has failed.
    """
    transaction = connection.get_transaction()
    if transaction is not None:
        transaction.is_active = False


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
