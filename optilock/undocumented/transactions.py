"""The transactions of sessions and connections: what came of them, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.session import SessionTransactionState

from optilock.undocumented.objects import State

#: ``get_nested_transaction()`` of a session or a connection, and ``get_transaction()`` of a
#: connection, without a call of Python.
nested_transaction: Callable[[Any], Any] = attrgetter("_nested_transaction")
transaction_of: Callable[[Connection], Any] = attrgetter("_transaction")


def inserted_by(session: Session | None) -> Iterator[State]:
    """The objects whose rows the running transaction has inserted."""
    running = session and (session.get_nested_transaction() or session.get_transaction())
    while running:
        yield from list(running._new)
        running = running.parent


def inserted_in(transaction: SessionTransaction) -> Collection[State]:
    """The objects whose rows the transaction, or the savepoint, has inserted."""
    return transaction._new


def deleted_in(transaction: SessionTransaction) -> Collection[State]:
    """The objects whose rows it has deleted."""
    return transaction._deleted


def expired_with(savepoint: SessionTransaction) -> Collection[State]:
    """The objects that its rollback expires, beside those that are changed and not flushed."""
    return savepoint._dirty


def was_committing(transaction: SessionTransaction) -> bool:
    """Did the transaction, which failed, get to COMMIT? A flush that fails ends it before."""
    return transaction._state is SessionTransactionState.PREPARED


def was_committed(transaction: SessionTransaction) -> bool:
    """Is COMMIT over, though a listener of ``after_commit`` may have failed since?"""
    return transaction._state is SessionTransactionState.COMMITTED


def opened_by(transaction: SessionTransaction, connection: Connection) -> bool:
    """Has the session itself opened the connection, so that its COMMIT is the connection's?"""
    _, _, commits, opened = transaction._connections[connection]
    return bool(commits and opened)


Held = Mapping[Any, tuple[Connection, Any, bool, bool]]


def leave_connections(transaction: SessionTransaction) -> Held:
    """Take its connections out of a session's transaction, which ends without them."""
    held, transaction._connections = transaction._connections, {}
    return held


def take_connections(transaction: SessionTransaction, held: Held) -> None:
    """Let another session's transaction, which has none yet, go on with them."""
    transaction._connections.update(held)
