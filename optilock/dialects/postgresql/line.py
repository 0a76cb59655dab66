"""What goes with a statement, on one connection of psycopg: BEGIN before it, COMMIT after it.

For the length of a unit of work the driver's connection is in its autocommit mode, so that psycopg
sends no BEGIN of its own, for which it would wait. In its place the :class:`Line` puts BEGIN before
the next statement wherever the server is in no transaction, as psycopg does, and both go in one of
psycopg's pipelines. Whoever rolls the driver's connection back need not tell the line: the server's
own word, which the driver keeps, is what counts.

The last statements of the transaction are announced (:meth:`Line.end_with`): they go in one
pipeline with COMMIT after them. If one of them fails, the server skips COMMIT, and what undoes the
failure goes before the next statement.

When the connection goes back to its pool, whatever path it takes, it is as it was before.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

from sqlalchemy import Dialect, event
from sqlalchemy.engine.cursor import CursorFetchStrategy

from optilock.dialects.switch import AFTER_THE_END, Interposed, Leaves, is_plain, left_by
from optilock.errors import OptilockError
from optilock.mapped import DESCRIBED_ONCE

__all__ = ["describe_once"]

# PGTransactionStatusType and ConnStatusType of libpq
# (https://www.postgresql.org/docs/current/libpq-status.html).
IDLE, _IN_TRANSACTION, _IN_ERROR = 0, 2, 3
_OK = 0

_AS_EVER: Mapping[str, Any] = MappingProxyType({})
_PREPARED: Mapping[str, Any] = MappingProxyType({"prepare": True})
_SAVEPOINT = b"SAVEPOINT optilock_last"
_TO_SAVEPOINT = (
    b"ROLLBACK TO SAVEPOINT optilock_last",
    b"RELEASE SAVEPOINT optilock_last",
)


class _Together(deque[Callable[[], None]]):
    """The commands of a pipeline, sent when the last one is there.

    psycopg would wait before each until the socket takes it, and send it as a packet of its own.
    """

    complete = False

    def __bool__(self) -> bool:
        return self.complete and len(self) > 0

    def popleft(self) -> Callable[[], None]:
        commands = tuple(self)
        self.clear()

        def send() -> None:
            for command in commands:
                command()

        return send


class Line:
    """One unit of work on one connection of the driver."""

    def __init__(
        self, driver: Any, level: str | None, limit: bytes | None, *, short: bool = False
    ) -> None:
        self.driver = driver
        #: The application's class of cursors.
        self.cursor = driver.cursor_factory
        #: The context of the pipeline that is open.
        self.context: Any = None
        #: No transaction begins as long as nothing needs one.
        self._short = short
        #: A parameter of the statement that may go through without a transaction.
        self._through: str | None = None
        #: COMMIT was sent, and nobody knows its answer.
        self.unanswered = False
        #: COMMIT was sent and carried out; nothing may come after it.
        self.stored = False
        self._pgconn = driver.pgconn
        self._pipeline: Any = None
        self._commands = _Together()
        self._level = level
        self._limit = limit
        #: What was sent since BEGIN leaves so much behind; at another level than READ COMMITTED
        #: there is also the snapshot.
        self._leaves = Leaves.NOTHING
        #: What goes before the next statement if the transaction has failed.
        self._undo: tuple[bytes, ...] = ()
        #: How many statements are still to come of the last ones; zero: these are not the last.
        self._left = 0
        #: A parameter of each of the last ones, by which it is known.
        self._last: Sequence[str] = ()
        self._savepoint = False
        self._error: BaseException | None = None

    # -- what the cursors ask --------------------------------------------------------------------

    def goes_alone(self, query: Any, params: Any = None) -> bool:
        """Does nothing go with the statement?

        Raises:
            OptilockError: COMMIT was carried out.
            Interposed: another statement was announced.
        """
        if self._left:
            if not _carries(params, self._last[-self._left]):
                self._left = 0
                raise Interposed
            return False
        if self.context is not None:
            return False
        status = self._pgconn.transaction_status
        if self._short and status == IDLE and not self._needs_transaction(query, params):
            return True
        if status == _IN_TRANSACTION and not self._undo:
            if self._leaves is not Leaves.MORE:
                self._leaves = max(self._leaves, left_by(query))
            return True
        if status == IDLE:
            if self.stored:
                raise OptilockError(AFTER_THE_END)
            self._leaves = left_by(query) if self._is_read_committed() else Leaves.MORE
            return False
        return not self._undo

    @property
    def options(self) -> Mapping[str, Any]:
        """How psycopg is to execute the statement.

        One that it has counted, and then prepares in a pipeline, it takes for prepared whatever
        becomes of it. Of the last ones, the server skips those that come after a miss.
        """
        return _PREPARED if self._left > 0 and len(self._last) > 1 else _AS_EVER

    def _needs_transaction(self, query: Any, params: Any) -> bool:
        if self.stored:
            raise OptilockError(AFTER_THE_END)
        announced, self._through = self._through, None
        if announced is not None:
            if not _carries(params, announced):
                raise Interposed
            self.stored = True
        elif not is_plain(query):
            self.begin()
        return self.begun

    def entered(self, context: Any, pipeline: Any) -> None:
        """The pipeline is open: what goes before the statement goes first."""
        self.context, self._pipeline = context, pipeline
        self._commands = pipeline.command_queue = _Together()
        for command in self.commands_before():
            self._add(command)

    def commands_before(self) -> Sequence[bytes]:
        """What goes before the next statement, and then not again."""
        commands: list[bytes] = []
        status = self._pgconn.transaction_status
        if status == IDLE:
            commands.append(self._begin())
        else:
            commands += self._undo
        self._undo = ()
        if self._left:
            if self._limit is not None:
                commands.append(self._limit)
            if self._savepoint:
                commands.append(_SAVEPOINT)
        return commands

    def failed(self, error: BaseException) -> None:
        """The first error counts; no statement, and no COMMIT, is to follow it."""
        if self._error is None:
            self._error = _first_of(error)
        self._left = 0

    def is_complete(self) -> bool:
        """Was this the statement after which the pipeline ends? Then COMMIT is added, if any."""
        if self._left > 1:
            self._left -= 1
            return False
        if self._left:
            self._left = 0
            self._add(b"COMMIT")
            self.unanswered = True
        self._commands.complete = True
        return True

    def left(self) -> None:
        """The pipeline is over, and the server has answered, if the connection lives.

        Raises:
            Exception: the first error of its statements.
        """
        self.context = self._pipeline = None
        error, self._error = self._error, None
        if self.unanswered and self._pgconn.status == _OK:
            status = self._pgconn.transaction_status
            # In a transaction that failed, it was skipped. Otherwise it is what has failed.
            self.unanswered = status != _IN_ERROR and error is not None and _is_silent(error)
            self.stored = status == IDLE and error is None
        if error is not None:
            raise error

    def interrupted(self) -> None:
        """Neither an answer nor an error: the connection is thrown away."""
        self.context = self._pipeline = self._error = None
        self._commands.complete = True
        self._left = 0

    def _add(self, command: bytes) -> None:
        # As psycopg itself adds them: a cursor for each would cost as much as the statement.
        self._commands.append(partial(self._pgconn.send_query_params, command, None))
        self._pipeline.result_queue.append(None)

    # -- what a short unit asks --------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Is there a transaction, or one that begins with the next statement?"""
        return not self._short

    def begin(self) -> None:
        """A transaction begins with the next statement."""
        self._short = self.stored = False

    def let_through(self, statement: Any, parameter: str) -> None:
        """This statement is the write of the unit, and commits itself."""
        self._through = parameter

    def carried_out(self) -> bool:
        return self.stored

    # -- what the last writes ask ----------------------------------------------------------------

    def left_behind(self) -> Leaves:
        """What would be lost if the transaction were ended and begun anew?"""
        if self._pgconn.transaction_status == IDLE:
            return Leaves.NOTHING if self._is_read_committed() else Leaves.MORE
        return self._leaves

    def has_spoken(self) -> bool:
        """Has the server said something that nobody has read, or hung up?

        Then a transaction is not ended along with its last statements: what is wrong would be
        found no earlier than behind the COMMIT that was sent.
        """
        return has_spoken(self._pgconn)

    def end_with(self, parameters: Sequence[str], *, savepoint: bool) -> None:
        """COMMIT goes with the next statements, which have these parameters, one each.

        If one of them fails, the transaction is as it was before them (with a ``savepoint``), or
        another one that has begun anew.
        """
        self._last, self._left, self._savepoint = parameters, len(parameters), savepoint

    def undo(self) -> None:
        """The last statements failed, as they should where a row has missed, or were cut short."""
        self._undo = _TO_SAVEPOINT if self._savepoint else (b"ROLLBACK", self._begin())
        self._leaves = Leaves.MORE if self._savepoint else Leaves.NOTHING

    def cut_short(self) -> bool:
        """An error came before all of the last statements were sent.

        True if some were: then one more has to be sent, with which the pipeline ends.
        """
        self._left = 0
        return self.context is not None

    def go_on(self) -> None:
        """COMMIT was carried out and has stored nothing: another transaction begins."""
        self.stored = False

    def over(self) -> None:
        """The unit has ended: who uses the connection from here on does not belong to it."""
        self.stored = False
        self._undo = ()

    # -- BEGIN -----------------------------------------------------------------------------------

    def _begin(self) -> bytes:
        driver = self.driver
        return _begin(driver.isolation_level, driver.read_only, driver.deferrable)

    def _is_read_committed(self) -> bool:
        level = self.driver.isolation_level
        return (self._level if level is None else _name(level)) == "READ COMMITTED"


