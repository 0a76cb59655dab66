"""The errors of optilock: one tree, and each says what to do next; and the rows that they carry.

::

    OptilockError
    ├── ConfigurationError (ValueError)     bad input: a mapping, an option, a call that cannot work
    ├── BadPrecondition (ValueError)        a client sent a condition that cannot be read (400)
    │   └── PreconditionRequired            ... or none, where a write needs one (428)
    ├── ConditionNotCompared                a client's condition was not compared by anything (501)
    ├── BadEntity (ValueError)              a client sent values that its row cannot have (400)
    ├── NotFound (LookupError)              there is no such row (404)
    ├── AlreadyExists                       there is such a row already (409, or 412)
    ├── BatchFailed                         one of several operations failed: see ``.index``
    ├── SharingViolation                    others have the name open, and do not share it (409)
    ├── DeletePending                       the name goes with its last handle (409)
    ├── ConcurrencyError (StaleDataError)   somebody else changed the rows first: see ``.entries``
    │   ├── PreconditionFailed              ... and the caller had demanded a version (HTTP 412)
    │   ├── LinkGone                        ... and removed a many-to-many link; without entries
    │   └── WouldOverwrite                  ... and a retry wants the same value once more (409)
    ├── LeaseHeld                           somebody else holds the row, or the name (412, or 409)
    ├── LeaseLost                           the lease that was named is not in force (412, or 409)
    ├── UnguardedStatement                  a statement that goes around the version was forbidden
    ├── NotWritten (StaleDataError)         nobody was first; a trigger, rule or policy kept it
    ├── QueueError                          of a queue: see optilock.queue.errors
    ├── CommitOutcomeUnknown                the connection was lost inside COMMIT; nobody can tell
    └── CannotMerge                         a field policy found no value that keeps both changes

What a client of HTTP got wrong is in :mod:`optilock.errors`: the second to the eighth
line. ``LeaseHeld`` and ``LeaseLost`` are in :mod:`optilock.leases.errors`; names that are open have
more errors of their own in :mod:`optilock.shares.errors`. Every error can be pickled, with its
notes and, if that can be pickled too, its cause. No message holds SQL, a secret, or a column value
of a row besides its key and versions.

A conflict has three sides, and an :class:`Entry` carries all of them::

    original   what this session had read
    current    what this session wants to store
    database   what is stored now, by somebody else

It is a value: no session, no lazy loading, safe to pickle, to log, or to hand to another task. Its
``repr`` has no values of columns, and ``as_dict()``, which ``json.dumps`` takes, has them only
where they are asked for: ``as_dict(values=True)``.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from sqlalchemy.orm.exc import StaleDataError

from optilock.serialize import ReadOnly, as_json, plus, who_changed

__all__ = [
    "AlreadyExists",
    "BadEntity",
    "BadPrecondition",
    "BatchFailed",
    "CannotMerge",
    "CommitOutcomeUnknown",
    "ConcurrencyError",
    "ConditionNotCompared",
    "ConfigurationError",
    "LinkGone",
    "NotFound",
    "NotWritten",
    "OptilockError",
    "PreconditionFailed",
    "PreconditionRequired",
    "SeparateUnitWarning",
    "UnguardedStatement",
    "UnguardedStatementWarning",
    "WouldOverwrite",
]

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Kind = Literal["updated", "deleted"]
Action = Literal["update", "delete", "verify"]


class OptilockError(Exception):
    """Root of everything optilock raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args, pickled_state(self))


class ConfigurationError(OptilockError, ValueError):
    """A mapping, an option or a call that cannot work; the message says what to write instead."""


@dataclass(frozen=True)
class Computed:
    """Stands for a SQL expression (``page.views = Page.views + 1``), whose value is not known."""

    attribute: str

    def __repr__(self) -> str:
        return f"<computed by the database: {self.attribute}>"


