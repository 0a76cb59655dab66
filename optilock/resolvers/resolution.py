"""Decisions about a conflict: by a resolver, or by a policy for deletes.

A resolver returns a :class:`Resolution`, and :func:`check_resolution` raises if it cannot be
carried out. An :class:`OnDelete` is the policy for deletes of a row that another transaction
changed or deleted first::

    class Draft(Versioned, Base):
        __on_delete__ = OnDelete.IGNORE_GONE

    unit_of_work(SessionLocal, on_delete=OnDelete.IGNORE_VERSION)
    watch(SessionLocal, on_delete={Draft: OnDelete.IGNORE_VERSION, Invoice: OnDelete.STRICT})

==================  ==============================  ==============================
\\                   another one changed the row     another one deleted the row
==================  ==============================  ==============================
`STRICT`            a conflict                      a conflict
`IGNORE_GONE`       a conflict                      nothing left to do
`IGNORE_VERSION`    deleted all the same            nothing left to do
==================  ==============================  ==============================

A conflict goes to the resolver; without a resolver it is raised as ``ConcurrencyError``. Where the
table has no conflict, no resolver is called. The unit's policy comes first, then the class's, then
``STRICT``.

A delete still carries its version: only a row that missed is read again, so a policy costs nothing
without a conflict. Where the database itself ends the transaction (see
``docs/explanation/isolation.md``) nothing can be ignored. Then the unit runs again, and reads the
rows as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from sqlalchemy import inspect

from optilock._mapped import facts
from optilock.errors import Computed, ConfigurationError, Entry

T = TypeVar("T")
Decision = Literal["write", "overwrite", "keep_database", "reject"]


@dataclass(frozen=True)
class Resolution:
    """A resolver's decision about one entry. Use the four functions below to make one."""

    decision: Decision
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Why it was rejected, in words for people; no column values.
    reason: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.decision not in get_args(Decision):
            raise ConfigurationError(f"{self.decision!r} is not a decision. {_WHAT_TO_RETURN}")
        if not isinstance(self.values, Mapping) or not all(isinstance(k, str) for k in self.values):
            raise ConfigurationError(
                f"Resolution.write() takes a mapping of attribute names to values, not"
                f" {type(self.values).__name__}: write Resolution.write({{'owner': value}})."
            )
        if self.values and self.decision != "write":
            raise ConfigurationError(
                f"Resolution {self.decision!r} takes no values: Resolution.write(values) does."
            )
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    def __hash__(self) -> int:
        return hash((self.decision, frozenset(self.values)))

    def __repr__(self) -> str:
        """Return the names of the attributes that it writes, without values: logs quote it."""
        said = [", ".join(self.values)] if self.values else []
        said += [f"reason={self.reason!r}"] if self.reason is not None else []
        return f"<Resolution: {' '.join([self.decision, *said])}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Resolution, (self.decision, dict(self.values), self.reason))

    @classmethod
    def write(cls, values: Mapping[str, Any] | None = None) -> Resolution:
        """Write these values; all other attributes come from the side that changed them.

        Every attribute in ``entry.conflicting`` must be named; those that belong together are in it
        as one. A deleted row is inserted again; a row that we wanted to delete is kept and written.
        """
        return cls("write", {} if values is None else values)

    @classmethod
    def overwrite(cls) -> Resolution:
        """Do what was tried: our changed columns over theirs, our delete, or an INSERT again.

        Of columns that belong together and conflict, all are ours.
        """
        return cls("overwrite")

    @classmethod
    def keep_database(cls) -> Resolution:
        """Drop our edits and take the stored row."""
        return cls("keep_database")

    @classmethod
    def reject(cls, *, reason: str | None = None) -> Resolution:
        """Let the conflict out as a ``ConcurrencyError``."""
        return cls("reject", reason=reason)


#: A function that settles the conflict of one row.
Resolver = Callable[[Entry[Any]], Resolution | Awaitable[Resolution]]
#: What ``on_conflict=`` takes: a resolver for every class, or one for each of some classes.
OnConflict = Resolver | Mapping[type[Any], Resolver] | None

_WHAT_TO_RETURN = (
    "A resolver returns Resolution.write(values), Resolution.overwrite(),"
    " Resolution.keep_database() or Resolution.reject()."
)


def choose_resolver(on_conflict: OnConflict, model: type[Any]) -> Resolver | None:
    """Return the resolver in ``on_conflict`` for ``model``: the nearest class's, or ``None``."""
    if not isinstance(on_conflict, Mapping):
        return on_conflict
    return nearest(on_conflict, model)


