"""The transaction of a unit of work: its own, or a place in a running one.

All of it is sync and uses one sync ``Session``. :mod:`optilock.unit.units` and
:mod:`optilock.unit.async_unit` are the two ways to open and leave it.

Leaving has two steps. ``prepare`` flushes: if that fails, nothing is stored. ``complete`` sends
COMMIT, or rolls back, and closes. It must not be interrupted, because the outcome of a COMMIT that
was sent is known only by the database.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import Session

from optilock import events
from optilock.dialects import Database, database_of
from optilock.dialects.connections import error_that_ended, error_that_lost, roll_back_all
from optilock.dialects.transient import commit_outcome_unknown, ended_by_conflict
from optilock.errors import (
    CommitOutcomeUnknown,
    ConcurrencyError,
    ConfigurationError,
    OptilockError,
)
from optilock.serialize import without_handled
from optilock.undocumented.flushes import was_committed
from optilock.unit import running_units
from optilock.unit.next_attempt import NextAttempt
from optilock.unit.options import Options
from optilock.unit.round_trips import flush_inside_commit
from optilock.unit.sessions import (
    ReplacedSession,
    choose_engines,
    forget_engine_choice,
    with_options,
)
from optilock.watched.guard.ended_transactions import capture, conflict_after_rollback, guard_commit
from optilock.watched.guard.promises import check_before_commit
from optilock.watched.session.record import options as guard_options
from optilock.watched.session.record import record_of
from optilock.watched.writes.send import require_row_counts

_log = logging.getLogger("optilock")


class Transaction(Protocol):
    """The transaction that a unit of work opens and leaves."""

    def begin(self) -> None: ...
    def prepare(self) -> None: ...
    def complete(self, error: BaseException | None) -> None: ...


class OwnTransaction:
    """A session and a transaction that begin and end with the unit."""

    def __init__(
        self,
        session: Session,
        public: Any,
        options: Options,
        next_attempt: NextAttempt | None = None,
    ) -> None:
        self.session = session
        #: The state between this attempt, the one before and the next one.
        self.next_attempt = next_attempt
        #: The session that the program gets: ``session``, or the AsyncSession in front of it.
        self.public = public
        self.options = options
        self.parts = options.all_parts
        self.doomed_by: BaseException | None = None
        #: The database's error with which a savepoint could not be undone.
        self.broken_by: BaseException | None = None
        #: The session of a scope, which this unit's session replaces.
        self.replaced: ReplacedSession | None = None
        self.connections: list[Connection] = []
        #: Those of them on which an error may end the transaction.
        self._may_end: list[Connection] = []
        self._leaving = self._committing = self._open = False
        self.routes: dict[Engine, Engine] = {}

    # -- opening and leaving -----------------------------------------------------------------------

    def begin(self) -> None:
        # An async unit ends in another task, where no attempt runs.
        self._attempt = attempt = running_units.current_attempt()
        self._attempts = 1 if attempt is None else attempt.number
        self._started = time.monotonic() if attempt is None else attempt.started
        asked = self.options
        if asked.on_conflict is not None or asked.on_delete is not None or asked.strict:
            guard_options(
                self.session,
                on_conflict=asked.on_conflict,
                on_delete=asked.on_delete,
                strict=asked.strict,
            )
        if self.parts:
            for part in self.parts:
                part.begin(self.session)
            if self.options.chooses_engines:
                choose_engines(self.session, self.route)
        record_of(self.session).owner = self
        # SQLAlchemy refuses to go on after a commit inside its own ``with`` block.
        self._transaction = self.session.begin()
        guard_commit(self._transaction)
        self._transaction.__enter__()
        if self.next_attempt is not None and self.next_attempt.is_due:
            self._go_on_with(self.next_attempt)

    def prepare(self) -> None:
        """Check and flush all that comes before COMMIT.

        Raises:
            OptilockError: an inner unit failed, or the database has ended the transaction.
            ConfigurationError: objects of the scope's other session were changed inside.
            ConcurrencyError: the flush met a conflict.
        """
        if self.doomed_by is not None:
            self._refuse_because_of(self.doomed_by)
        if self.replaced is not None:
            self.replaced.refuse_changes()
        self._open = self.session.in_transaction()
        if not self._open:
            return
        for part in self.parts:
            part.before_flush(self.session)
        if self._may_end:
            self._refuse_if_ended()
        if flush_inside_commit(self.session, self.parts):
            return
        self.session.flush()
        for part in self.parts:
            part.before_commit(self.session)
        if record_of(self.session).promises:
            check_before_commit(self.session)

    def complete(self, error: BaseException | None) -> None:
        """Send COMMIT without an ``error``, or roll back; close in any case.

        Raises:
            CommitOutcomeUnknown: the connection was lost inside COMMIT.
            ConcurrencyError: another transaction's change ended this one.
        """
        try:
            if error is None:
                self._commit()
            elif self.next_attempt is None or not self.next_attempt.keep_transaction(self, error):
                self._give_up(error)
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                self._close(error)
            except BaseException as raised:
                if error is None and self._open:
                    self._note_stored(raised)
                raise

    def _go_on_with(self, next_attempt: NextAttempt) -> None:
        try:
            next_attempt.hand_over(self)
        except BaseException as error:
            self._roll_back(error)
            self._close(error)
            raise

    def doom(self, error: BaseException) -> None:
        """Refuse to commit from here on, because of ``error``; the first one counts."""
        if self.doomed_by is None:
            self.doomed_by = error

    # -- called by the session --------------------------------------------------------------------

    def route(self, bind: Engine | Connection) -> Engine | Connection:
        """Return the engine with the execution options of the parts; the same one each time."""
        if isinstance(bind, Connection) or bind in self.routes.values():
            return bind
        if bind not in self.routes:
            wanted = {k: v for part in self.parts for k, v in part.engine_options(bind).items()}
            self.routes[bind] = with_options(bind, wanted) if wanted else bind
        return self.routes[bind]

    @property
    def read_only(self) -> bool:
        return self.options.read_only

    @property
    def hurries(self) -> bool:
        return self.next_attempt is not None and self.next_attempt.waits_briefly(
            self.session, self._attempts
        )

    def connected(self, connection: Connection, database: Database) -> None:
        self.connections.append(connection)
        if database.errors_end:
            self._may_end.append(connection)
        try:
            if not connection.dialect.supports_sane_rowcount:
                require_row_counts(connection.dialect)
            if not self.options.short:
                self._refuse_autocommit(connection)
            database.begin_savepoints(connection)
            for part in self.parts:
                part.connected(self.session, connection)
            self._refuse_autocommit(connection)
        except ConfigurationError as error:
            self.doom(error)
            raise

    def _refuse_autocommit(self, connection: Connection) -> None:
        if connection in record_of(self.session).autocommitting:
            raise ConfigurationError(_AUTOCOMMIT)

    def committing_now(self) -> None:
        """Note that COMMIT is sent next.

        Raises:
            ConfigurationError: the body of the unit calls ``commit()``.
        """
        if not self._leaving:
            raise ConfigurationError(_COMMITTED_INSIDE)
        self._committing = True

    # -- the end -----------------------------------------------------------------------------------

    def _commit(self) -> None:
        if not self._open:
            return
        self._leaving = True
        try:
            self.session.commit()
        except BaseException as error:
            self._give_up(error)
            raise
        events.emit(self._committed)

    def _committed(self) -> events.Committed:
        return events.Committed(self._attempts, time.monotonic() - self._started)

    def _give_up(self, error: BaseException) -> None:
        """Roll back, and raise the meaning of ``error`` where it is more than its text."""
        if self._committing and self._is_stored():
            return self._leave_stored(error)
        ended_inside = not self.session.in_transaction() and _is_of_closed_transaction(error)
        conflict = ended_by_conflict(error, at_commit=self._committing)
        ended = self._ended_by() if isinstance(error, PendingRollbackError) else None
        if conflict:
            capture(self.session)
        if self._committing:
            roll_back_all(self.connections)
        self._roll_back(error)
        if self._committing:
            self._explain_commit(error)
        if isinstance(error, InvalidRequestError):  # SQLAlchemy has refused a later call
            self._explain_refusal(error, ended=ended, ended_inside=ended_inside)
        if conflict and isinstance(error, DBAPIError):
            raise conflict_after_rollback(self.session, error) from error

    def _explain_refusal(
        self, error: BaseException, *, ended: BaseException | None, ended_inside: bool
    ) -> None:
        """Raise the reason why SQLAlchemy refused a call in this transaction, if it is known."""
        self._raise_what_broke()
        if ended is not None:
            raise OptilockError(f"{_ENDED}.") from ended
        if ended_inside:
            raise ConfigurationError(_ENDED_INSIDE) from error

    def _is_stored(self) -> bool:
        if was_committed(self._transaction):
            return True
        ending = record_of(self.session).ending
        return ending is not None and ending.stored and len(self.connections) == 1

    def _leave_stored(self, error: BaseException) -> None:
        """End after a listener to COMMIT has failed; another attempt would store the unit twice."""
        self._roll_back(error)
        self._note_stored(error)
        events.emit(self._committed)

    def _note_stored(self, error: BaseException) -> None:
        error.add_note("optilock: this came after COMMIT; the unit is stored, and is not run again")
        if self._attempt is not None:
            self._attempt.stored = True

    def _explain_commit(self, error: BaseException) -> None:
        """Raise or note that the outcome of COMMIT is unknown, if it is."""
        ending = record_of(self.session).ending
        if ending is not None and ending.unanswered and isinstance(error, Exception):
            raise CommitOutcomeUnknown(_UNKNOWN_WITH_WRITES) from error
        if self.options.read_only:
            return
        if not isinstance(error, Exception):
            error.add_note("optilock: interrupted inside COMMIT; the work may be stored or not")
        elif commit_outcome_unknown(error):
            raise CommitOutcomeUnknown(_UNKNOWN) from error
        elif len(self.connections) > 1 and not self.session.twophase and _from_database(error):
            raise CommitOutcomeUnknown(_HALF) from error

    def _roll_back(self, error: BaseException) -> None:
        """End the transaction; a rollback that fails never hides ``error``."""
        try:
            self._transaction.__exit__(type(error), error, None)
        except Exception as broken:
            what = "rolling back failed; the connection is thrown away"
            _log.warning(what, exc_info=without_handled(broken, error))
            self.session.invalidate()

    def _close(self, error: BaseException | None) -> None:
        try:
            if self.next_attempt is not None and error is not None:
                self.next_attempt.remember(self.session, error)
            for part in self.parts:
                part.after(self.session, error)
        finally:
            if self.replaced is not None:
                self.replaced.release()
            record_of(self.session).owner = None
            if self.options.chooses_engines:
                forget_engine_choice(self.session)
            self._transaction.__exit__(OptilockError, None, None)
            self.session.close()

    # -- refusals ----------------------------------------------------------------------------------

    def _refuse_because_of(self, error: BaseException) -> None:
        self._raise_what_broke()
        if isinstance(error, ConfigurationError):
            raise error
        raise OptilockError(
            "this unit of work is rolled back: an inner unit that had joined it failed, and its"
            " error was caught outside of it. Let the error out, catch it inside the inner unit,"
            " or give the inner unit savepoint=True, so that only its own work is undone."
        ) from error

    def _raise_what_broke(self) -> None:
        """Raise the first error after which nothing could be done, though the program caught it."""
        for connection in self._may_end:
            error = error_that_lost(connection)
            if error is not None:
                raise error
        if self.broken_by is not None:
            raise self.broken_by

    def _ended_by(self) -> BaseException | None:
        """Return the error with which the database ended the transaction."""
        for connection in self._may_end:
            error = error_that_ended(connection)
            if error is not None:
                return error
        return None

    def _refuse_if_ended(self) -> None:
        self._raise_what_broke()
        error = self._ended_by()
        if error is not None:
            raise OptilockError(f"{_ENDED}.") from error
        for connection in self._may_end:
            if connection.invalidated or connection.closed:
                continue
            if database_of(connection.dialect).transaction_failed(connection):
                raise OptilockError(
                    f"{_ENDED}, or try the statement in a savepoint (session.begin_nested())."
                )


def _is_of_closed_transaction(error: BaseException) -> bool:
    """Return whether SQLAlchemy refused work after the end of a session's ``with`` block."""
    return type(error) is InvalidRequestError and "closed transaction" in str(error)


