"""The last writes of a unit of work go in one trip with COMMIT, over the :mod:`line`.

=========================================  ====================================  ================
the transaction so far                     form                                  if a row misses
=========================================  ====================================  ================
nothing but plain SELECTs, READ            the UPDATE of SQLAlchemy, COMMIT      COMMIT of nothing
COMMITTED; one row
the same; one row, which is added to       UPDATE ... RETURNING, COMMIT          COMMIT of nothing
the same; several rows or tables           statements that raise                 the server skips
                                           (:mod:`raising`), COMMIT              COMMIT
the same, and SELECTs that lock; all rows  as above                              as above; none does
to be written are locked as they were read
anything else: earlier writes, locks,      SAVEPOINT, statements that raise,     back to the
``SET LOCAL``, another level               COMMIT                                savepoint
=========================================  ====================================  ================

Where a listener sends a statement of its own before one of these (``before_cursor_execute``),
nothing goes with COMMIT: the guard sends the rows as ever.

After a miss the guard sends the rows once more, and learns which ones they are. Where the
transaction has begun anew, nothing of it was lost: it had read, and that was all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock.conditions.write import Alone, Write
from optilock.dialects.postgresql.few_rows import one_by_one
from optilock.dialects.postgresql.line import Line
from optilock.dialects.postgresql.sets import is_mark
from optilock.dialects.rows import native
from optilock.dialects.switch import Interposed, Leaves

Statement = tuple[Any, Any]

#: A task that is cancelled waits for the last writes, and should not do so for ever: where nobody
#: has set another limit, it is ten seconds for each lock.
LOCK_TIMEOUT = (
    b"SELECT set_config('lock_timeout', '10s', true) WHERE current_setting('lock_timeout') = '0'"
)


class LastWrites:
    """Sends the last writes of a unit's transaction."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._stored = False

    @property
    def unanswered(self) -> bool:
        """Was COMMIT sent with the last writes, and lost with its answer?"""
        return self._line.unanswered

    @property
    def stored(self) -> bool:
        """Was COMMIT carried out, so that nothing may come after it?"""
        return self._stored or self._line.stored

    def over(self) -> None:
        self._stored = self.stored
        self._line.over()

    def send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Any,
        alone: Alone | None = None,
        *,
        locked: bool = False,
    ) -> list[Write] | None:
        """Write these rows, of one table each, and commit; or else return those that missed.

        None: nothing was written, and nobody knows which rows miss. In both cases the transaction
        goes on, or has begun anew. It has nothing to lose then; or its locks, where all rows are
        ``locked`` and so none should miss.
        """
        line = self._line
        if line.has_spoken():
            return None
        anew = line.left_behind() <= (Leaves.ROW_LOCKS if locked else Leaves.NOTHING)
        if anew and len(together) == 1 and len(together[0]) == 1:
            try:
                return self._one_row(connection, together[0][0], alone)
            except Interposed:
                return None
        if alone is not None:
            return None
        parts = [part for writes in together for part in one_by_one(writes, locked=locked)]
        statements = [database.all_or_error(writes, connection.dialect) for writes in parts]
        if None in statements:
            return None
        return [] if self._all(connection, statements, savepoint=not anew) else None

    def _one_row(self, connection: Connection, write: Write, alone: Alone | None) -> list[Write]:
        statement, params, written = alone or Alone.of(write)
        self._line.end_with((write.shape.token.parameter,), savepoint=False)
        try:
            result = native(connection, statement, params)
        finally:
            self._line.cut_short()
        if written(result):
            return []
        self._line.go_on()
        return [write]

    def _all(
        self, connection: Connection, statements: Sequence[Statement], *, savepoint: bool
    ) -> bool:
        line = self._line
        line.end_with([next(iter(params)) for _, params in statements], savepoint=savepoint)
        try:
            for statement, params in statements:
                native(connection, statement, params).close()
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


def _end_pipeline(connection: Connection) -> None:
    connection.connection.cursor().execute("SELECT 1")


@contextmanager
def _suppress_misses() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_mark(error):
            raise