@dataclass(frozen=True, eq=True)
class Entry(Generic[T]):
    """A row that another transaction changed or deleted after this one had read it."""

    model: type[T]
    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: tuple[Any, ...]
    #: What the other writer did: ``"updated"`` or ``"deleted"``.
    kind: Kind
    #: What we tried: ``"update"``, ``"delete"`` or ``"verify"``.
    action: Action
    #: Attribute -> value as this session had loaded it, the version included.
    original: Mapping[str, Any]
    #: Attribute -> value as this session wants it.
    current: Mapping[str, Any]
    #: Attribute -> stored value, every column; ``None`` when the row is gone.
    database: Mapping[str, Any] | None
    #: The part of ``current`` that this session changed, never the version.
    changes: Mapping[str, Any]
    #: Attributes that both sides changed to different values; never the version or ignored ones.
    #: Where each side changed some of what belongs together, all that either side changed of it.
    conflicting: frozenset[str] = field(default_factory=frozenset)
    #: The attribute that holds the version, ``None`` for a token without a column.
    token: str | None = None
    #: Attributes of ``CompareValues`` that are stored with other values than we had read.
    compared: frozenset[str] = field(default_factory=frozenset)
    #: Of columns that writers add to (``__version_commutes__``): how much we add to what is stored,
    #: whatever a resolver decides about the other columns.
    added: Mapping[str, Any] = field(default_factory=dict)
    #: The version in ``original`` was demanded (``expect``, ``if_match``), and not read.
    demanded: bool = False

    def __post_init__(self) -> None:
        for name in (*_MAPPINGS, "added"):
            value = getattr(self, name)
            if value is not None and type(value) is not ReadOnly:
                object.__setattr__(self, name, ReadOnly(dict(value)))
        for name in ("conflicting", "compared"):
            if type(getattr(self, name)) is not frozenset:
                object.__setattr__(self, name, frozenset(getattr(self, name)))

    def __hash__(self) -> int:
        return hash((self.model, self.identity))

    def __reduce__(self) -> tuple[Any, ...]:
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        return (Entry, tuple(dict(v) if isinstance(v, ReadOnly) else v for v in values))

    def __repr__(self) -> str:
        return f"<Entry of {self.describe()}>"

    def apply_to(self, obj: T) -> T:
        """Set our changes on a fresh object of the same row, and return it.

        Of columns that belong together (``__merge_together__``) and conflict, all are set. Raises
        ``ConfigurationError``, before anything is set, when a change is a SQL expression, or when
        one of these columns was never loaded. To columns that writers add to, as much is added.
        """
        unknown = self.conflicting - self.current.keys()
        if unknown:
            raise ConfigurationError(
                f"{self.model.__name__}.{', '.join(sorted(unknown))} was never loaded, and belongs"
                " together with what was changed: decide anew on the fresh object."
            )
        wanted = {**{name: self.current[name] for name in self.conflicting}, **self.changes}
        for name, value in wanted.items():
            if isinstance(value, Computed):
                raise ConfigurationError(
                    f"{self.model.__name__}.{name} was set to a SQL expression, which an entry"
                    " cannot carry: assign the expression to the fresh object yourself."
                )
        # The object may change its values in place; the entry must not change with them.
        for name, value in copy.deepcopy(wanted).items():
            total = plus(getattr(obj, name), self.added[name]) if name in self.added else None
            setattr(obj, name, value if total is None else total)
        return obj

    def as_dict(self, *, values: bool = False) -> dict[str, Any]:
        """The row and what both sides did, for ``json.dumps``: names, key and versions.

        Nothing else is shown of the row, unless ``values`` are asked for, all of them.
        """
        told = {
            "model": self.model.__name__,
            "identity": as_json(self.identity),
            "kind": self.kind,
            "action": self.action,
            "changed": sorted(self.changes),
            "conflicting": sorted(self.conflicting),
            "compared": sorted(self.compared),
            "versions": self._versions_by_side(),
        }
        if values:
            told.update({name: as_json(getattr(self, name)) for name in _MAPPINGS})
        return told

    def _versions_by_side(self) -> dict[str, Any]:
        token = self.token
        if token is None:
            return {}
        sides = {"original": self.original, "database": self.database or {}}
        return {side: as_json(of[token]) for side, of in sides.items() if token in of}

    def describe(self) -> str:
        """One line for people: the row, what both sides did, which columns, which versions."""
        text = f"{self.row}: we tried to {self.action} it, {self._what_happened()}"
        if self.conflicting:
            stored = self.database or {}
            text += f"; {who_changed(self.conflicting, self.changes, self.original, stored)}"
        elif self.changes:
            text += f"; we changed {', '.join(sorted(self.changes))}"
        known = [part for part in (self._versions(), self._values_compared()) if part]
        return text + (f" ({'; '.join(known)})" if known else "")

    @property
    def row(self) -> str:
        """Class and key, for messages: ``Page 7``."""
        key = self.identity[0] if len(self.identity) == 1 else self.identity
        return f"{self.model.__name__} {key!r}"

    def _what_happened(self) -> str:
        if self.kind == "updated":
            return "it is in another version" if self.demanded else "it was updated"
        # Who knows no more of a row than its key and its version has perhaps never seen it.
        if len(self.original) > len(self.identity) + (self.token is not None):
            return "it was deleted"
        return "it is not there: it was deleted, or there never was such a row"

    def _versions(self) -> str:
        if self.token is None or self.token not in self.original:
            return ""
        ours, stored = self.original[self.token], (self.database or {}).get(self.token)
        if self.compared and self.database is not None and ours == stored:
            return f"the version is still {ours!r}"
        known = f"version {ours!r} was demanded" if self.demanded else f"we read version {ours!r}"
        return known if self.database is None else f"{known}, stored is {stored!r}"

    def _values_compared(self) -> str:
        if not self.compared:
            return ""
        return f"stored with another value than we read: {', '.join(sorted(self.compared))}"


