"""One statement without a transaction, or else a transaction: the end of a short unit of work.

During a unit with ``short=True`` (:mod:`optilock.unit.round_trips`) the driver is in its autocommit
mode. A :class:`~optilock.dialects.base.Switch` lets plain SELECTs pass, and one announced
statement. Before anything else it leaves the mode: a transaction begins, and the following
statements belong to it. :class:`OneStatement` announces the unit's only write, or refuses, so that
the guard (:mod:`optilock.watched.guard.batch`) sends the rows in a transaction.

The switch of this file listens to SQLAlchemy's connection. psycopg's cursors send BEGIN together
with a statement. There the switch is a :class:`~optilock.dialects.postgresql.line.Line`, which also
sends the last writes of pipelined units (``dialects/postgresql/last_writes.py``).

:func:`residue_of` reads from a statement's text how much it leaves behind in its transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import Connection, CursorResult, event
from sqlalchemy.exc import DBAPIError

from optilock.conditions.write import NO_CHECKS, Checks, SingleWrite, Write
from optilock.dialects.base import Database, Switch
from optilock.dialects.connections import undo_at_checkin
from optilock.dialects.locks import BEGINS
from optilock.dialects.rows import execute_unguarded
from optilock.dialects.transaction_ends import ignore_ends, refuse_ended
from optilock.dialects.transient import answer_unknown
from optilock.errors import OptilockError
from optilock.undocumented.statements import is_server_side


class Interposed(Exception):
    """A listener sends a statement of its own before an announced one. Neither was sent.

    The sender of the announced statement catches this, and sends it in the transaction.
    """

    def __init__(self) -> None:
        super().__init__(
            "a listener sent a statement of its own before the last write of a unit of work, which"
            " is then sent without COMMIT; nothing is lost."
        )


class OneStatement:
    """Sends the last writes of a unit without a transaction, or begins one.

    It is an :class:`~optilock.watched.session.record.Ending`.
    """

    def __init__(self, switch: Switch) -> None:
        self.unanswered = self._stored = False
        self._switch = switch

    #: A transaction keeps promises.
    carries_checks = False

    @property
    def stored(self) -> bool:
        """True once the write was carried out: no statement may follow it."""
        return self._stored or self._switch.stored

    def send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Database,
        alone: SingleWrite | None = None,
        *,
        locked: bool = False,
        checks: Checks = NO_CHECKS,
    ) -> list[Write] | None:
        """Write these rows in one statement, which commits itself; or return those that missed.

        After None nothing was written, and a transaction begins with the next statement.
        """
        if self._switch.begun or len(together) != 1 or self._switch.has_spoken():
            return None
        (writes,) = together
        refuse_ended(connection)
        with ignore_ends(connection), suppress(Interposed):
            if len(writes) == 1:
                return self._send_row(connection, writes[0], alone)
            return self._send_rows(connection, writes, database)
        return None

    def _send_row(
        self, connection: Connection, write: Write, alone: SingleWrite | None
    ) -> list[Write]:
        if self._execute(connection, alone or SingleWrite.of(write), write.shape.token.parameter):
            return []
        self._switch.begin()
        return [write]

    def _send_rows(
        self, connection: Connection, writes: list[Write], database: Database
    ) -> list[Write] | None:
        raising = database.all_or_error(writes, connection.dialect)
        if raising is None:
            return None
        statement, params = raising
        try:
            # A miss is an error of this statement, so an answer means that all rows are written.
            self._execute(
                connection, SingleWrite(statement, params, _is_answer), next(iter(params))
            )
        except DBAPIError as error:
            if error.orig is None or not database.is_miss(error.orig):
                raise
            self.unanswered = False
            return None
        return []

    def _execute(self, connection: Connection, alone: SingleWrite, parameter: str) -> bool:
        self._switch.let_through(alone.statement, parameter)
        try:
            result = execute_unguarded(connection, alone.statement, alone.params)
            written = alone.written(result)
            result.close()
            return written
        except BaseException as error:
            self.unanswered = answer_unknown(error)
            if isinstance(error, DBAPIError) or self.unanswered:
                self._switch.stored = False
            else:  # perhaps of a hook that comes after the statement
                self._switch.stored = self._switch.carried_out()
            raise

    def over(self) -> None:
        """End the unit: later statements on the connection do not belong to it."""
        self._stored, self._switch.stored = self.stored, False


def _is_answer(result: CursorResult[Any]) -> bool:
    return True


class _SwitchByEvents:
    def __init__(
        self, connection: Connection, leave: Callable[[], None], streams_begin: bool
    ) -> None:
        self.stored = self.begun = False
        self._announced: Any = None
        self._cursor: Any = None
        self._leave, self._streams_begin = leave, streams_begin
        event.listen(connection, "before_cursor_execute", self._before)

    def _before(
        self, connection: Connection, cursor: Any, statement: str, params: Any, context: Any, _: Any
    ) -> None:
        if self.begun:
            return
        if self.stored:
            self.stored = self.carried_out()
            raise OptilockError(AFTER_THE_END) if self.stored else Interposed
        announced, self._announced = self._announced, None
        if announced is not None:
            if context.invoked_statement is not announced:
                raise Interposed
            self.stored, self._cursor = True, cursor
        elif not is_plain_select(statement) or (self._streams_begin and is_server_side(context)):
            self.begin()

    def begin(self) -> None:
        self.begun, self.stored = True, False
        self._leave()

    def let_through(self, statement: Any, parameter: str) -> None:
        self._announced = statement

    def carried_out(self) -> bool:
        return self.stored and bool(self._cursor.rowcount > 0)

    def has_spoken(self) -> bool:
        return False


def open_switch(
    connection: Connection, leave: Callable[[], None], *, streams_begin: bool = False
) -> Switch:
    """Return the switch of a connection in autocommit mode, which ``leave`` takes it out of.

    ``streams_begin``: the database has cursors in a transaction only.
    """
    connection.info[BEGINS] = switch = _SwitchByEvents(connection, leave, streams_begin)
    undo_at_checkin(connection, partial(_forget, connection.info))
    return switch


def _forget(info: Any, _: Any) -> None:
    del info[BEGINS]


AFTER_THE_END = (
    "a statement was sent after the last write of a unit of work with pipelined=True or short=True,"
    " which had committed in the same trip: the unit is stored, and this statement cannot belong to"
    " it any more. Nothing was sent now. Send it earlier in the unit, in another unit, or leave the"
    " option out."
)


# -- what a statement leaves behind in its transaction ---------------------------------------------

#: Words that may stand before a parenthesis; any other word is treated as a function.
_NO_FUNCTIONS = frozenset(
    {"ALL", "AND", "ANY", "AS", "BETWEEN", "BY", "CASE", "ELSE", "FROM", "IN", "JOIN", "NOT", "ON"}
    | {"OR", "SELECT", "THEN", "UNION", "WHEN", "WHERE", "NUMERIC", "VARCHAR"}
)
_WORDS = re.compile(r'([\w$"]+)\s*\(')
_LEAVES_MORE = re.compile(r"\b(FOR|INTO|LOCK)\b|;|--|/\*|:=", re.IGNORECASE)
_NAME = r'(?:\w+|"[^"]+")'
_LOCKS = re.compile(
    rf"\bFOR (?:NO KEY UPDATE|UPDATE|SHARE|KEY SHARE)(?: OF {_NAME}(?:, {_NAME})*)?"
    r"(?: NOWAIT| SKIP LOCKED)?\s*\Z"
)


class Residue(IntEnum):
    """The effects that a statement, or a transaction so far, leaves behind; the greater counts."""

    NOTHING = 0
    #: Locks on rows that it has read.
    ROW_LOCKS = 1
    #: Changed rows, settings, locks of other kinds, savepoints, or unknown effects.
    MORE = 2


@lru_cache(maxsize=1000)
def residue_of(query: Any) -> Residue:
    """Return what the statement leaves behind; in doubt ``MORE``."""
    if not isinstance(query, str) or query[:6].upper() != "SELECT":
        return Residue.MORE
    reading = _LOCKS.sub("", query)
    if _LEAVES_MORE.search(reading):
        return Residue.MORE
    if not all(word.upper() in _NO_FUNCTIONS for word in _WORDS.findall(reading)):
        return Residue.MORE
    return Residue.NOTHING if reading == query else Residue.ROW_LOCKS


def is_plain_select(query: Any) -> bool:
    """Return whether a statement only reads, and leaves nothing behind; False in doubt."""
    return residue_of(query) is Residue.NOTHING
