"""BEGIN before a statement and COMMIT after it, on one connection of psycopg.

This is the last step of the story in :mod:`optilock.unit.round_trips`. During a unit of work the
driver's connection is in its autocommit mode, so that psycopg sends no BEGIN of its own, for which
it would wait. Instead, the :class:`Line` puts BEGIN before the next statement whenever the server
is in no transaction, as psycopg does, and both go in one of psycopg's pipelines. The server's own
transaction status, which the driver keeps, decides that. So a rollback from anywhere is understood.

The last statements of the transaction are announced (:meth:`Line.end_with`, by :mod:`last_writes`):
they go in one pipeline with COMMIT after them. If one of them fails, the server skips COMMIT, and
the commands that undo the failure go before the next statement.

When the connection returns to its pool, on any path, it is as it was before.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from optilock.dialects.residue import AFTER_THE_END, Interposed, Residue, residue_of
from optilock.dialects.trips import NoteTrip
from optilock.errors import OptilockError

# PGTransactionStatusType and ConnStatusType of libpq
# (https://www.postgresql.org/docs/current/libpq-status.html).
IDLE, _IN_TRANSACTION, _IN_ERROR = 0, 2, 3
_OK = 0

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_PREPARED: Mapping[str, Any] = MappingProxyType({"prepare": True})
_SAVEPOINT = b"SAVEPOINT optilock_last"
_TO_SAVEPOINT = (
    b"ROLLBACK TO SAVEPOINT optilock_last",
    b"RELEASE SAVEPOINT optilock_last",
)


#: The method of a pipeline that reads the answers.
_FETCH = "_fetch_gen"


class _Together(deque[Callable[[], None]]):
    """The commands of a pipeline, sent together when the last one is added.

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


def _fetch_after_sync(fetch: Callable[..., Any], pgconn: Any, unsent: Any, *, flush: bool) -> Any:
    """Fetch what follows the last Sync, without psycopg's Flush if all was sent.

    A Flush stops ``idle_in_transaction_session_timeout`` of the server, and Sync has flushed. On a
    lost connection, Flush raises the error.
    """
    return fetch(flush=flush and (bool(unsent) or pgconn.status != _OK))