_MAPPINGS = ("original", "current", "database", "changes")


class ConcurrencyError(OptilockError, StaleDataError):
    """Another writer was first.

    ``entries`` holds every conflicting row of the flush as plain values. It is empty only in
    ``LinkGone``, and when the database itself ended the transaction and no row of the unit has
    moved since (write skew, a predicate that changed). Running the unit again answers both.

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
        super().__init__(message if message is not None else self._describe())

    _happened = "changed by another transaction after this one had read {them}"
    _refused = "Your edits were not written."
    #: What can be done about a row that is stored; and about one that is gone, by what was tried.
    _advice = (
        "Refresh the objects and apply the edits again,"
        " set on_conflict= to a resolver (merge_fields, client_wins, store_wins), or run the"
        " whole unit of work again with optilock.retry."
    )
    _advice_if_gone: ClassVar[Mapping[Action, str]] = {
        "update": "A row that is gone cannot be refreshed: expunge its object, set"
        " on_conflict=client_wins, which inserts the row again, or run the whole unit of work"
        " again with optilock.retry.",
        "delete": "A row that is gone needs no delete: say on_delete=OnDelete.IGNORE_GONE.",
        "verify": "What was decided with a row that is gone has to be decided without it: run the"
        " whole unit of work again.",
    }

    def _describe(self) -> str:
        """What was tried, on which rows, why it usually happens, and what to do next."""
        entries = self.entries
        if not entries:
            return _NO_ROW
        lines = [entry.describe() for entry in entries[:_SHOWN]]
        if len(entries) > _SHOWN:
            lines.append(f"... and {len(entries) - _SHOWN} more")
        one = len(entries) == 1
        happened = self._happened.format(them="it" if one else "them")
        rows = "1 row was" if one else f"{len(entries)} rows were"
        advice = " ".join(dict.fromkeys(self._advice_about(entry) for entry in entries))
        return f"{rows} {happened}:\n  " + "\n  ".join(lines) + f"\n{self._refused} {advice}"

    def _advice_about(self, entry: Entry[Any]) -> str:
        return self._advice if entry.database is not None else self._advice_if_gone[entry.action]

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.entries, self.args[0]), pickled_state(self))

    def as_dict(self, *, values: bool = False) -> dict[str, Any]:
        """The conflict for ``json.dumps``; values of columns only if ``values`` are asked for."""
        entries = [entry.as_dict(values=values) for entry in self.entries]
        return {"error": type(self).__name__, "message": self.args[0], "entries": entries}


class PreconditionFailed(ConcurrencyError):
    """The row is not the version that the caller demanded. Never transient, never resolved.

    RFC 9110 section 15.5.13 (412 Precondition Failed).
    """

    status = 412
    #: The tag that the row has now, where :mod:`optilock.entities` has looked at it.
    etag: str | None = None
    _happened = "not in the version that was demanded"
    _refused = "Your edits were not written, because they were meant for that version."
    _advice = "Read the row again, decide anew, and demand the version that you have seen then."
    _advice_if_gone = dict.fromkeys(
        ("update", "delete", "verify"),
        "There is no row to read again: tell so whoever demanded it (404), or insert a new one.",
    )


class WouldOverwrite(ConcurrencyError):
    """A later attempt of a retry wanted the same value as one before it, over another's change.

    The value was not made from what was read: whoever it is from has seen what an earlier attempt
    had read, ``original`` of the entry, and not what is stored now, ``database``. It is never
    transient, and no retry runs it again, whatever its ``on=`` says.
    """

    _happened = "changed by somebody else, and a later attempt wanted the same again"
    _refused = "Nothing was written over that change."
    _advice = (
        "Show what is stored to whoever the value is from, and take the answer with its version"
        " (etag_of, expect). If the last writer is to win, say overwrite(obj) of the row,"
        ' on_conflict=client_wins, or repeat_values="overwrite" of the retry.'
    )


class NotWritten(OptilockError, StaleDataError):
    """A row is as it was read, and the database did not write it.

    A trigger, a rule, or a policy keeps it: PostgreSQL's row-level security may let a user read a
    row and not write it. Nobody else was first, so it is no ``ConcurrencyError``, and running the
    work again would meet the same. It is a ``StaleDataError``, which is what SQLAlchemy raises.

    HTTP 403 (Forbidden, RFC 9110 section 15.5.4).
    """

    status = 403


class LinkGone(ConcurrencyError):
    """Link rows that were to be taken away were not there: somebody else has removed them.

    Another writer was first, so it is a ``ConcurrencyError``. No version is involved, and nobody's
    edit is lost, so it has no entries, and no resolver is asked. Everything else of the flush is
    written and the transaction is alive: commit to accept it, or roll back.

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
        said = (  # SQLAlchemy's own words come first
            f"{verb.upper()} statement on table '{table}' expected to {verb} {count} row(s);"
            f" Only {found} were matched. Somebody else has removed {_which(self.links, found)}"
            " before. Everything else of the flush is written and the transaction is alive: commit"
            " to accept it, roll back, or say on_delete=OnDelete.IGNORE_GONE."
        )
        super().__init__(message=said)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.table, self.links, self.found, self._verb), pickled_state(self))


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
    """The same statement, where the program is only warned of it."""


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


