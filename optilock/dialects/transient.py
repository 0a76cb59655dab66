"""Errors after which the same work may succeed if it runs again from the start.

::

    from optilock.dialects.transient import is_transient

    try:
        transfer(1, 2, 100)
    except Exception as error:
        if not is_transient(error):
            raise
        transfer(1, 2, 100)

(:func:`optilock.retry` does this with waiting, a limit and a note.)

Rule: the driver decides which database it is, and then only its codes count: SQLSTATE, error
number, extended result code. Never the exception's class, because plain conflicts come as
``OperationalError``, ``InternalError`` and ``DatabaseError``; never its text, except for DuckDB,
which has nothing else, and for connects that psycopg could not make, which carry no code. The codes
of each engine are in its folder in ``optilock/dialects``.

A connect that failed has done nothing, and is transient when the server was not reached, was
starting or stopping, or had no connection left. Asyncpg raises the operating system's own error
there; it counts, and an ``OSError`` from anywhere else does not.

Edges: an error that COMMIT may have raised, and that leaves open whether the work is stored, is
not transient: running it again could apply it twice. SQLAlchemy names no statement in the errors
of COMMIT, so that is what such an error is known by. Nor does it in some others (of a result that
was still being read, of the question at which level a transaction runs): these are known by where
they were raised.
"""

from __future__ import annotations

from sqlalchemy.exc import DataError, DBAPIError, NotSupportedError, ProgrammingError
from sqlalchemy.orm.exc import StaleDataError

from optilock._undocumented.connections import (
    error_before_rollback,
    is_not_from_commit,
    is_raised_while_connecting,
    is_raised_while_setting_options,
)
from optilock.dialects import database_of_error
from optilock.dialects.causes import Cause
from optilock.errors import (
    MovedByOwnStatement,
    NotCommitted,
    NotWritten,
    PreconditionFailed,
    TransactionEnded,
    WouldOverwrite,
)

#: What every run of a unit would meet: no ``on=`` of a retry accepts it.
FINAL = (WouldOverwrite, MovedByOwnStatement)
_PASSING = frozenset(Cause) - {Cause.UNKNOWN_OUTCOME, Cause.OTHER}


def is_transient(error: BaseException) -> bool:
    """Return whether the whole unit of work may succeed if it runs again.

    True for conflicts (``ConcurrencyError``, SQLAlchemy's ``StaleDataError``), deadlocks, lock
    timeouts, connections lost before COMMIT, ``NotCommitted``, connects that found no server, and
    tables that were altered under a prepared statement. True for ``TransactionEnded`` after such an
    error. False for everything else, among it a
    password or a database that the server does not know, ``PreconditionFailed``, ``NotWritten``,
    ``WouldOverwrite``, ``MovedByOwnStatement``, ``CommitOutcomeUnknown``, a statement timeout and a
    violated constraint.
    """
    error = error_before_rollback(error)
    if isinstance(error, TransactionEnded):
        cause = error.__cause__
        return cause is not None and cause_of(_wrapped(cause)) in _PASSING
    if isinstance(error, (PreconditionFailed, NotWritten, *FINAL)):
        return False
    if isinstance(error, (StaleDataError, NotCommitted)):
        return True
    if not isinstance(error, DBAPIError):
        sent = is_raised_while_connecting(error) or is_raised_while_setting_options(error)
        sent = sent or is_not_from_commit(error)
        return sent and cause_of(_wrapped(error)) in _PASSING
    return cause_of(error) in _PASSING and not _may_be_stored(error)


def _wrapped(error: BaseException) -> DBAPIError:
    """As SQLAlchemy wraps what it knows for an error of the driver."""
    return DBAPIError(None, None, error).with_traceback(error.__traceback__)


def ended_by_conflict(error: BaseException, *, at_commit: bool = False) -> bool:
    """Return whether another transaction's committed change ended ours.

    ``at_commit``: COMMIT raised the error. Galera reports a conflict between nodes there with the
    code that is a deadlock anywhere else.
    """
    if not isinstance(error, DBAPIError):
        return False
    return cause_of(error, at_commit=at_commit) is Cause.CONFLICT


def commit_outcome_unknown(error: BaseException) -> bool:
    """Return whether ``error`` of COMMIT leaves open if the work is stored.

    An answer of the database (40001, a deferred constraint, SQLITE_BUSY) is a certain rollback,
    except for the codes that say "unknown". No answer is no certainty: a lost connection, and
    also a cancelled task, an interrupt or a timeout, because COMMIT may already have been sent.
    Errors of a flush or a hook that ran before COMMIT are certain.
    """
    if isinstance(error, DBAPIError):
        return _may_be_stored(error)
    return not is_raised_while_connecting(error) and _is_no_answer(error)


def answer_unknown(error: BaseException) -> bool:
    """Return whether ``error`` of a statement that commits itself leaves open if it is stored.

    Not where the driver itself finds fault with the statement or its values, and sends nothing.
    """
    if isinstance(error, (ProgrammingError, DataError, NotSupportedError)):
        return error.connection_invalidated
    if isinstance(error, DBAPIError):
        return not database_of_error(error.orig).rolled_back(error)
    return _is_no_answer(error)


def _is_no_answer(error: BaseException) -> bool:
    return not isinstance(error, Exception) or isinstance(error, (OSError, EOFError))


def cause_of(error: DBAPIError, *, at_commit: bool = False) -> Cause:
    """Why the database ended the statement or the transaction."""
    return database_of_error(error.orig).classify(error, at_commit=at_commit)


def _may_be_stored(error: DBAPIError) -> bool:
    return _from_commit(error) and not database_of_error(error.orig).rolled_back(error)


def _from_commit(error: DBAPIError) -> bool:
    """SQLAlchemy names no statement when the driver's own ``commit()`` fails.

    That of a transaction in two phases is a statement like any other.
    """
    if error.statement is None:
        return not is_not_from_commit(error)
    return error.statement.lstrip().upper().startswith("COMMIT")
