"""How long another transaction's lock is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, ColumnElement, Connection, Dialect, Update

from optilock.conditions.condition import Condition
from optilock.dialects.feature import Feature
from optilock.errors import ConfigurationError

#: Seconds for which a transaction with locks that were only learned may send nothing.
LONGEST_PAUSE = 0.9

#: Columns of a row's key, and what they are equal to.
KeyValues = Mapping[Column[Any], ColumnElement[Any]]


@dataclass(frozen=True)
class Wait:
    """How long, in seconds; ``None``: as the database is set up, 0: not at all.

    With ``skip`` rows that another transaction has locked are left out of the answer.
    """

    seconds: float | None = None
    skip: bool = False

    @property
    def usual(self) -> bool:
        return self.seconds is None and not self.skip

    @property
    def milliseconds(self) -> int | None:
        """The longest wait; 0 with ``skip``, too; ``None``: as the database is configured."""
        if self.skip:
            return 0
        return None if self.seconds is None else round(self.seconds * 1000)


class Waits(Feature):
    """The limits of waits for locks, in statements and in settings."""

    def waiting(self, connection: Connection, wait: Wait) -> AbstractContextManager[None]:
        """For the length of a block, let statements wait for locks so long at most.

        Only where the statement itself does not say it.
        """
        return nullcontext()

    def pass_over_lock(self, connection: Connection, update: Update, keys: KeyValues) -> Update:
        """Return the UPDATE in a form that does not wait; or as it is, where a setting forbids it.

        Raises:
            ConfigurationError: optilock does not know the SQL for this database.
        """
        raise ConfigurationError(
            "A lease or a handle is renewed without waiting for locks, and optilock does not know"
            " the SQL for that on this database: renew it yourself. Nothing was sent."
        )

    #: True of every row: from the statement that has it in its WHERE, the transaction waits for no
    #: lock longer than ten seconds. None: the database has a limit of its own.
    bounds_waits: ColumnElement[bool] | None = None

    def bound_locks(self, dialect: Dialect) -> ColumnElement[bool] | None:
        """Return such a condition for a query with locks that its program did not ask for.

        The server ends the transaction if its program pauses for longer than
        :data:`LONGEST_PAUSE`.
        """
        return None

    #: Conditions that every row fulfils; after them, a statement waits only briefly for locks.
    #: None where the database finds a deadlock as soon as there is one.
    brief_waits: tuple[Condition, ...] = ()

    def has_brief_reads(self, dialect: sa.Dialect) -> bool:
        """Return whether a read that shares rows can give up after a short time."""
        return bool(self.brief_waits)