class Line:
    """One unit of work on one connection of the driver."""

    def __init__(
        self,
        driver: Any,
        level: str | None,
        limit: bytes | None,
        note_trip: NoteTrip,
    ) -> None:
        self.driver = driver
        #: The application's class of cursors.
        self.cursor = driver.cursor_factory
        #: The context of the pipeline that is open.
        self.context: Any = None
        #: A command that goes right before COMMIT; COMMIT is not carried out if it fails.
        self.before_commit: bytes | None = None
        #: COMMIT was sent, and its answer is unknown.
        self.unanswered = False
        #: COMMIT was carried out; no statement may follow it.
        self.stored = False
        self._pgconn = driver.pgconn
        self._pipeline: Any = None
        self._commands = _Together()
        self._level = level
        self._limit = limit
        #: The residue of all statements since BEGIN; at another level than READ COMMITTED there is
        #: also the snapshot.
        self._residue = Residue.NOTHING
        #: Commands before the next statement if the transaction has failed.
        self._undo: tuple[bytes, ...] = ()
        #: The number of last statements still to come; zero: the next one is not one of them.
        self._left = 0
        #: A parameter of each of the last statements, which identifies it.
        self._last: Sequence[str] = ()
        self._savepoint = False
        self._error: BaseException | None = None
        self._note_trip = note_trip
        #: When a trip to note began, by the clock, and by the process's time on its processors.
        self._began: tuple[float, float] | None = None

    # -- called by the cursors -------------------------------------------------------------------

    def is_sent_as_is(self, query: Any, params: Any = None) -> bool:
        """Return whether no command goes with the statement.

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
        if status == IDLE:
            if self.stored:
                raise OptilockError(AFTER_THE_END)
            self._residue = residue_of(query) if self.is_read_committed() else Residue.MORE
            return False
        if self._undo:
            return False
        if status == _IN_TRANSACTION and self._residue is not Residue.MORE:
            self._residue = max(self._residue, residue_of(query))
        return True

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of psycopg's ``execute``.

        psycopg treats a statement that it has counted, and then prepares in a pipeline, as prepared
        in any case. But after a miss the server skips the rest of the last statements.
        """
        return _PREPARED if self._left > 0 and len(self._last) > 1 else _NO_OPTIONS

    def begin_pipeline(self, context: Any, pipeline: Any) -> None:
        """Add the commands before the statement to the new pipeline."""
        self.context, self._pipeline = context, pipeline
        if self._pgconn.transaction_status == IDLE:
            self._began = time.perf_counter(), time.process_time()
        self._commands = pipeline.command_queue = _Together()
        for command in self.commands_before():
            self._add(command)

    def commands_before(self) -> Sequence[bytes]:
        """Return the commands before the next statement, once."""
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

    def fails_at_once(self, error: BaseException) -> bool:
        """Return whether an error is raised where it came, or only at the end of the pipeline.

        One that leaves the pipeline would be logged as a second error. No statement, and no COMMIT,
        follows it; the first one counts. One that is no ``Exception`` ends the pipeline without an
        answer: the connection is thrown away.
        """
        if self.context is None:
            self.stored = False
            return True
        self._left = 0
        if isinstance(error, Exception):
            if self._error is None:
                self._error = _first_of(error)
            return False
        self.context = self._pipeline = self._error = self._began = None
        self._commands.complete = True
        return True

    def completes_trip(self) -> bool:
        """Return whether the pipeline ends after this statement, with COMMIT after the last one."""
        if self._left > 1:
            self._left -= 1
            return False
        if self._left:
            self._left = 0
            if self.before_commit is not None:
                self._add(self.before_commit)
            self._add(b"COMMIT")
            self.unanswered = True
        self._commands.complete = True
        fetch = getattr(self._pipeline, _FETCH, None)
        if fetch is not None:
            after = partial(_fetch_after_sync, fetch, self._pgconn, self._commands)
            setattr(self._pipeline, _FETCH, after)
        return True

    def end_pipeline(self) -> None:
        """Read the state after the pipeline: the server has answered, if the connection lives.

        Raises:
            Exception: the first error of its statements.
        """
        self.context = self._pipeline = None
        error, self._error = self._error, None
        began, self._began = self._began, None
        if began is not None and error is None:
            self._note_trip(time.perf_counter() - began[0], time.process_time() - began[1])
        if self.unanswered and self._pgconn.status == _OK:
            status = self._pgconn.transaction_status
            # COMMIT was skipped in a transaction that failed. Otherwise COMMIT itself has failed.
            self.unanswered = status != _IN_ERROR and error is not None and _is_silent(error)
            self.stored = status == IDLE and error is None
        if error is not None:
            raise error

    def _add(self, command: bytes) -> None:
        # psycopg adds its own like this; a cursor for each would cost as much as the statement.
        self._commands.append(partial(self._pgconn.send_query_params, command, None))
        self._pipeline.result_queue.append(None)

    # -- called by the last writes ---------------------------------------------------------------

    def residue(self) -> Residue:
        """Return what the transaction would lose if it were ended and another one begun."""
        if self._pgconn.transaction_status == IDLE:
            return Residue.NOTHING if self.is_read_committed() else Residue.MORE
        return self._residue

    def has_spoken(self) -> bool:
        """Return whether the server has sent something unread, or hung up.

        Then COMMIT does not go with the last statements, because the error would be read only
        behind a COMMIT that was sent.
        """
        return has_spoken(self._pgconn)

    def end_with(self, parameters: Sequence[str], *, savepoint: bool) -> None:
        """Send COMMIT with the next statements, which have these parameters, one each.

        If one of them fails, the transaction is as it was before them (with a ``savepoint``), or
        another one begins.
        """
        self._last, self._left, self._savepoint = parameters, len(parameters), savepoint

    def undo(self) -> None:
        """Undo the last statements, which failed because a row has missed, or were cut short."""
        self._undo = _TO_SAVEPOINT if self._savepoint else (b"ROLLBACK", self._begin())
        self._residue = Residue.MORE if self._savepoint else Residue.NOTHING

    def cut_short(self) -> bool:
        """End the last statements after an error came before all of them were sent.

        Returns True if some were sent: then one more statement must end the pipeline.
        """
        self._left = 0
        return self.context is not None

    def over(self) -> None:
        """End the unit: later statements on the connection do not belong to it."""
        self.stored = False
        self._undo = ()

    # -- BEGIN -----------------------------------------------------------------------------------

    def _begin(self) -> bytes:
        driver = self.driver
        return _begin(driver.isolation_level, driver.read_only, driver.deferrable)

    def is_read_committed(self) -> bool:
        """Return whether each statement of the transaction sees what was committed before it."""
        level = self.driver.isolation_level
        return (self._level if level is None else _name(level)) == "READ COMMITTED"


def _carries(params: Any, name: str) -> bool:
    """Return whether the statement has the parameter; a listener's statement does not."""
    return isinstance(params, Mapping) and name in params


@lru_cache(maxsize=64)
def _begin(level: Any, read_only: bool | None, deferrable: bool | None) -> bytes:
    """Return BEGIN with the settings of the driver's connection."""
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


@cache
def has_pipelines() -> bool:
    """Return whether libpq has pipelines."""
    supported: bool = import_module("psycopg").Pipeline.is_supported()
    return supported


def has_spoken(pgconn: Any) -> bool:
    """Return whether there is something to read from the server."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([pgconn.socket], [], [], 0)[0])
    socket = select.poll()
    socket.register(pgconn.socket, select.POLLIN)
    return bool(socket.poll(0))


# -- errors --------------------------------------------------------------------------------------


def _first_of(error: BaseException) -> BaseException:
    """Return the error that caused psycopg's ``PipelineAborted`` of a later statement."""
    while type(error).__name__ == "PipelineAborted" and error.__context__ is not None:
        error = error.__context__
    return error


#: SQLSTATEs for an unknown outcome of COMMIT.
_UNKNOWN = frozenset({"40003", "08007"})


def _is_silent(error: BaseException) -> bool:
    """Return whether the outcome of COMMIT stays unknown, though the connection lives."""
    code = getattr(error, "sqlstate", None)
    return code is None or code in _UNKNOWN
