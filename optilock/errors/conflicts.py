"""Conflicts with other writers, and the rows that they carry.

A conflict has three sides, and an :class:`Entry` carries all of them::

    original   the values that this session had read
    current    the values that this session wants to store
    database   the values that are stored now, by another transaction

It is a value: no session, no lazy loading, safe to pickle, to log, or to hand to another task. Its
``repr`` has no values of columns, but author and time of the last change, if the row's class
declares them (``__version_author__``, ``__version_time__``). ``as_dict()``, which ``json.dumps``
takes, has them only on request: ``as_dict(values=True)``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from sqlalchemy.orm.exc import StaleDataError

from optilock.errors.base import (
    ConfigurationError,
    OptilockError,
    pickled_state,
    row_name,
    short_text,
)
from optilock.serialize import ReadOnly, as_json, describe_changes, exact_sum

T = TypeVar("T")
Kind = Literal["updated", "deleted"]
Action = Literal["update", "delete", "verify"]

#: The table of the versions of scopes.
SCOPES = "optilock_scopes"
_MAPPINGS = ("original", "current", "database", "changes")
#: Rows that a message lists.
_SHOWN = 5


@dataclass(frozen=True)
class Computed:
    """A placeholder for a SQL expression (``page.views = Page.views + 1``) of unknown value."""

    attribute: str

    def __repr__(self) -> str:
        return f"<computed by the database: {self.attribute}>"


@dataclass(frozen=True, eq=True)
class Entry(Generic[T]):
    """A row that another transaction changed or deleted after this one had read it."""

    model: type[T]
    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: tuple[Any, ...]
    #: The other writer's change. ``"updated"`` or ``"deleted"``.
    kind: Kind
    #: This session's attempt. ``"update"``, ``"delete"`` or ``"verify"``.
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
    #: Of columns that belong together, all that either side changed, if each changed some.
    conflicting: frozenset[str] = field(default_factory=frozenset)
    #: The attribute that holds the version, ``None`` for a token without a column.
    token: str | None = None
    #: Attributes of ``CompareValues`` that are stored with other values than we had read.
    compared: frozenset[str] = field(default_factory=frozenset)
    #: Of columns that writers add to (``__version_commutes__``): how much we add to the stored
    #: value, for every decision of a resolver about the other columns.
    added: Mapping[str, Any] = field(default_factory=dict)
    #: The version in ``original`` was demanded (``expect``, ``if_match``), and not read.
    demanded: bool = False
    #: The name of the table that stands for the row: the one with the version, or the base table.
    table: str = field(default="", compare=False)
    #: Row-level security is active for the row's tables, so a missing row may be hidden.
    maybe_hidden: bool = False

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

    @property
    def changed_by(self) -> Any:
        """The author of the stored row's last change, by the class's ``__version_author__``.

        ``None``: the class declares no such attribute, the row is gone, or the column is NULL.
        """
        return self._stored_in("__version_author__")

    @property
    def changed_at(self) -> Any:
        """The time of that change, by the class's ``__version_time__``; ``None`` likewise."""
        return self._stored_in("__version_time__")

    def _stored_in(self, option: str) -> Any:
        name = getattr(self.model, option, None)
        return None if name is None or self.database is None else self.database.get(name)

    def apply_to(self, obj: T) -> T:
        """Set our changes on a fresh object of the same row, and return it.

        Conflicting columns that belong together (``__merge_together__``) are all set. Columns that
        writers add to are increased by our difference.

        Raises:
            ConfigurationError: a change is a SQL expression, or a column that belongs together
                with a changed one was never loaded. Nothing was set.
        """
        unknown = self.conflicting - self.current.keys()
        if unknown:
            raise ConfigurationError(
                f"{self.model.__name__}.{', '.join(sorted(unknown))} was never loaded, and belongs"
                " together with a changed column. Decide again on the fresh object."
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
            total = exact_sum(getattr(obj, name), self.added[name]) if name in self.added else None
            setattr(obj, name, value if total is None else total)
        return obj

    def as_dict(self, *, values: bool = False) -> dict[str, Any]:
        """Return the row and both sides' changes for ``json.dumps``: names, key and versions.

        Author and time of the last change stand there if the class declares them.
        ``values=True`` adds all values of the row.
        """
        shown = {
            "model": self.model.__name__,
            "identity": as_json(self.identity),
            "kind": self.kind,
            "action": self.action,
            "changed": sorted(self.changes),
            "conflicting": sorted(self.conflicting),
            "compared": sorted(self.compared),
            "versions": self._versions_by_side(),
        }
        if self.maybe_hidden:
            shown["maybe_hidden"] = True
        last = {"changed_by": self.changed_by, "changed_at": self.changed_at}
        shown.update((name, as_json(value)) for name, value in last.items() if value is not None)
        if values:
            shown.update({name: as_json(getattr(self, name)) for name in _MAPPINGS})
        return shown

    def _versions_by_side(self) -> dict[str, Any]:
        token = self.token
        if token is None:
            return {}
        sides = {"original": self.original, "database": self.database or {}}
        return {side: as_json(of[token]) for side, of in sides.items() if token in of}

    def describe(self) -> str:
        """Return one line for people: the row, both sides' changes, the columns, the versions."""
        text = f"{self.row}: we tried to {self.action} it, {self._what_happened()}"
        if self.conflicting:
            stored = self.database or {}
            text += f"; {describe_changes(self.conflicting, self.changes, self.original, stored)}"
        elif self.changes:
            text += f"; we changed {', '.join(sorted(self.changes))}"
        parts = (self._versions(), self._values_compared(), self._last_change())
        known = [part for part in parts if part]
        return text + (f" ({'; '.join(known)})" if known else "")

    @property
    def is_scope(self) -> bool:
        """Whether it is no row, but a scope whose rows were only read (``verify``, ``expect``).

        ``identity`` has the scope's values then, and ``original`` has them by their attributes.
        """
        return self.table == SCOPES

    @property
    def row(self) -> str:
        """Class and key, for messages: ``Page 7``, or ``Booking.scope(room_id=7)``."""
        if self.is_scope:
            given = ", ".join(f"{name}={short_text(v)}" for name, v in self.original.items())
            return f"{self.model.__name__}.scope({given})"
        return row_name(self.model, self.identity)

    def _what_happened(self) -> str:
        if self.kind == "updated":
            return "it is in another version" if self.demanded else "it was updated"
        # A session with no more of a row than its key and its version has perhaps never seen it.
        hidden = ", or row-level security hides it" if self.maybe_hidden else ""
        if len(self.original) > len(self.identity) + (self.token is not None):
            return f"it was deleted{hidden}"
        return f"it is not there: it was deleted, or there never was such a row{hidden}"

    def _versions(self) -> str:
        if self.token is None or self.token not in self.original:
            return ""
        ours, stored = self.original[self.token], (self.database or {}).get(self.token)
        if self.compared and self.database is not None and ours == stored:
            return f"the version is still {ours!r}"
        known = f"version {ours!r} was demanded" if self.demanded else f"we read version {ours!r}"
        return known if self.database is None else f"{known}, stored is {stored!r}"

    def _last_change(self) -> str:
        by, at = self.changed_by, self.changed_at
        said = "" if by is None else f" by {short_text(by)}"
        said += "" if at is None else f" at {as_json(at)}"
        return said and f"last changed{said}"

    def _values_compared(self) -> str:
        if not self.compared:
            return ""
        return f"stored with another value than we read: {', '.join(sorted(self.compared))}"


_NO_ROW = (
    "The database ended the transaction because of a concurrent change, and none of the rows of"
    " this unit has another version now: the transactions depended on each other's reads. Run the"
    " whole unit of work again."
)


class ConcurrencyError(OptilockError, StaleDataError):
    """Another transaction changed the rows first.

    ``entries`` holds every conflicting row of the flush as plain values. It is empty only in
    ``LinkGone``, and when the database itself ended the transaction and no row of the unit has
    moved since (write skew, a predicate that changed). Running the unit again helps in both cases.

    It is a ``sqlalchemy.orm.exc.StaleDataError``, so handlers written for SQLAlchemy's own
    versioning keep working.
    """

    entries: tuple[Entry[Any], ...]
    #: The listeners of :mod:`optilock.events` have got it as a ``Conflict``.
    reported: bool = False
    #: ``"race"`` of two transactions, or ``"precondition"``, a client's stale version.
    reason: Literal["race", "precondition"] = "race"

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
    #: Advice for a row that is stored; and for one that is gone, by the action that was tried.
    _advice = (
        "Refresh the objects (session.refresh(obj, with_for_update=True)) and apply the edits"
        " again, set on_conflict= to a resolver (merge_fields, client_wins, store_wins), or run"
        " the whole unit of work again with optilock.retry."
    )
    #: No resolver is asked about these rows, and no object was written.
    _advice_if_verified = (
        "Roll back, read the rows again and decide again, as optilock.retry does with the whole"
        " unit of work: no resolver settles a row that was verified or locked."
    )
    _advice_by_key = (
        "Read the rows again, decide again, and send the version that you see then: no resolver"
        " settles a write by key."
    )
    _advice_if_gone: ClassVar[Mapping[Action, str]] = {
        "update": "A row that is gone cannot be refreshed: expunge its object, set"
        " on_conflict=client_wins, which inserts the row again, or run the whole unit of work"
        " again with optilock.retry.",
        "delete": "A row that is gone needs no delete: say on_delete=OnDelete.IGNORE_GONE.",
        "verify": "A decision that used a row which is gone has to be made without it: run the"
        " whole unit of work again.",
    }

    def _describe(self) -> str:
        """Return the message: the rows, the action, the usual reason and the next step."""
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
        if entry.database is None:
            return self._advice_if_gone[entry.action]
        if entry.action == "verify":
            return self._advice_if_verified
        return self._advice_by_key if entry.demanded else self._advice

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.entries, self.args[0]), pickled_state(self))

    def as_dict(self, *, values: bool = False) -> dict[str, Any]:
        """Return the conflict for ``json.dumps``; ``values=True`` adds the values of columns."""
        entries = [entry.as_dict(values=values) for entry in self.entries]
        return {"error": type(self).__name__, "message": self.args[0], "entries": entries}