def preceded_by(error: E, line: object) -> E:
    """The same error; its message now begins with this line, as SQLAlchemy's does."""
    error.args = (f"{line}\n{error.args[0]}", *error.args[1:])
    return error


def pickled_state(error: BaseException) -> dict[str, Any]:
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
_NO_ROW = (
    "The database ended the transaction because of a concurrent change, and none of the rows of"
    " this unit has another version now: the transactions depended on each other's reads. Run the"
    " whole unit of work again."
)


# -- mistakes and misses of a client: each error has its HTTP status -------------------------------
#
# ``PreconditionFailed`` (412) is above, because it is a conflict.


class BadPrecondition(OptilockError, ValueError):
    """A condition that a client has sent cannot be read, or names no version; nothing was written.

    The message is one for the client: it holds at most one character of what was sent. ``status``
    is 400 (Bad Request), or 428 (Precondition Required, RFC 6585 section 3) where no version was
    named at all.
    """

    status: int
    #: The same for a client that knows nothing of the program: no name of a class or a function.
    detail: str | None = None

    def __init__(self, message: str, status: int = 400) -> None:
        self.status = status
        super().__init__(message)


class PreconditionRequired(BadPrecondition):
    """A write that needs a condition was asked for without one; nothing was sent.

    RFC 6585 section 3 (428 Precondition Required).
    """

    def __init__(self, message: str, status: int = 428) -> None:
        super().__init__(message, status)


