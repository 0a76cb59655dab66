"""Which connections wait for a lock, and what a statement locks beyond the rows that it names."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Dialect

#: Levels at which a transaction keeps the snapshot of its first statement.
KEEP_SNAPSHOT = frozenset({"REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"})


@dataclass(frozen=True)
class Reach:
    """The reach of a transaction's statements beyond the rows that they name."""

    #: The first statement decides what all later ones see.
    keeps_snapshot: bool = False
    #: Rows that are read are locked, or count as such.
    locks_reads: bool = False
    #: A write locks more than its rows: it counts as one of the whole table.
    locks_tables: bool = False
    #: The verdict on one COMMIT depends on the other COMMITs before it.
    orders_commits: bool = False
    #: A COMMIT that waits keeps out all readers.
    stops_readers: bool = False


def level_of(connection: Connection) -> str:
    """Return the isolation level by the connection's options, without a question."""
    level = connection.get_execution_options().get("isolation_level")
    return str(level or connection.default_isolation_level or "").upper()


class Waits:
    """The part of a database's class that concerns waits, asked by optilock.testing."""

    #: Whether a connection of the server waits for a lock; ``{}`` is its number there.
    lock_question: str | None = None
    #: Seconds between two questions, for an answer that is not the one of the question before.
    lock_question_pause: float = 0.005

    def number_of(self, connection: Any) -> int | None:
        """The number on its server of a driver's connection, if the driver knows it."""
        return None

    def who_waits(self, cursor: Any, numbers: Collection[int]) -> frozenset[int] | None:
        """Return those of our connections that wait for a lock of another connection.

        The driver's ``cursor`` is of a connection of its own, in autocommit. ``None``: there is no
        answer as new as the question.
        """
        raise NotImplementedError

    #: Whether :meth:`who_waits` works.
    tells_waits: bool = False
    #: A statement that meets a lock is refused at once with :attr:`watched_settings`, and not kept
    #: waiting: :meth:`is_busy` recognises such errors.
    refuses_when_busy: bool = False

    def is_busy(self, error: BaseException) -> bool:
        """Return whether another connection has a lock, and the same call may succeed later."""
        return False

    #: Settings for connections whose waits are watched, and the statements that undo them. The
    #: last setting may be refused for want of a privilege.
    watched_settings: tuple[str, ...] = ()

    def has_open_transaction(self, connection: Any) -> bool | None:
        """Return whether a transaction of a driver's connection is open; ``None``: unknown."""
        return None

    def open_transactions(self, connection: Any) -> Callable[[], bool | None]:
        """Return what asks a driver's connection the same, again and again."""
        return partial(self.has_open_transaction, connection)

    def has_open_pipeline(self, connection: Any) -> bool:
        """Return whether the driver sends statements without waiting for their results."""
        return False

    def is_in_memory(self, dialect: Dialect, connection: Any) -> bool:
        """Return whether the database is one of this connection alone."""
        return False

    def reads_wait(self, connection: Connection) -> bool:
        """Return whether a plain read waits for rows that another transaction has locked."""
        return level_of(connection) == "SERIALIZABLE"

    def reach(self, connection: Connection) -> Reach:
        """Return what statements of the transaction concern; here: all that is possible."""
        return Reach(True, True, True, True, True)
