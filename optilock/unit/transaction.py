"""The transaction of a unit of work, where the unit has joined no running one.

All of it is sync and uses one sync ``Session``. :mod:`optilock.unit.units` and
:mod:`optilock.unit.async_unit` are the two ways to open and leave it.

Leaving has two steps. ``prepare`` flushes: if that fails, nothing is stored. ``complete`` sends
COMMIT, or rolls back, and closes. It must not be interrupted, because the outcome of a COMMIT that
was sent is known only by the database.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session

from optilock import events
from optilock._undocumented.flushes import begin_never_again, was_committed
from optilock._watched.guard.ended_transactions import (
    capture,
    conflict_after_rollback,
    guard_commit,
)
from optilock._watched.guard.promises import check_before_commit, flush_last
from optilock._watched.rows.rolled_back import restore_values, values_of
from optilock._watched.scopes.transaction import end_scopes, has_scopes_to_end
from optilock._watched.session.commit_events import WrittenRows, rows_to_publish
from optilock._watched.session.record import options as guard_options
from optilock._watched.session.record import record_of
from optilock._watched.writes.send import require_row_counts
from optilock.dialects import Database
from optilock.dialects.connections import error_that_lost, roll_back_all
from optilock.dialects.transient import ended_by_conflict
from optilock.errors import ConfigurationError, OptilockError, SelfDeadlock
from optilock.exactly_once.hooks import Hook
from optilock.exactly_once.keys import KeyedCall
from optilock.exactly_once.units import TokenOfUnit
from optilock.serialize import without_handled
from optilock.unit import parts as parts_of_every_unit
from optilock.unit import running_units
from optilock.unit.failures import note_failure
from optilock.unit.next_attempt import NextAttempt
from optilock.unit.options import Options
from optilock.unit.outcomes import explain_commit, refusal_of
from optilock.unit.parts import Part, leave_parts
from optilock.unit.refused_locks import note_added_lock
from optilock.unit.round_trips import flush_inside_commit
from optilock.unit.sessions import (
    ReplacedSession,
    choose_engines,
    forget_engine_choice,
    with_options,
)

_log = logging.getLogger("optilock")


class OwnTransaction:
    """A session and a transaction that begin and end with the unit."""

    def __init__(
        self,
        session: Session,
        public: Any,
        options: Options,
        next_attempt: NextAttempt | None = None,
        call: KeyedCall | None = None,
    ) -> None:
        self.session = session
        # An async unit ends in another task, where no attempt runs.
        self.attempt = running_units.current_attempt()
        if self.attempt is not None and not running_units.inside_unit():
            options = options.of_attempts  # a unit around it could have locked what it locks
        #: With ``exactly_once=``: the token that is stored with COMMIT.
        self.token = TokenOfUnit(session, call) if options.exactly_once else None
        #: Calls under a key that run here, the innermost last.
        self.calls = [] if call is None else [call]
        #: Functions to call once the unit is stored.
        self.hooks: list[Hook] = []
        self.is_stored = False
        #: How many units have joined it, and have not ended.
        self.joined = 0
        #: The state between this attempt, the one before and the next one.
        self.next_attempt = next_attempt
        #: The session that the program gets: ``session``, or the AsyncSession in front of it.
        self.public = public
        self.options = options
        self.standing = parts_of_every_unit.standing
        self.parts = options.all_parts + self.standing
        #: Errors after which nothing may be committed, unless one of the savepoints is undone that
        #: were open then.
        self._dooms: list[tuple[BaseException, tuple[object, ...]]] = []
        #: The database's error with which a savepoint could not be undone.
        self.broken_by: BaseException | None = None
        #: The session of a scope, which this unit's session replaces.
        self.replaced: ReplacedSession | None = None
        self.connections: list[Connection] = []
        self._leaving = self._committing = self._open = False
        self.routes: dict[Engine, Engine] = {}
        #: The objects before a flush that goes with COMMIT, with their values.
        self._unflushed: list[tuple[Any, dict[str, Any]]] = []

    # -- opening and leaving -----------------------------------------------------------------------

    def begin(self) -> None:
        attempt = self.attempt
        self._attempts = 1 if attempt is None else attempt.number
        self._started = time.monotonic() if attempt is None else attempt.started
        asked, token = self.options, self.token
        if token is not None:
            token.begin()
        if asked.on_conflict is not None or asked.on_delete is not None or asked.strict is not None:
            guard_options(
                self.session,
                on_conflict=asked.on_conflict,
                on_delete=asked.on_delete,
                strict=asked.strict,
            )
        record_of(self.session).owner = self
        if self.parts:
            for part in self.parts:
                part.begin(self.session)
            if self.options.chooses_engines:
                choose_engines(self.session, self.route)
        # SQLAlchemy refuses to go on after a commit inside its own ``with`` block.
        self._transaction = self.session.begin()
        guard_commit(self._transaction)
        self._transaction.__enter__()
        if self.next_attempt is not None and self.next_attempt.is_due:
            self._first(partial(self.next_attempt.hand_over, self))
        if token is not None:
            self._first(token.claim)

    def prepare(self) -> None:
        """Check and flush all that comes before COMMIT.

        Raises:
            OptilockError: an inner unit failed, or the database has ended the transaction.
            ConfigurationError: objects of the scope's other session were changed inside.
            ConcurrencyError: the flush met a conflict.
        """
        self.refuse_doomed()
        if self.replaced is not None:
            self.replaced.refuse_changes()
        self._open = self.session.in_transaction()
        if not self._open:
            return
        for part in self.parts:
            if type(part).before_flush is not Part.before_flush:  # a call of every unit
                part.before_flush(self.session)
        self._raise_what_broke()
        if flush_inside_commit(self.session, self.parts):
            if self.token is not None:
                self._unflushed = values_of(self.session, flushed=False)
                self.token.announce()
            return
        flush_last(self.session)
        for part in self.parts:
            if type(part).before_commit is not Part.before_commit:
                part.before_commit(self.session)
        if record_of(self.session).promises:
            check_before_commit(self.session)
        if has_scopes_to_end(self.session):
            end_scopes(self.session)
        if self.token is not None:
            self.token.announce()

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
            if self.is_stored:
                self._note_stored(raised)
            raise
        finally:
            try:
                self._close(error)
            except BaseException as raised:
                if self.is_stored:
                    self._note_stored(raised)
                raise

    def _first(self, step: Callable[[], None]) -> None:
        """Do the first step of the transaction; if it fails, the unit has not been entered."""
        try:
            step()
        except BaseException as error:
            self._roll_back(error)
            self._close(error)
            leave_parts(self.standing, self.session)
            raise

    def doom(self, error: BaseException, savepoints: tuple[object, ...] = ()) -> None:
        """Refuse to commit from here on, because of ``error``; the first one counts.

        Not any more once one of the savepoints is rolled back, and the failed work with it.
        """
        self._dooms.append((error, savepoints))

    @property
    def is_doomed(self) -> bool:
        return bool(self._dooms)

    def refuse_doomed(self, savepoint: object = None) -> None:
        """Raise an error if an inner unit has failed, in this savepoint if one is given."""
        for error, savepoints in self._dooms:
            if savepoint is None or savepoint in savepoints:
                self._refuse_because_of(error)

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
    def name(self) -> str | None:
        return self.options.name or (None if self.attempt is None else self.attempt.name)

    @property
    def has_key(self) -> bool:
        return self.token is not None and self.token.has_key

    @property
    def hurries(self) -> bool:
        return self.next_attempt is not None and self.next_attempt.waits_briefly(
            self.session, self._attempts
        )

    @property
    def gives_way(self) -> bool:
        return self.next_attempt is not None and self._attempts < self.next_attempt.attempts

    def connected(self, connection: Connection, database: Database) -> None:
        self.connections.append(connection)
        try:
            if not connection.dialect.supports_sane_rowcount:
                require_row_counts(connection.dialect)
            self._refuse_autocommit(connection)
            for part in self.parts:
                if type(part).connected is not Part.connected:
                    part.connected(self.session, connection)
            self._refuse_autocommit(connection)
            if self.token is not None:
                self.token.connected(connection)
                if self._leaving:
                    self.token.announce()
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

    def savepoint_undone(self, savepoint: object) -> None:
        """Drop what was to follow COMMIT, or prevents it, inside of a savepoint that is undone."""
        self.hooks = [hook for hook in self.hooks if savepoint not in hook.savepoints]
        self._dooms = [doom for doom in self._dooms if savepoint not in doom[1]]

    # -- the end -----------------------------------------------------------------------------------

    def _commit(self) -> None:
        if not self._open:
            return
        self._leaving = True
        try:
            self.session.commit()
        except BaseException as error:
            if not self._give_up(error):
                raise
        self._note_committed()

    def _note_committed(self, written: WrittenRows | None = None) -> None:
        self.is_stored = True
        if written is not None:  # a listener to COMMIT has failed before they were published
            written.publish()
        events.emit(self._committed)

    def _committed(self) -> events.Committed:
        pipelined = self.options.pipelined and record_of(self.session).ending is not None
        return events.Committed(*self.outcome(), pipelined=bool(pipelined))

    def outcome(self) -> tuple[int, float, str | None]:
        """Return the attempts, the seconds and the name of the unit for events."""
        return self._attempts, time.monotonic() - self._started, self.name

    def _give_up(self, error: BaseException) -> bool:
        """Roll back, and raise the meaning of ``error`` where it is more than its text.

        Returns whether the unit was found stored, though COMMIT got no answer.
        """
        written = rows_to_publish(self.session)
        if self._committing and self._is_stored():
            # A listener to COMMIT has failed, and another attempt would store the unit twice.
            self._roll_back(error)
            self._note_committed(written)
            return False
        conflict = ended_by_conflict(error, at_commit=self._committing)
        refused = refusal_of(self, error)
        if conflict:
            capture(self.session)
        kept = self._values()
        if self._committing:
            roll_back_all(self.connections)
        self._roll_back(error)
        if self._committing and explain_commit(self, error):
            self.is_stored = True
            restore_values(kept)
            if written is not None:
                written.publish()
            return True
        if isinstance(error, InvalidRequestError):  # SQLAlchemy has refused a later call
            self._raise_what_broke()
            if refused is not None:
                raise refused[0] from refused[1]
        if conflict and isinstance(error, DBAPIError):
            raise conflict_after_rollback(self.session, error) from error
        return False

    def _values(self) -> list[tuple[Any, dict[str, Any]]]:
        """Return the objects with their values, in case that the unit is found stored."""
        if self.token is None or not self._committing:
            return []
        ending = record_of(self.session).ending
        if ending is not None and ending.unanswered:  # its flush was rolled back
            return self._unflushed
        return values_of(self.session, flushed=True)

    def _is_stored(self) -> bool:
        if was_committed(self._transaction):
            return True
        ending = record_of(self.session).ending
        return ending is not None and ending.stored and len(self.connections) == 1

    def _note_stored(self, error: BaseException) -> None:
        error.add_note(
            "optilock: the unit is stored; this error came after COMMIT, so it is not retried"
        )
        if self.attempt is not None:
            self.attempt.stored = True

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
            if error is not None and any(isinstance(one, SelfDeadlock) for one, _ in self._dooms):
                note_added_lock(error)
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
            begin_never_again(self.session, _refuse_after_the_end)
            if error is not None and not self.is_stored:
                note_failure(self, error)

    # -- refusals ----------------------------------------------------------------------------------

    def _refuse_because_of(self, error: BaseException) -> None:
        self._raise_what_broke()
        if isinstance(error, (ConfigurationError, SelfDeadlock)):
            raise error
        raise OptilockError(
            "this unit of work is rolled back: an inner unit that had joined it failed, and its"
            " error was caught outside of it. Let the error out, catch it inside the inner unit,"
            ' or give the inner unit propagation="savepoint", so that only its own work is undone.'
        ) from error

    def _raise_what_broke(self) -> None:
        """Raise the first error after which nothing could be done, though the program caught it."""
        for connection in self.connections:
            if (error := error_that_lost(connection)) is not None:
                raise error
        if self.broken_by is not None:
            raise self.broken_by


def _refuse_after_the_end(*_: Any, **__: Any) -> NoReturn:
    raise ConfigurationError(
        "this session belongs to a unit of work that has ended: nothing that it sends would be"
        " committed. Open a unit where the work goes on (a background task, a stream, a thread):"
        " with UnitOfWork(sessions) as session. Nothing was sent."
    )


_COMMITTED_INSIDE = (
    "session.commit() inside of a unit of work: the unit commits at the end of its block, and work"
    " after this call would not be stored together with the work before it. Omit commit(). Use"
    ' session.flush() to write pending changes, or unit_of_work(..., propagation="independent") for'
    " work that is stored separately. Nothing was committed."
)
_AUTOCOMMIT = (
    "this engine runs in AUTOCOMMIT mode: every statement is stored at once, and a unit of work"
    " could not take anything back. Give the unit an engine without"
    ' isolation_level="AUTOCOMMIT".'
)