def _from_database(error: BaseException) -> bool:
    seen = error.__cause__ if isinstance(error, ConcurrencyError) else error
    return isinstance(seen, DBAPIError)


_COMMITTED_INSIDE = (
    "session.commit() inside of a unit of work: the unit commits when its block is left, and what"
    " comes after this call would not be stored together with what came before it. Leave commit()"
    " out; use session.flush() to write what is pending, or UnitOfWork(..., independent=True) for"
    " work that is to be stored on its own. Nothing was committed."
)
_ENDED_INSIDE = (
    "this unit of work went on after session.rollback() or session.close() inside of it: its"
    " transaction was over, and nothing of it is stored. Leave the block with an error to undo the"
    " unit, or put what may be undone alone into session.begin_nested()."
)
_AUTOCOMMIT = (
    "this engine runs in AUTOCOMMIT mode: every statement is stored at once, and a unit of work"
    " could not take anything back. Give the unit an engine without"
    ' isolation_level="AUTOCOMMIT".'
)
_ENDED = (
    "this unit of work cannot be committed: the database ended its transaction with an error at an"
    " earlier statement, and that error was caught inside the unit. Let it out, so that the unit"
    " runs again"
)
_UNKNOWN = (
    "the connection was lost inside COMMIT, so this unit of work is either stored completely or"
    " not at all, and its outcome is unknown here. Read the rows again and compare before you run"
    " it once more; make the work safe to repeat if that matters."
)
_UNKNOWN_WITH_WRITES = (
    "the connection was lost at the last writes of this unit of work, which commit in the same trip"
    " (pipelined=True, short=True), so the unit is either stored completely or not at all, and its"
    " outcome is unknown here. Read the rows again and compare before you run it once more; make"
    " the work safe to repeat if that matters."
)
_HALF = (
    "COMMIT failed on one of several databases of this unit of work, and another one may have"
    " committed already. Compare the rows on each; use sessionmaker(twophase=True) where the"
    " databases support it."
)