class PreconditionFailed(ConcurrencyError):
    """The row is not the version that the caller demanded. Never transient, never resolved.

    RFC 9110 section 15.5.13 (412 Precondition Failed).
    """

    status = 412
    reason = "precondition"
    #: The current ETag of the row, if :mod:`optilock.entities` has read it.
    etag: str | None = None
    _happened = "not in the version that was demanded"
    _refused = "Your edits were not written, because they were meant for that version."
    _advice = "Read the row again, decide again, and demand the version that you see then."
    _advice_if_verified = _advice_by_key = _advice
    _advice_if_gone = dict.fromkeys(
        ("update", "delete", "verify"),
        "There is no row to read again: tell the client so (404), or insert a new row.",
    )


class WouldOverwrite(ConcurrencyError):
    """A later attempt of a retry would write an earlier attempt's value over another's change.

    The value was not computed from the row: its author has seen the row that an earlier attempt had
    read (``original`` of the entry), and not the stored one (``database``). The error is never
    transient, and no ``on=`` of a retry runs the unit again.
    """

    _happened = "changed by another transaction, and a later attempt wanted the same again"
    _refused = "Nothing was written over that change."
    _advice = (
        "If a person typed the value, show the stored row to that person, and take the answer with"
        " its version (etag_of, expect). If the program computed it, name its column in"
        ' __version_repeats__ of the class, or write repeat_values="overwrite" for the retry. To'
        " let the last writer win, call overwrite(obj) for the row, or set on_conflict=client_wins."
    )
    _advice_if_verified = _advice_by_key = _advice