def _carries(params: Any, name: str) -> bool:
    """Is the parameter among those of the statement? A listener's own has others, or none."""
    return isinstance(params, Mapping) and name in params


@lru_cache(maxsize=64)
def _begin(level: Any, read_only: bool | None, deferrable: bool | None) -> bytes:
    """BEGIN with what was set on the driver's connection."""
    words = ["BEGIN"]
    if level is not None:
        words.append(f"ISOLATION LEVEL {_name(level)}")
    if read_only is not None:
        words.append("READ ONLY" if read_only else "READ WRITE")
    if deferrable is not None:
        words.append("DEFERRABLE" if deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()


def _name(level: Any) -> str:
    name: str = level.name
    return name.replace("_", " ")


def has_spoken(pgconn: Any) -> bool:
    """Is there something to be read from the server?"""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([pgconn.socket], [], [], 0)[0])
    socket = select.poll()
    socket.register(pgconn.socket, select.POLLIN)
    return bool(socket.poll(0))


# -- errors --------------------------------------------------------------------------------------


def _first_of(error: BaseException) -> BaseException:
    """The error for which psycopg says of a later statement that its pipeline was aborted."""
    while type(error).__name__ == "PipelineAborted" and error.__context__ is not None:
        error = error.__context__
    return error


#: The database itself does not know what became of COMMIT (40003, 08007).
_UNKNOWN = frozenset({"40003", "08007"})


