"""From statements that commit themselves into a transaction, on one connection, and once.

For the length of a short unit of work (:mod:`optilock.unit.short`) the driver is in its autocommit
mode. Plain SELECTs go through, and one statement that is announced. Before anything else the mode
is left: a transaction begins, and what follows belongs to it.

This one hears of every statement of SQLAlchemy's connection. psycopg's cursors know more, and
bring BEGIN along with the statement: there the switch is a
:class:`~optilock.dialects.postgresql.line.Line`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import Connection, event

from optilock.dialects.base import Switch
from optilock.dialects.connections import undo_with
from optilock.dialects.locks import BEGINS
from optilock.errors import OptilockError
from optilock.undocumented.statements import is_server_side

__all__ = ["AFTER_THE_END", "Interposed", "open_switch"]


class Interposed(Exception):
    """A listener sends a statement of its own before one that was announced. Neither was sent.

    Who has announced it catches this, and sends it with the rest of the transaction.
    """

    def __init__(self) -> None:
        super().__init__(
            "a listener sent a statement of its own before the last write of a unit of work, which"
            " is then sent without COMMIT; nothing is lost."
        )


class _ByEvents:
    def __init__(
        self, connection: Connection, leave: Callable[[], None], streams_begin: bool
    ) -> None:
        self.stored = self.begun = False
        self._through: Any = None
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
        announced, self._through = self._through, None
        if announced is not None:
            if context.invoked_statement is not announced:
                raise Interposed
            self.stored, self._cursor = True, cursor
        elif not is_plain(statement) or (self._streams_begin and is_server_side(context)):
            self.begin()

    def begin(self) -> None:
        self.begun, self.stored = True, False
        self._leave()

    def let_through(self, statement: Any, parameter: str) -> None:
        self._through = statement

    def carried_out(self) -> bool:
        return self.stored and bool(self._cursor.rowcount > 0)

    def has_spoken(self) -> bool:
        return False


def open_switch(
    connection: Connection, leave: Callable[[], None], *, streams_begin: bool = False
) -> Switch:
    """The switch of a connection in autocommit mode, which ``leave`` takes it out of.

    ``streams_begin``: the database has cursors in a transaction only.
    """
    connection.info[BEGINS] = switch = _ByEvents(connection, leave, streams_begin)
    undo_with(connection, partial(_forget, connection.info))
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

#: Words that may stand before a parenthesis; any other one is taken for a function.
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


class Leaves(IntEnum):
    """What a statement, or a transaction so far, leaves behind; the greater counts."""

    NOTHING = 0
    #: Locks on rows that it has read.
    ROW_LOCKS = 1
    #: Changed rows, settings, locks of other kinds, savepoints; or nobody knows.
    MORE = 2


@lru_cache(maxsize=1000)
def left_by(query: Any) -> Leaves:
    """What does the statement leave behind?"""
    if not isinstance(query, str) or query[:6].upper() != "SELECT":
        return Leaves.MORE
    reading = _LOCKS.sub("", query)
    if _LEAVES_MORE.search(reading):
        return Leaves.MORE
    if not all(word.upper() in _NO_FUNCTIONS for word in _WORDS.findall(reading)):
        return Leaves.MORE
    return Leaves.NOTHING if reading == query else Leaves.ROW_LOCKS


def is_plain(query: Any) -> bool:
    """Does a statement only read, and leave nothing behind? If in doubt, it does not."""
    return left_by(query) is Leaves.NOTHING