class MovedByOwnStatement(ConcurrencyError):
    """An object is older than its row, because a statement of its own transaction has moved that.

    No other transaction was there, and each run would end so. The error is never transient, and no
    ``on=`` of a retry runs the unit again.
    """

    _happened = "changed by a statement of this transaction itself after it had read {them}"
    _advice = (
        "Refresh the object after the statement (session.refresh(obj)) and before the edit; or"
        " write update(Class) without synchronize_session=False in a watched session, whose objects"
        " follow it; or make the change on the object."
    )
    _advice_if_verified = _advice_by_key = _advice
    _advice_if_gone = dict.fromkeys(("update", "delete", "verify"), _advice)


class LinkGone(ConcurrencyError):
    """Link rows that were to be deleted were gone: another transaction has deleted them.

    No version is involved, and no edit is lost, so it has no entries, and no resolver is called.
    Everything else of the flush is written and the transaction is alive: commit to accept it, or
    roll back.

    ``table`` is the name of the link table, ``links`` are the rows to delete, as mappings of column
    keys to values, ``found`` is the number of them that existed. It is transient: a unit that reads
    the link again does not find it, and does not delete it.
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
            f" Only {found} were matched. Another transaction has removed"
            f" {_links_shown(self.links, found)} before. Everything else of the flush is written"
            " and the transaction is alive: commit to accept it, roll back, or set"
            " on_delete=OnDelete.IGNORE_GONE."
        )
        super().__init__(message=said)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.table, self.links, self.found, self._verb), pickled_state(self))


def _links_shown(links: tuple[Mapping[str, Any], ...], found: int) -> str:
    shown = "; ".join(
        ", ".join(f"{name} {value!r}" for name, value in link.items()) for link in links[:_SHOWN]
    )
    if len(links) > _SHOWN:
        shown += f"; and {len(links) - _SHOWN} more"
    if len(links) == 1:
        return f"the link ({shown})"
    return f"{len(links) - found} of these links ({shown})"


class NotWritten(OptilockError, StaleDataError):
    """A row is unchanged since it was read, and the database did not write it.

    A trigger, a rule, or a policy prevents it: PostgreSQL's row-level security may let a user read
    a row and not write it. There is no other writer, so it is no ``ConcurrencyError``, and running
    the work again would fail again. It is a ``StaleDataError``, the class that SQLAlchemy raises.

    HTTP 403 (Forbidden, RFC 9110 section 15.5.4).
    """

    status = 403
