"""The errors of optilock: one tree, and each says what to do next.

::

    OptilockError
    ├── ConfigurationError (ValueError)     bad input: a mapping, an option, a call that cannot work
    ├── ConcurrencyError (StaleDataError)   somebody else changed the rows first: see ``.entries``
    │   └── PreconditionFailed              ... and the caller had demanded a version (HTTP 412)
    ├── UnguardedStatement                  a statement that goes around the version was forbidden
    ├── NotWritten (StaleDataError)         nobody was first; a trigger or a rule kept the row
    ├── LinkGone (StaleDataError)           a many-to-many link was removed by somebody else first
    ├── CommitOutcomeUnknown                the connection was lost inside COMMIT; nobody can tell
    └── CannotMerge                         a field policy found no value that keeps both changes

Every error can be pickled, with its notes and, if that can be pickled too, its cause. No message
holds SQL, a secret, or a column value of a row besides its key and versions.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm.exc import StaleDataError

if TYPE_CHECKING:
    from optilock.entry import Entry

__all__ = [
    "CannotMerge",
    "CommitOutcomeUnknown",
    "ConcurrencyError",
    "ConfigurationError",
    "LinkGone",
    "NotWritten",
    "OptilockError",
    "PreconditionFailed",
    "SeparateUnitWarning",
    "UnguardedStatement",
    "UnguardedStatementWarning",
]


class OptilockError(Exception):
    """Root of everything optilock raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args, _state(self))


class ConfigurationError(OptilockError, ValueError):
    """A mapping, an option or a call that cannot work; the message says what to write instead."""


class ConcurrencyError(OptilockError, StaleDataError):
    """Another writer was first.

    ``entries`` holds every conflicting row of the flush as plain values. It is empty only
    when the database itself ended the transaction and no row of the unit has moved since
    (write skew, a predicate that changed): running the unit again is then the answer.

    It is a ``sqlalchemy.orm.exc.StaleDataError``, so handlers written for SQLAlchemy's own
    versioning keep working.
    """

    entries: tuple[Entry[Any], ...]

    def __init__(self, entries: Iterable[Entry[Any]] = (), message: str | None = None) -> None:
        if isinstance(entries, str):
            raise ConfigurationError(
                f"{type(self).__name__}() takes entries first: write"
                f" {type(self).__name__}(message=...) for a text."
            )
        self.entries = tuple(entries)
        super().__init__(message if message is not None else _describe(self.entries, self._advice))

    _advice = (
        "Your edits were not written. Refresh the objects and apply the edits again,"
        " set on_conflict= to a resolver (merge_fields, client_wins, store_wins), or run the"
        " whole unit of work again with optilock.retry."
    )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.entries, self.args[0]), _state(self))


class PreconditionFailed(ConcurrencyError):
    """The row is not the version that the caller demanded. Never transient, never resolved.

    RFC 9110 section 15.5.13 (412 Precondition Failed).
    """

    _advice = (
        "Your edits were not written, because they were meant for the version that was demanded."
        " Read the row again, decide anew, and demand the version that you have seen then."
    )


class NotWritten(OptilockError, StaleDataError):
    """A row is as it was read, and the database did not write it: a trigger or a rule keeps it.

    Nobody else was first, so it is no ``ConcurrencyError``, and running the work again would meet
    the same. It is a ``StaleDataError``, which is what SQLAlchemy raises.
    """


class LinkGone(OptilockError, StaleDataError):
    """Link rows that were to be taken away were not there: somebody else has removed them.

    No version is involved, and nobody's edit is lost, so it is no ``ConcurrencyError``. Everything
    else of the flush is written and the transaction is alive: commit to accept it, or roll back.

    ``table`` is the name of the link table, ``links`` what was to be taken away, as mappings of
    column keys to values, ``found`` how many of them were there. It is a ``StaleDataError``, which
    is what SQLAlchemy raises, and ``is_transient``: read anew, the link is not there to be removed.
    """

    table: str
    links: tuple[Mapping[str, Any], ...]
    found: int

    def __init__(
        self, table: str, links: Iterable[Mapping[str, Any]], found: int, verb: str = "delete"
    ) -> None:
        self.table = table
        self.links = tuple(dict(link) for link in links)
        self.found = found
        self._verb = verb
        count = len(self.links)
        super().__init__(  # SQLAlchemy's own words come first
            f"{verb.upper()} statement on table '{table}' expected to {verb} {count} row(s);"
            f" Only {found} were matched. Somebody else has removed {_which(self.links, found)}"
            " before. Everything else of the flush is written and the transaction is alive: commit"
            " to accept it, roll back, or say on_delete=OnDelete.IGNORE_GONE."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.table, self.links, self.found, self._verb), _state(self))


def _which(links: tuple[Mapping[str, Any], ...], found: int) -> str:
    shown = "; ".join(
        ", ".join(f"{name} {value!r}" for name, value in link.items()) for link in links[:_SHOWN]
    )
    if len(links) > _SHOWN:
        shown += f"; and {len(links) - _SHOWN} more"
    if len(links) == 1:
        return f"the link ({shown})"
    return f"{len(links) - found} of these links ({shown})"


class CommitOutcomeUnknown(OptilockError):
    """The connection was lost inside COMMIT: the work is either stored completely or not at all.

    It is never retried by itself, because running the work twice could apply it twice. Read the
    rows on a new connection and compare them with what was meant to be stored.
    """


class UnguardedStatement(OptilockError):
    """A statement that goes around the version of a table; it was not sent.

    See :func:`optilock.guard_statements`.
    """


class UnguardedStatementWarning(UserWarning):
    """The same where it is only told."""


class SeparateUnitWarning(UserWarning):
    """A unit of work runs inside another one on the same database and does not join it.

    See ``docs/units.md``.
    """


class CannotMerge(OptilockError):
    """A field policy cannot keep both changes; the conflict then goes to the caller."""


def described(obj: object) -> str:
    """What was given, for a message: its kind, and no value of it."""
    if isinstance(obj, type):
        return f"the class {obj.__name__}"
    return f"an object of {type(obj).__name__}"


def _state(error: BaseException) -> dict[str, Any]:
    """What a copy needs besides the arguments; pickle drops causes, and many cannot be pickled."""
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


_SHOWN = 5


def _describe(entries: tuple[Entry[Any], ...], advice: str) -> str:
    """What was tried, on which rows, why it usually happens, and what to do next."""
    if not entries:
        return (
            "The database ended the transaction because of a concurrent change, and none of the"
            " rows of this unit has another version now: the transactions depended on each"
            " other's reads. Run the whole unit of work again."
        )
    lines = [entry.describe() for entry in entries[:_SHOWN]]
    if len(entries) > _SHOWN:
        lines.append(f"... and {len(entries) - _SHOWN} more")
    rows, them = ("1 row was", "it") if len(entries) == 1 else (f"{len(entries)} rows were", "them")
    return (
        f"{rows} changed by another transaction after this one had read {them}:\n  "
        + "\n  ".join(lines)
        + f"\n{advice}"
    )
