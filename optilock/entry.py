"""One conflicting row, as plain values.

A conflict has three sides, and an :class:`Entry` carries all of them::

    original   what this session had read
    current    what this session wants to store
    database   what is stored now, by somebody else

It is a value: no session, no lazy loading, safe to pickle, to log, or to hand to another task.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from optilock.errors import ConfigurationError

__all__ = ["Action", "Computed", "Entry", "Kind"]

T = TypeVar("T")
Kind = Literal["updated", "deleted"]
Action = Literal["update", "delete", "verify"]


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
    conflicting: frozenset[str] = field(default_factory=frozenset)
    #: The attribute that holds the version, ``None`` for a token without a column.
    token: str | None = None

    def __post_init__(self) -> None:
        for name in _MAPPINGS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, MappingProxyType(dict(value)))
        object.__setattr__(self, "conflicting", frozenset(self.conflicting))

    def __hash__(self) -> int:
        return hash((self.model, self.identity))

    def __reduce__(self) -> tuple[Any, ...]:
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        return (Entry, tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values))

    def apply_to(self, obj: T) -> T:
        """Set our changes on a fresh object of the same row, and return it.

        Raises ``ConfigurationError``, before anything is set, when a change is a SQL expression.
        """
        for name, value in self.changes.items():
            if isinstance(value, Computed):
                raise ConfigurationError(
                    f"{self.model.__name__}.{name} was set to a SQL expression, which an entry"
                    " cannot carry: assign the expression to the fresh object yourself."
                )
        # The object may change its values in place; the entry must not change with them.
        for name, value in copy.deepcopy(dict(self.changes)).items():
            setattr(obj, name, value)
        return obj

    def describe(self) -> str:
        """One line for people: the row, what both sides did, which columns, which versions."""
        key = self.identity[0] if len(self.identity) == 1 else self.identity
        text = f"{self.model.__name__} {key!r}: we tried to {self.action} it, it was {self.kind}"
        if self.conflicting:
            text += f"; both sides changed {', '.join(sorted(self.conflicting))}"
        elif self.changes:
            text += f"; we changed {', '.join(sorted(self.changes))}"
        return text + self._versions()

    def _versions(self) -> str:
        if self.token is None or self.token not in self.original:
            return ""
        ours = f" (we read version {self.original[self.token]!r}"
        if self.database is None:
            return ours + ")"
        return ours + f", stored is {self.database.get(self.token)!r})"


_MAPPINGS = ("original", "current", "database", "changes")
