"""The root of all errors, the error for bad input, and helpers for messages and pickles."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy.exc import PendingRollbackError

E = TypeVar("E", bound=BaseException)


class OptilockError(Exception):
    """The root of all errors that optilock raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args, pickled_state(self))


class ConfigurationError(OptilockError, ValueError):
    """A mapping, an option or a call that cannot work; the message names the correct one."""


class CommitOutcomeUnknown(OptilockError):
    """The connection was lost inside COMMIT: the work is either stored completely or not at all.

    It is never retried automatically, because running the work twice could apply it twice. Read the
    rows on a new connection and compare them with the values that you meant to store; or run the
    unit with ``exactly_once=``, which finds out.
    """

    #: The token of a unit with ``exactly_once=``, for ``optilock.exactly_once.committed``.
    token: str | None = None


class NotCommitted(OptilockError):
    """The connection was lost inside COMMIT, and the work is certainly not stored.

    A unit with ``exactly_once=`` has found that out, and a COMMIT that comes late fails. It is
    transient: a retry runs the unit again.
    """


class SelfDeadlock(OptilockError):
    """A session would wait for a lock of another session that the same call chain has open.

    The holder goes on only after the waiting call, so the wait would never end. Nothing was sent.
    """

    #: The unit, or the session, that has the lock.
    holder: str = ""
    #: The unit, or the session, that would wait for it.
    waiter: str = ""


class TransactionEnded(OptilockError, PendingRollbackError):
    """The transaction has ended before its COMMIT, and was not committed in its second half.

    The database has ended it with an error that was caught, or the program has done so: with COMMIT
    or ROLLBACK in SQL text, with the driver's own connection, with DDL that commits. Until a
    rollback its statements and its COMMIT raise this. ``__cause__`` is the database's error, if
    there was one. It is transient if that error is.
    """


class CannotMerge(OptilockError):
    """A field policy cannot keep both changes; the conflict then goes to the caller."""


class UnguardedStatement(OptilockError):
    """A statement that ignores the version of a table; it was not sent.

    See :func:`optilock.statements.guard_statements`.
    """


class UnguardedStatementWarning(UserWarning):
    """The same statement, in a program that only wants a warning."""


class SeparateUnitWarning(UserWarning):
    """A unit of work, or a queue's call, commits on its own inside a unit on the same database.

    See ``docs/how-to/sessions/units.md`` and ``docs/how-to/long-work/queue.md``.
    """


class UnversionedMergeWarning(UserWarning):
    """``session.merge()`` writes values without a version over a stored row.

    It is given once for each class; a strict session refuses it. See
    ``docs/how-to/web/detached-objects.md``.
    """


def describe(obj: object) -> str:
    """Return the kind of an argument for a message, without its value."""
    if isinstance(obj, type):
        return f"the class {obj.__name__}"
    return f"an object of {type(obj).__name__}"


def prepend_line(error: E, line: object) -> E:
    """Return the error; its message now begins with this line, as SQLAlchemy's does."""
    error.args = (f"{line}\n{error.args[0]}", *error.args[1:])
    return error


def pickled_state(error: BaseException) -> dict[str, Any]:
    """Return the state of a copy: pickle drops causes, and many cannot be pickled."""
    state = dict(error.__dict__)
    if error.__cause__ is not None and _can_be_pickled(error.__cause__):
        state["__cause__"] = error.__cause__
    return state


def _can_be_pickled(error: BaseException) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def row_name(model: type[Any], identity: tuple[Any, ...]) -> str:
    """Return class and key, for messages: ``Page 7``."""
    return f"{model.__name__} {short_text(identity[0] if len(identity) == 1 else identity)}"


#: Characters of a client's value in a message, which may end in a log.
_LONGEST = 200


def short_text(value: object) -> str:
    """Return the text of a value for a message, shortened: a client may choose its length."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return f"an object of {type(value).__name__} that is too long to show"
    rest = len(text) - _LONGEST
    return text if rest <= 0 else f"{text[:_LONGEST]}... ({rest} more characters)"


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import a package in this block; name its extra if it is not installed.

    ::

        with extra("flask"):
            from flask import Flask

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or name).split(".")[0]
        raise ModuleNotFoundError(
            f"optilock's part for {name} needs {package}, which is not installed:"
            f' pip install "optilock[{name}]"',
            name=missing.name,
        ) from missing
