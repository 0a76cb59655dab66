"""The last writes of a pipelined unit go in one trip with COMMIT, over the :mod:`line`.

=========================================  ====================================  ================
the transaction so far                     form                                  if a row misses
=========================================  ====================================  ================
nothing but plain SELECTs, READ            statements that raise                 the server skips
COMMITTED                                  (``rows.py``), COMMIT                 COMMIT
the same, and SELECTs that lock; all rows  as above                              as above; none does
to be written are locked as they were read
anything else: earlier writes, locks,      SAVEPOINT, statements that raise,     back to the
``SET LOCAL``, another level               COMMIT                                savepoint
=========================================  ====================================  ================

A commit token (``exactly_once=``) goes between the writes and COMMIT, and promised rows are checked
before and after the writes, by statements that raise, too (READ COMMITTED only).

If a listener sends a statement of its own before one of these (``before_cursor_execute``), or may
send one after it, nothing goes with COMMIT, and the guard (:mod:`optilock._watched.guard.batch`)
sends the rows as usual.

After a miss the guard sends the rows once more, and learns which of them missed. Where another
transaction has begun, nothing of the first one was lost: it had only read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock._undocumented.connections import has_listeners_after_statements
from optilock.conditions.write import NO_CHECKS, Checks, Statement, Write
from optilock.dialects.postgresql.forms import raising_statement
from optilock.dialects.postgresql.line import Line
from optilock.dialects.postgresql.rows import BOUND, is_mark, sum_or_error
from optilock.dialects.residue import Interposed, Residue
from optilock.dialects.rows import execute_unguarded
from optilock.dialects.transaction_ends import ignore_ends, refuse_ended

#: A cancelled task waits for the last writes, and should not do so for ever: without another limit,
#: it waits ten seconds for each lock, or briefly, where the unit's writes do.
LOCK_TIMEOUT = (
    f"SELECT set_config('lock_timeout', '{BOUND}', true)"
    " WHERE current_setting('lock_timeout') = '0'"
).encode()


class LastWrites:
    """Sends the last writes of a unit with COMMIT.

    It is an :class:`~optilock._watched.session.record.Ending`.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._stored = False

    @property
    def unanswered(self) -> bool:
        """True if COMMIT was sent with the last writes, and its answer was lost."""
        return self._line.unanswered

    @property
    def stored(self) -> bool:
        """True once COMMIT was carried out: no statement may follow it."""
        return self._stored or self._line.stored

    @property
    def carries_checks(self) -> bool:
        return self._line.is_read_committed()

    def over(self) -> None:
        self._stored = self.stored
        self._line.over()

    def send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Any,
        added: Statement | None = None,
        *,
        locked: bool = False,
        checks: Checks = NO_CHECKS,
    ) -> Any:
        """Write these rows, of one table each, and commit; return None if nothing was written.

        Otherwise the row of the last statement, which shows the sum of one that is ``added`` to.

        After None the transaction goes on, or another one has begun: it had nothing to lose, or
        only its locks, where all rows are ``locked`` and so none should miss.
        """
        refuse_ended(connection)
        with ignore_ends(connection):
            return self._send(connection, together, database, added, locked, checks)

    def _send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Any,
        added: Statement | None,
        locked: bool,
        checks: Checks,
    ) -> Any:
        line = self._line
        if line.has_spoken() or has_listeners_after_statements(connection):
            return None
        if added is None:
            statements = _raising_statements(connection, together, database)
        else:
            statements = [(sum_or_error(together[0][0].shape, added[0]), added[1])]
        if statements is None:
            return None
        restarts = line.residue() <= (Residue.ROW_LOCKS if locked else Residue.NOTHING)
        statements = [*checks.before, *statements, *checks.after]
        return self._send_all(connection, statements, savepoint=not restarts)

    def _send_all(
        self, connection: Connection, statements: Sequence[Statement], *, savepoint: bool
    ) -> Any:
        line = self._line
        line.end_with([next(iter(params)) for _, params in statements], savepoint=savepoint)
        try:
            for statement, params in statements[:-1]:
                execute_unguarded(connection, statement, params).close()
            return execute_unguarded(connection, *statements[-1]).first()
        except DBAPIError as error:
            if error.orig is None or not is_mark(error.orig):
                raise
            line.undo()
            return None
        except Interposed:
            if line.cut_short():
                with _suppress_misses():
                    _end_pipeline(connection)
                line.undo()
            return None
        finally:
            if line.cut_short():  # a value that could not be sent, after others that were
                _end_pipeline(connection)


def _raising_statements(
    connection: Connection, together: Sequence[list[Write]], database: Any
) -> list[Statement] | None:
    """Return statements that raise an error on a miss; None if a row has no such statement."""
    statements: Any = [raising_statement(database, one, connection.dialect) for one in together]
    return None if None in statements else statements


def _end_pipeline(connection: Connection) -> None:
    connection.connection.cursor().execute("SELECT 1")


@contextmanager
def _suppress_misses() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_mark(error):
            raise