def nearest(by_class: Mapping[type[Any], T], model: type[Any]) -> T | None:
    """Return the value of a mapping of classes for ``model``, or for the nearest class above it."""
    return next((by_class[cls] for cls in model.__mro__ if cls in by_class), None)


def check_classes(option: str, value: Mapping[Any, Any], example: str) -> None:
    """Refuse a mapping with a key that is not a class."""
    for model in value:
        if not isinstance(model, type):
            raise ConfigurationError(
                f"{option} names {model!r}, which is not a class: write {{{example}}}."
            )


def check_resolution(value: Any, entry: Entry[Any]) -> Resolution:
    """Return ``value`` if it can be carried out; raise ``ConfigurationError`` if not."""
    model = entry.model.__name__
    if not isinstance(value, Resolution):
        raise ConfigurationError(
            f"The resolver for {model} returned {type(value).__name__}. {_WHAT_TO_RETURN}"
        )
    if value.decision == "write":
        _check_values(value.values, entry, model)
    return value


def _check_values(values: Mapping[str, Any], entry: Entry[Any], model: str) -> None:
    known = {*entry.original, *entry.current, *(entry.database or ())}
    if (mapper := inspect(entry.model, raiseerr=False)) is not None:
        known.update(facts(mapper).columns)  # those that were never loaded, too
    known.discard(entry.token or "")
    if entry.token in values:
        raise ConfigurationError(
            f"The resolver for {model} wrote {entry.token!r}, which is the version of the row and"
            " is moved by optilock alone: leave it out."
        )
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ConfigurationError(
            f"The resolver for {model} wrote {', '.join(unknown)}, which {model} does not have."
            f" It has: {', '.join(sorted(known))}."
        )
    unnamed = sorted(entry.conflicting - values.keys())
    if unnamed:
        raise ConfigurationError(
            f"The resolver for {model} returned Resolution.write() without {', '.join(unnamed)},"
            " which both sides changed: name every attribute of entry.conflicting, or return"
            " Resolution.reject()."
        )
    for name, value in values.items():
        if isinstance(value, Computed) and entry.current.get(name) != value:
            raise ConfigurationError(
                f"The resolver for {model} wrote {value!r} to {name!r}: a SQL expression can only"
                " be written to the attribute that it was set on."
            )


class OnDelete(Enum):
    """The behaviour of a delete when its row is not as it was read."""

    #: The row must be there, in the version that was read.
    STRICT = "strict"
    #: A row that another transaction has deleted counts as deleted by us.
    IGNORE_GONE = "ignore_gone"
    #: Delete the row in any version; already deleted is fine, too.
    IGNORE_VERSION = "ignore_version"


#: What ``on_delete=`` takes: a policy for every class, or one for each of some classes.
DeletePolicies = OnDelete | Mapping[type[Any], OnDelete] | None


def decide_by_policy(entry: Entry[Any], on_delete: DeletePolicies) -> Resolution | None:
    """Return the policy's decision about a row that missed; ``None`` where it is a conflict."""
    if entry.action != "delete":
        return None
    policy = policy_for(entry.model, on_delete)
    if policy is OnDelete.STRICT:
        return None
    if entry.kind == "deleted":
        return None if entry.maybe_hidden else Resolution.keep_database()
    return Resolution.overwrite() if policy is OnDelete.IGNORE_VERSION else None


def policy_for(model: type[Any], on_delete: DeletePolicies) -> OnDelete:
    """Return the unit's policy, else the class's own, else ``STRICT``."""
    given = nearest(on_delete, model) if isinstance(on_delete, Mapping) else on_delete
    own = getattr(model, "__on_delete__", None)
    return given or (own if isinstance(own, OnDelete) else OnDelete.STRICT)


def check_on_delete(value: Any) -> DeletePolicies:
    """Return ``value``, if ``on_delete=`` can take it; raise ``ConfigurationError`` if not."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return check_policy(value, "on_delete")
    check_classes("on_delete", value, "Draft: OnDelete.IGNORE_GONE")
    for model, policy in value.items():
        check_policy(policy, f"on_delete for {model.__name__}")
    return dict(value)


def check_policy(value: Any, what: str) -> OnDelete:
    """Return ``value``, if it is a policy; raise ``ConfigurationError`` if not."""
    if isinstance(value, OnDelete):
        return value
    raise ConfigurationError(
        f"{what} is {value!r}, which is no policy for deletes: write"
        f" {', '.join(f'OnDelete.{policy.name}' for policy in OnDelete)}."
    )