def _is_silent(error: BaseException) -> bool:
    """Does the error leave open whether COMMIT was carried out, though the connection lives?"""
    code = getattr(error, "sqlstate", None)
    return code is None or code in _UNKNOWN


# -- the columns of a result, described once for each of optilock's own queries --------------------
#
# SQLAlchemy asks the cursor for its ``description`` after every SELECT, for which psycopg makes
# an object for each column: a twentieth of what a short unit costs. It needs it for the first
# result of a query alone, and later takes the columns from what it has compiled. So the
# description is kept there as well.

#: An attribute of what SQLAlchemy has compiled: how its results are fetched.
_FETCHED = "_optilock_fetched"
_listening: WeakSet[Dialect] = WeakSet()


def describe_once(dialect: Dialect) -> None:
    """From here on, this engine's results of optilock's own queries are described once."""
    if dialect.driver == "psycopg" and dialect not in _listening:
        event.listen(dialect, "do_execute", _do_execute)
        _listening.add(dialect)


class _Described(CursorFetchStrategy):
    """As SQLAlchemy fetches rows; the description is that of the first result."""

    __slots__ = ("_columns", "_first")

    def __init__(self, cursor: Any, compiled: Any) -> None:
        self._columns: Sequence[Any] = ()
        self._first = cursor, compiled

    @property
    def alternate_cursor_description(self) -> Sequence[Any]:  # type: ignore[override]
        """Asked for after a statement was executed; from the first time on, it is kept."""
        if not self._columns:
            cursor, compiled = self._first
            self._columns, self._first = [tuple(one) for one in cursor.description], (None, None)
            setattr(compiled, _FETCHED, self)
        return self._columns


def _do_execute(cursor: Any, statement: str, params: Any, context: Any) -> None:
    """It leaves the execution to SQLAlchemy, and to other listeners."""
    if context is not None and DESCRIBED_ONCE in context.execution_options:
        compiled = context.compiled
        fetched = getattr(compiled, _FETCHED, None)
        context.cursor_fetch_strategy = fetched or _Described(cursor, compiled)
