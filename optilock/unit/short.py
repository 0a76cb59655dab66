"""``short=True``: reads outside of a transaction, and one guarded statement that commits itself.

::

    with UnitOfWork(SessionLocal, short=True) as session:
        session.get_one(Account, 42).owner = "Ada"
    # SELECT, and an UPDATE that is stored when it is answered: no BEGIN, no COMMIT

For the length of the unit the driver's connection is in its autocommit mode. Plain SELECTs go out
in it, and so does what the unit writes, if that is exactly one guarded statement, and the last
thing that it does. Before anything else the mode is left, and what comes then belongs to one
transaction, which COMMIT ends: rows of a second table, an INSERT, a DELETE, link rows, a flush in
the body, a savepoint, a row that is locked, promises (``verify``, ``expect``), a SQL text that may
write. So nothing is ever half.

A row that has moved is written by nobody: the statement matches no row and stores nothing. The
transaction begins then, and the conflict goes its usual way.

What is given up: each SELECT sees what is stored at its own moment, so two of them may show
different states. The rows that are *written* are as they were read, or there is a conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from optilock.conditions.write import Alone, Write
from optilock.dialects import Database, database_of
from optilock.dialects.base import Switch
from optilock.dialects.rows import native
from optilock.dialects.switch import Interposed
from optilock.dialects.transient import answer_unknown
from optilock.errors import ConfigurationError
from optilock.session.watched import known_of
from optilock.undocumented.dialects import level_on_connect
from optilock.undocumented.transactions import opened_by
from optilock.unit.ending import ask_drivers
from optilock.unit.parts import Part


class Short(Part, option="short"):
    """The part that leaves the transaction out where one statement is all that is written."""

    def opened(self, sessions: Any) -> None:
        ask_drivers(sessions, self.option, lambda asked, its: asked.refuse_short(its))

    def connected(self, session: Session, connection: Connection) -> None:
        known, transaction = known_of(session), session.get_transaction()
        database = database_of(connection.dialect)
        database.refuse_short(connection.dialect)
        _refuse_level(connection)
        if session.twophase or transaction is None or not opened_by(transaction, connection):
            return
        switch = database.without_transaction(connection)
        if switch is None:  # a listener has begun it, and perhaps written in it
            return
        known.ending = OneStatement(switch)
        known.autocommitting = tuple(one for one in known.autocommitting if one is not connection)

    def after(self, session: Session, error: BaseException | None) -> None:
        known_of(session).ending = None


class OneStatement:
    """Sends the last writes of a unit without a transaction, or begins one."""

    def __init__(self, switch: Switch) -> None:
        self.unanswered = self._stored = False
        self._switch = switch

    @property
    def stored(self) -> bool:
        """Was the write carried out, so that nothing may come after it?"""
        return self._stored or self._switch.stored

    def send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Database,
        alone: Alone | None = None,
        *,
        locked: bool = False,
    ) -> list[Write] | None:
        """Write these rows in one statement, which commits itself; or return those that missed.

        None: nothing was written, and a transaction begins with what is sent next.
        """
        if self._switch.begun or len(together) != 1 or self._switch.has_spoken():
            return None
        (writes,) = together
        try:
            return (
                self._one(connection, writes[0], alone)
                if len(writes) == 1
                else self._all(connection, writes, database)
            )
        except Interposed:
            return None

    def _one(self, connection: Connection, write: Write, alone: Alone | None) -> list[Write]:
        if self._alone(connection, alone or Alone.of(write), write.shape.token.parameter):
            return []
        self._switch.begin()
        return [write]

    def _all(
        self, connection: Connection, writes: list[Write], database: Database
    ) -> list[Write] | None:
        raising = database.all_or_error(writes, connection.dialect)
        if raising is None:
            return None
        statement, params = raising
        try:
            self._alone(connection, Alone(statement, params, _all_or_error), next(iter(params)))
        except DBAPIError as error:
            if error.orig is None or not database.is_miss(error.orig):
                raise
            self.unanswered = False
            return None
        return []

    def _alone(self, connection: Connection, alone: Alone, parameter: str) -> bool:
        self._switch.let_through(alone.statement, parameter)
        try:
            result = native(connection, alone.statement, alone.params)
            written = alone.written(result)
            result.close()
            return written
        except BaseException as error:
            self.unanswered = answer_unknown(error)
            if isinstance(error, DBAPIError) or self.unanswered:
                self._switch.stored = False
            else:  # perhaps of a hook that comes after it
                self._switch.stored = self._switch.carried_out()
            raise

    def over(self) -> None:
        """The unit has ended: who uses the connection from here on does not belong to it."""
        self._stored, self._switch.stored = self.stored, False


def _all_or_error(result: CursorResult[Any]) -> bool:
    """A miss is an error of this statement, so an answer means that all rows are written."""
    return True


def _refuse_level(connection: Connection) -> None:
    """Refuse an engine at a level that promises one picture of the data.

    Raises:
        ConfigurationError: it has been asked for with ``isolation_level``.
    """
    asked = connection.get_execution_options().get("isolation_level")
    level = str(asked or level_on_connect(connection.dialect)).replace("_", " ").upper()
    if level in ("REPEATABLE READ", "SERIALIZABLE"):
        raise ConfigurationError(
            f"this engine has isolation_level={level!r}, which is for transactions: with short=True"
            " each SELECT has a moment of its own. Give the unit an engine without it, or leave"
            " short=True out. Nothing was sent."
        )
