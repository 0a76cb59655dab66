"""The last writes of a pipelined unit go in one trip with COMMIT, over the :mod:`line`.

=========================================  ====================================  ================
the transaction so far                     form                                  if a row misses
=========================================  ====================================  ================
nothing but plain SELECTs, READ            the UPDATE of SQLAlchemy, COMMIT      COMMIT of nothing
COMMITTED; one row
the same; one row, which is added to       UPDATE ... RETURNING, COMMIT          COMMIT of nothing
the same; several rows or tables           statements that raise                 the server skips
                                           (``rows.py``), COMMIT                 COMMIT
the same, and SELECTs that lock; all rows  as above                              as above; none does
to be written are locked as they were read
anything else: earlier writes, locks,      SAVEPOINT, statements that raise,     back to the
``SET LOCAL``, another level               COMMIT                                savepoint
=========================================  ====================================  ================

A commit token (``exactly_once=``) goes between the writes and COMMIT, and promised rows are checked
before and after the writes, by statements that raise, too (READ COMMITTED only). Then one row is
sent in the form that raises, and one that is added to is not sent with COMMIT: it has no such form.

If a listener sends a statement of its own before one of these (``before_cursor_execute``), nothing
goes with COMMIT, and the guard (:mod:`optilock._watched.guard.batch`) sends the rows as
usual.

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
from optilock.conditions.write import NO_CHECKS, Checks, SingleWrite, Statement, Write
from optilock.dialects.postgresql.forms import raising_statement
from optilock.dialects.postgresql.line import Line
from optilock.dialects.postgresql.rows import BOUND, is_mark
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

    def __init__(self, line: Line, *, careful: bool = False) -> None:
        self._line = line
        self._stored = False
        #: The unit has not asked for this by name: COMMIT follows only what a plain unit stores.
        self._careful = careful

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
        alone: SingleWrite | None = None,
        *,
        locked: bool = False,
        checks: Checks = NO_CHECKS,
    ) -> list[Write] | None:
        """Write these rows, of one table each, and commit; or else return those that missed.

        After None nothing was written, and the missing rows are unknown. In both cases the
        transaction goes on, or another one has begun. Then it had nothing to lose, or only its
        locks, where all rows are ``locked`` and so none should miss.
        """
        refuse_ended(connection)
        with ignore_ends(connection):
            return self._send(connection, together, database, alone, locked, checks)

    def _send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Any,
        alone: SingleWrite | None,
        locked: bool,
        checks: Checks,
    ) -> list[Write] | None:
        line = self._line
        if line.has_spoken() or (self._careful and has_listeners_after_statements(connection)):
            return None
        restarts = line.residue() <= (Residue.ROW_LOCKS if locked else Residue.NOTHING)
        lone = len(together) == 1 and len(together[0]) == 1
        # A row that matches nothing is no error, and what goes before COMMIT would be stored.
        is_bare = line.before_commit is None and checks is NO_CHECKS
        if restarts and lone and is_bare and not self._careful:
            try:
                return self._send_row(connection, together[0][0], alone)
            except Interposed:
                return None
        if alone is not None:
            return None
        statements = _raising_statements(connection, together, database)
        if statements is None:
            return None
        statements = [*checks.before, *statements, *checks.after]
        return [] if self._send_rows(connection, statements, savepoint=not restarts) else None

    def _send_row(
        self, connection: Connection, write: Write, alone: SingleWrite | None
    ) -> list[Write]:
        statement, params, written = alone or SingleWrite.of(write)
        self._line.end_with((write.shape.token.parameter,), savepoint=False)
        try:
            result = execute_unguarded(connection, statement, params)
        finally:
            self._line.cut_short()
        if written(result):
            return []
        self._line.go_on()
        return [write]

    def _send_rows(
        self, connection: Connection, statements: Sequence[Statement], *, savepoint: bool
    ) -> bool:
        line = self._line
        line.end_with([next(iter(params)) for _, params in statements], savepoint=savepoint)
        try:
            for statement, params in statements:
                execute_unguarded(connection, statement, params).close()
        except DBAPIError as error:
            if error.orig is None or not is_mark(error.orig):
                raise
            line.undo()
            return False
        except Interposed:
            if line.cut_short():
                with _suppress_misses():
                    _end_pipeline(connection)
                line.undo()
            return False
        finally:
            if line.cut_short():  # a value that could not be sent, after others that were
                _end_pipeline(connection)
        return True


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
