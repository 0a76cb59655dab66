"""The end of a transaction before its COMMIT, and the refusal to commit what came after it.

A COMMIT stores the transaction that is open, and that may be another one than the session has
begun. SQLite rolls back everything at ``ON CONFLICT ROLLBACK``, at ``RAISE(ROLLBACK)`` and at an
interrupted write. MariaDB does so at a deadlock, and commits at DDL. A program sends COMMIT as SQL
text, or with the driver's own cursor. If it goes on, its COMMIT stores the second half alone.

So each transaction of a watched session is followed, from :func:`watch_transaction` to its COMMIT:

* The driver knows whether a transaction is open (``open_transactions`` of
  :class:`~optilock.dialects.ends.Ends`), without a round trip. It is asked before and after each
  statement that SQLAlchemy sends, at each error, and before COMMIT. A transaction that was open and
  is not any more has ended.
* MariaDB's answer is no news after an error. So its server is asked then.
* Some drivers have no answer at all. Then a statement that was sent has begun a transaction, a
  COMMIT or ROLLBACK in SQL text has ended it, and so has an error, unless the database's class
  knows that it has not (``ended_by``). A savepoint that can be rolled back after the error
  proves that it has not.
* A statement may end a transaction and begin another one at once (``COMMIT AND CHAIN``, ``CALL``).
  Statements that may do so (``may_restart``) are sent behind a savepoint, which must be there
  afterwards. No other statement costs a round trip.
* The driver's own connection can do anything between two statements. On SQLite a savepoint costs no
  round trip, so a session that has given its connection to the program has one, too.

A transaction that has ended is never committed: its statements and its COMMIT raise
:class:`~optilock.errors.TransactionEnded`, until it is rolled back. Its savepoints are gone, and
nothing is sent to undo one.

**Failed.** PostgreSQL refuses every statement after an error, until the transaction or a savepoint
is rolled back. It does not refuse COMMIT: that is answered with ROLLBACK, and no error. So COMMIT
of a failed transaction is refused here. A statement in it raises the first error again, which shows
the cause: the server's answer (25P02) does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Dialect, ExceptionContext
from sqlalchemy.exc import SQLAlchemyError

from optilock.dialects.base import Database
from optilock.dialects.causes import is_raised_by
from optilock.errors import OptilockError, TransactionEnded

#: Where a connection, and the ``info`` of its driver's connection, have their transaction.
_KEY = "_optilock_transaction"
_SAVEPOINT = "optilock_whole"
_FIRST_WORD = re.compile(r"\s*([A-Za-z]{2,12})\b")
#: How statements begin that end no transaction without an error, and change no savepoint.
_OF_ROWS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "REPLAC"})
#: How statements begin that end a transaction, where no driver says so.
_ENDS = frozenset({"COMMIT", "END", "ABORT", "ROLLBACK"})
_COMMENT = r"(?:/\*.*?\*/|--[^\n]*(?:\n|\Z)|#[^\n]*(?:\n|\Z)|\s)*"
_FIRST_WORDS = re.compile(
    rf"(?:\A|;){_COMMENT}\(*([A-Za-z]+){_COMMENT}(?:(?:WORK|TRANSACTION)\b{_COMMENT})?(TO\b)?",
    re.IGNORECASE | re.DOTALL,
)
#: Statements that change which savepoints there are.
_OF_SAVEPOINTS = ("SAVEPOINT", "ROLLBACK", "RELEASE")


def first_words(statement: str) -> list[tuple[str, str]]:
    """Return the first word of each statement in a text, and the TO of ``ROLLBACK TO``.

    Nothing of a text that is one statement on rows. A literal may look like another statement.
    """
    if statement[:6].upper() in _OF_ROWS and ";" not in statement:
        return []
    return [(word.upper(), to) for word, to in _FIRST_WORDS.findall(statement)]


class WatchedTransaction:
    """One transaction of a connection, from its first statement to its end."""

    #: optilock itself ends the transaction, or a part of it.
    paused = False
    #: The program has the connection, and so perhaps the driver's.
    _shared = False

    def __init__(self, connection: Connection, database: Database) -> None:
        fairy = connection.connection
        self._connection, self._driver = ref(connection), fairy.driver_connection
        self._root, self.dialect = ref(connection.get_transaction()), connection.dialect
        self._ends = database.ends
        #: Ask the driver whether a transaction is open; None: it does not know.
        self.is_open = database.ends.open_transactions(self._driver)
        self.is_known = self.is_open() is not None or database.ends.has_open_pipeline(self._driver)
        self.rolled_back()
        self.begun = bool(self.is_open())

    def rolled_back(self) -> None:
        """Begin again: the transaction has no statement."""
        #: A transaction was open after the last statement.
        self.begun = False
        #: Look at each statement: the transaction has ended or failed, or is shared.
        self.is_careful = self._shared
        self._sent = False
        #: Why it has ended; the first reason counts.
        self._why: str | None = None
        #: The driver's error that ended it, or made it fail, and as SQLAlchemy has raised it.
        self.error: BaseException | None = None
        self._raised: BaseException | None = None
        self._has_savepoint = self._savepoint_is_first = self._savepoints_before = False
        #: The program's savepoints, and the error that may have ended the transaction among them.
        self._names: tuple[str, ...] = ()
        self._doubt: tuple[BaseException, tuple[str, ...]] | None = None

    @property
    def is_over(self) -> bool:
        return self._why is not None

    def is_current(self) -> bool:
        """Return whether the connection is still in this transaction."""
        connection = self._connection()
        return (
            connection is not None
            and not connection.closed
            and connection.get_transaction() is self._root()
        )

    # -- statements --------------------------------------------------------------------------------

    def before(self, statement: str) -> bool:
        """Refuse a statement after the end; return whether a savepoint was set before it."""
        if self.begun and self.is_open() is False:
            self._end(_OUTSIDE)
        if self._why is not None:
            raise self.refusal()
        undoes = self._raised is not None and statement[:8].upper() == "ROLLBACK"
        if self._raised is not None and not undoes and self._is_failed():
            if _SENT_AFTER not in getattr(self._raised, "__notes__", ()):
                self._raised.add_note(_SENT_AFTER)
            raise self._raised
        if self._shared and self.begun and not self._has_savepoint:
            self._set_shared()
        restarts = self.begun and not undoes and self._ends.may_restart(statement)
        return restarts and self._set_savepoint()

    def after(self, statement: str, *, marked: bool) -> None:
        """Notice that a statement has ended the transaction, or begun it."""
        self._sent = True
        is_open = self.is_open()
        if (self.begun and is_open is False) or (marked and not self._release_savepoint()):
            word = _FIRST_WORD.match(statement)
            self._end(_BY_STATEMENT.format("a statement" if word is None else word[1].upper()))
        elif not self.is_known or (self._names and is_open is False):
            # no driver tells; or none is open yet, as on MariaDB after a first SAVEPOINT
            for number, (ends, to) in enumerate(first_words(statement)):
                if ends in _ENDS and not to and not (ends == "END" and number):  # of a block
                    self._end(_BY_STATEMENT.format(ends))
            self.begun = not self.is_known
        elif is_open:
            self.begun = True
            if self._raised is not None and statement[:8].upper() == "ROLLBACK":
                self.error = self._raised = None
            if self._ends.savepoints_are_free:
                self._keep_savepoint(statement)

    def note_error(
        self, error: BaseException, raised: BaseException | None, *, release: bool
    ) -> None:
        """Notice that an error has ended the transaction, or made it fail."""
        connection = self._connection()
        assert connection is not None  # which has raised it
        asked = connection if self._sent else None  # or there is nothing to lose
        ended = self.begun and self.is_open() is False
        known = self._ends.ended_by(error, asked)
        if ended or release or known:
            self._end(_BY_ERROR, error)
        elif known is None and not self.is_known and asked is not None and self._doubt is None:
            self._doubt = error, self._names
        elif self._ends.fails_whole and self._raised is None:
            self.error, self._raised, self.is_careful = error, raised, True

    def _has_failed(self) -> bool:
        connection = self._connection()
        with self.pause():
            return connection is not None and self._ends.transaction_failed(connection)

    def _end(self, why: str, error: BaseException | None = None) -> None:
        if self._why is None and self.is_current():
            self._why, self.is_careful = why, True
            self.error = error or self.error

    def refusal(self) -> TransactionEnded:
        """Return the error of each statement, and of COMMIT."""
        refused = TransactionEnded(self._why)
        refused.__cause__ = self.error
        return refused

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let optilock's own statements pass; where they end the transaction, another begins."""
        around, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = around
            if not around and self.is_known:
                self.begun = bool(self.is_open())

    # -- savepoints of the program -----------------------------------------------------------------

    def note_savepoint(self, name: str) -> None:
        self._names += (name,)

    def undo(self, roll_back_to: Callable[[], None], name: str) -> None:
        """Go back to a savepoint: an error inside of it has not ended the transaction."""
        with nullcontext() if self.is_known else self.pause():
            roll_back_to()
        if self._doubt is not None and name in self._doubt[1]:
            self._doubt = None

    # -- a savepoint that must be there ------------------------------------------------------------

    def share(self) -> None:
        """Note that the program has got the connection."""
        if self._ends.savepoints_are_free and not self._shared:
            self._shared = self.is_careful = True
            self.begun = bool(self.is_open())
        if self._shared and self.begun and not self._has_savepoint:
            self._set_shared()

    def _keep_savepoint(self, statement: str) -> None:
        if statement.startswith(_OF_SAVEPOINTS):
            if statement.startswith("SAVEPOINT"):
                self._savepoints_before = True
            elif not self._savepoint_is_first:
                self._has_savepoint = False
        if self._shared and not self._has_savepoint:
            self._set_shared()

    def _set_shared(self) -> None:
        """Set the savepoint; later, if a result is still read that the last statement returns."""
        self._savepoint_is_first = not self._savepoints_before
        with suppress(Exception):
            self._has_savepoint = self._set_savepoint()

    def _set_savepoint(self) -> bool:
        self._send(f"SAVEPOINT {_SAVEPOINT}")
        return True

    def _release_savepoint(self) -> bool:
        """Return whether the savepoint was there."""
        try:
            self._send(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except Exception as error:
            return not self._ends.is_without_savepoint(error)
        return True

    def _send(self, sql: str) -> None:
        connection = self._connection()
        assert connection is not None
        cursor = connection.connection.cursor()
        try:
            cursor.execute(sql)
        finally:
            cursor.close()

    # -- COMMIT ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to commit another transaction, or half of one.

        Raises:
            TransactionEnded: it has ended, or has failed.
        """
        if self.paused or not self.is_current():
            return
        if self.begun and self.is_open() is False:
            self._end(_OUTSIDE)
        if self._why is None and self._has_savepoint:
            if not self._release_savepoint():
                self._end(_OUTSIDE)
            self._has_savepoint = False
        if self._why is None and self._ends.fails_whole and self._may_have_failed():
            self._end(_FAILED)
        if self._why is None and self._doubt is not None:
            self._end(_IN_DOUBT, self._doubt[0])
        if self._why is not None:
            raise self.refusal()

    def _may_have_failed(self) -> bool:
        return (self._raised is not None or self.begun) and self._is_failed()

    def _is_failed(self) -> bool:
        known = self._ends.knows_failed(self._driver)
        return known if known is not None else self._raised is not None and self._has_failed()


def watch_transaction(connection: Connection, database: Database) -> None:
    """Follow the running transaction of ``connection`` from here on."""
    known: WatchedTransaction | None = connection.__dict__.get(_KEY)
    if known is None or not known.is_current():
        watched = WatchedTransaction(connection, database)
        setattr(connection, _KEY, watched)
        connection.info[_KEY] = watched


def is_watched(connection: Connection) -> bool:
    """Return whether a transaction of the connection was followed."""
    return _KEY in connection.__dict__


def watched_transaction(connection: Connection) -> WatchedTransaction | None:
    """Return the transaction that is followed, if the connection is still in it."""
    known: WatchedTransaction | None = connection.__dict__.get(_KEY)
    return known if known is not None and known.is_current() else None


def share_transaction(connection: Connection) -> None:
    """Note that the program has got the connection."""
    if (watched := watched_transaction(connection)) is not None:
        watched.share()


def is_over(connection: Connection) -> bool:
    """Return whether the connection's transaction has ended, and is not rolled back."""
    watched = watched_transaction(connection)
    return watched is not None and watched.is_over


def refuse_ended(connection: Connection) -> None:
    """Raise ``TransactionEnded`` if the connection's transaction cannot be committed."""
    if (watched := watched_transaction(connection)) is not None:
        watched.check()


@contextmanager
def ignore_ends(connection: Connection) -> Iterator[None]:
    """Send statements with which optilock itself commits, or begins again."""
    watched = watched_transaction(connection)
    if watched is None:
        yield
        return
    with watched.pause():
        yield


def note_error(connection: Connection, context: ExceptionContext, database: Database) -> None:
    """Notice that an error of a statement has ended the transaction of the connection."""
    watched, error = watched_transaction(connection), context.original_exception
    if watched is None or watched.paused or isinstance(error, (SQLAlchemyError, OptilockError)):
        return
    of_driver = isinstance(error, Exception) and is_raised_by(error, database.drivers)
    if of_driver or (not watched.is_known and context.execution_context is not None):
        sql = context.statement or ""
        release = database.ends.fails_whole and sql.startswith("RELEASE SAVEPOINT")
        watched.note_error(error, context.sqlalchemy_exception, release=release)


# -- what SQLAlchemy sends -------------------------------------------------------------------------


def watch_dialect(dialect: Dialect) -> None:
    """Follow the statements of an engine; those of other sessions pay the look into a dictionary.

    Its methods are covered, because a listener to statements costs each of them more.
    """
    of: Any = dialect
    setattr(of, "do_execute", partial(_send, of.do_execute))  # noqa: B010
    setattr(of, "do_executemany", partial(_send, of.do_executemany))  # noqa: B010
    setattr(of, "do_execute_no_params", partial(_send, of.do_execute_no_params))  # noqa: B010
    setattr(of, "do_commit", partial(_commit, of.do_commit))  # noqa: B010
    setattr(of, "do_rollback", partial(_roll_back, of.do_rollback))  # noqa: B010
    setattr(of, "do_savepoint", partial(_set, of.do_savepoint))  # noqa: B010
    undo = partial(_roll_back_to, of.do_rollback_to_savepoint)
    setattr(of, "do_rollback_to_savepoint", undo)  # noqa: B010
    prepare = partial(_end_in_two_phases, of.do_prepare_twophase)
    setattr(of, "do_prepare_twophase", prepare)  # noqa: B010
    commit = partial(_end_in_two_phases, of.do_commit_twophase)
    setattr(of, "do_commit_twophase", commit)  # noqa: B010
    take_back = partial(_undo_two_phases, of.do_rollback_twophase)
    setattr(of, "do_rollback_twophase", take_back)  # noqa: B010


def _send(original: Callable[..., None], cursor: Any, statement: str, *rest: Any) -> None:
    connection = getattr(rest[-1], "root_connection", None) if rest else None
    watched = None if connection is None else connection.__dict__.get(_KEY)
    if watched is None or watched.paused:
        original(cursor, statement, *rest)
        return
    looks = watched.is_careful or (
        watched.begun
        and (watched.is_open() is False or statement[:6] not in _OF_ROWS or ";" in statement)
    )
    marked = looks and watched.before(statement)
    original(cursor, statement, *rest)
    if looks or not watched.begun or watched.is_open() is False:
        watched.after(statement, marked=marked)


def _of(fairy: Any) -> WatchedTransaction | None:
    """Return the transaction that is followed on a pool's connection."""
    info = getattr(fairy, "info", None)
    return None if info is None else info.get(_KEY)


def _commit(original: Callable[[Any], None], fairy: Any) -> None:
    watched = _of(fairy)
    if watched is not None:
        try:
            watched.check()
        except TransactionEnded:
            watched.dialect.do_rollback(fairy)
            raise
    original(fairy)
    if watched is not None:
        watched.rolled_back()


def _roll_back(original: Callable[[Any], None], fairy: Any) -> None:
    watched = _of(fairy)
    original(fairy)
    if watched is not None:
        watched.rolled_back()


def _set(original: Callable[..., None], connection: Connection, name: str) -> None:
    original(connection, name)
    if (watched := watched_transaction(connection)) is not None:
        watched.note_savepoint(name)


def _roll_back_to(original: Callable[..., None], connection: Connection, name: str) -> None:
    watched = watched_transaction(connection)
    if watched is None:
        original(connection, name)
    elif not watched.is_over:
        watched.undo(partial(original, connection, name), name)


def _end_in_two_phases(
    original: Callable[..., Any], connection: Connection, *args: Any, **named: Any
) -> Any:
    refuse_ended(connection)
    with ignore_ends(connection):
        return original(connection, *args, **named)


def _undo_two_phases(
    original: Callable[..., Any], connection: Connection, *args: Any, **named: Any
) -> Any:
    with ignore_ends(connection):
        return original(connection, *args, **named)


# -- messages --------------------------------------------------------------------------------------

_BY_ERROR = (
    "this transaction cannot be committed: the database ended it with an error at an earlier"
    " statement, and that error was caught. It was rolled back as a whole, also outside of a"
    " savepoint: nothing of it is stored. Let the error out, so that the work runs again from its"
    " beginning."
)
_BY_STATEMENT = (
    "this transaction cannot be committed: a statement of the program has ended it ({}). The work"
    " before that statement may be stored already, and the work after it is not. Omit the"
    " statement, or send it on a connection of its own."
)
_OUTSIDE = (
    "this transaction cannot be committed: it was ended outside of SQLAlchemy, with the driver's"
    " own connection or cursor. The work before that may be stored or not, and the work after it is"
    " not. Use the session's commit() and rollback(), and let the driver's errors out."
)
_FAILED = (
    "this transaction cannot be committed: the database ended it with an error at an earlier"
    " statement, and that error was caught. The database would have answered COMMIT by rolling"
    " back, without a word. Nothing is stored. Let the error out and roll back, or try the"
    " statement in a savepoint (session.begin_nested()), which can be undone alone."
)
_IN_DOUBT = (
    "this transaction cannot be committed: an earlier statement failed, and that error was caught."
    " The driver does not know whether the database has rolled back the transaction with it, so"
    " COMMIT might store a part of the work. Let the error out and roll back, or try the statement"
    " in a savepoint (session.begin_nested()), which can be undone alone. Nothing is stored."
)
_SENT_AFTER = (
    "optilock: this error came at an earlier statement of the transaction, and was caught. Until a"
    " rollback the database refuses every statement, so the next one was not sent."
)
