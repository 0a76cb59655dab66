"""Connections: how they are made, what they refuse, and who listens to them."""

from __future__ import annotations

from sqlalchemy import Connection, Engine
from sqlalchemy.pool.base import _ConnectionRecord


def while_connecting(error: BaseException) -> bool:
    """Did it come out of a pool that was making a connection?

    Asyncpg raises the operating system's own errors there, and nothing else tells them from others.
    """
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is _connects:
            return True
        trace = trace.tb_next
    return False


_connects = vars(_ConnectionRecord)["_ConnectionRecord__connect"].__code__


def demand_rollback(connection: Connection) -> None:
    """Let the connection refuse statements and COMMIT until its transaction is rolled back.

    So SQLAlchemy leaves a transaction whose COMMIT has failed.
    """
    transaction = connection.get_transaction()
    if transaction is not None:
        transaction.is_active = False


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