class ConditionNotCompared(OptilockError):
    """A client has sent a condition, and the program would have written without comparing it.

    An error of the program: nothing was stored. HTTP 501 (Not Implemented): this resource has no
    conditions, so the client may send the request without one, and not again as it is.
    """

    status = 501


class BadEntity(OptilockError, ValueError):
    """A client has sent values that its row cannot have; nothing was sent.

    ``names`` are the attributes that it is about. HTTP 400 (Bad Request).
    """

    status = 400
    names: tuple[str, ...]
    #: The same for a client that knows nothing of the program: no name of a class or a function.
    detail: str | None = None

    def __init__(
        self, message: str, names: Iterable[str] = (), *, detail: str | None = None
    ) -> None:
        self.names = tuple(names)
        if detail is not None:
            self.detail = f"{detail} Nothing was stored."
        super().__init__(message)


class NotFound(OptilockError, LookupError):
    """There is no row with this key, whatever version was demanded of it.

    RFC 9110 section 13.2.1 (404 Not Found, before any condition).
    """

    status = 404
    model: type[Any]
    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: tuple[Any, ...]

    def __init__(self, model: type[Any], identity: tuple[Any, ...]) -> None:
        self.model, self.identity = model, identity
        super().__init__(
            f"There is no {_named(model, identity)}: it was never stored, or somebody has deleted"
            " it. Nothing was written. To make it, use insert(), insert_or_replace() or"
            " insert_or_merge() of optilock.entities."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.model, self.identity), pickled_state(self))


class AlreadyExists(OptilockError):
    """There is a row with this key already.

    ``status`` is 409 (Conflict), or 412 (Precondition Failed) where ``If-None-Match: *`` was
    demanded.
    """

    status: int
    model: type[Any]
    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: tuple[Any, ...]
    #: Attribute -> stored value; ``None`` if the row has gone again.
    database: Mapping[str, Any] | None
    #: The tag that the row has now.
    etag: str | None = None

    def __init__(
        self,
        model: type[Any],
        identity: tuple[Any, ...],
        database: Mapping[str, Any] | None = None,
        status: int = 409,
    ) -> None:
        self.model, self.identity, self.status = model, identity, status
        self.database = None if database is None else dict(database)
        super().__init__(
            f"{_named(model, identity)} is there already, so it was not inserted. Choose another"
            " key; or read the row, and write it with replace() or merge() of optilock.entities in"
            " the version that you have read."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.model, self.identity, self.database, self.status
        return (type(self), given, pickled_state(self))


class BatchFailed(OptilockError):
    """One of several operations failed, and none of them was written.

    ``index`` is its place among them, from 0, ``status`` the HTTP status of the ``cause``.
    """

    index: int
    cause: Exception

    def __init__(self, index: int, cause: Exception) -> None:
        self.index, self.cause = index, cause
        super().__init__(
            f"Operation {index} of the transaction failed, so none of its operations was written:"
            f" {cause}"
        )

    @property
    def status(self) -> int | None:
        """Of the cause; ``None`` where it has none."""
        return getattr(self.cause, "status", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.index, self.cause), pickled_state(self))


def _named(model: type[Any], identity: tuple[Any, ...]) -> str:
    return f"{model.__name__} {(identity[0] if len(identity) == 1 else identity)!r}"
