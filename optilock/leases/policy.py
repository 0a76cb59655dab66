"""What a class says of its leases: how long they last, and what they guard.

::

    class Page(Leasable, Versioned, Base):
        __lease_policy__ = LeasePolicy(shortest=5, longest=3600)

    class Folder(Leasable, Versioned, Base):
        __lease_policy__ = LeasePolicy(guards=("delete",))    # edits by others go on

    class Price(Versioned, Base):
        __lease_policy__ = LeasePolicy(all_rows=Name("prices"))    # one lease for all of them

====================================  ==========================================================
exclusive write, shared read          the default: everybody reads, the holder alone writes
exclusive write, exclusive read       ``exclusive_reads=True``
shared write, exclusive read          ``guards=(), exclusive_reads=True``
====================================  ==========================================================

Reads are asked where they go through :func:`optilock.leases.read`; a query is not asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

from sqlalchemy import ColumnElement

from optilock.conditions.condition import Clock
from optilock.errors import ConfigurationError

__all__ = ["ENDLESS", "LeasePolicy", "milliseconds"]

#: The duration of a lease that ends when it is released or broken.
ENDLESS = math.inf

Guarded = Literal["update", "delete"]
_CLOCK = Clock()


class Named(Protocol):
    """A :class:`~optilock.leases.names.Name`, whose leases have a policy themselves."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, eq=False)
class LeasePolicy:
    """How long leases of a class may last, in seconds, and what they guard.

    Raises:
        ConfigurationError: the limits are no limits, or ``guards`` names something else.
    """

    shortest: float = 15
    longest: float = 60
    #: May a lease be ``ENDLESS``?
    endless: bool = True
    #: The longest time that a holder is given when his lease is broken.
    longest_break: float = 60
    #: What nobody but the holder may do.
    guards: tuple[Guarded, ...] = ("update", "delete")
    #: May nobody but the holder :func:`~optilock.leases.read`?
    exclusive_reads: bool = False
    #: SQL of the time, UTC: the clock of the database, unless a test moves another one.
    clock: ColumnElement[Any] = _CLOCK
    #: The name whose lease guards all rows of the class (:mod:`optilock.leases.condition`). How
    #: long it may last is said by the :class:`~optilock.leases.names.Names` of the name.
    all_rows: Named | None = None

    def __post_init__(self) -> None:
        limits = (self.shortest, self.longest, self.longest_break)
        if not all(_is_number(one) for one in limits) or not 0 < self.shortest <= self.longest:
            raise ConfigurationError(
                f"LeasePolicy(shortest={self.shortest!r}, longest={self.longest!r},"
                f" longest_break={self.longest_break!r}): write seconds, 0 < shortest <= longest"
                " and 0 <= longest_break."
            )
        if not isinstance(self.guards, (tuple, list, set, frozenset)) or any(
            one not in ("update", "delete") for one in self.guards
        ):
            raise ConfigurationError(
                f"LeasePolicy(guards={self.guards!r}): write a tuple of 'update' and 'delete', or"
                " () if a lease guards neither."
            )

    def length(self, duration: object) -> int:
        """The milliseconds of a duration; 0 for an endless one.

        Raises:
            ConfigurationError: it is none, or beyond the limits.
        """
        if duration == ENDLESS and self.endless:
            return 0
        asked = milliseconds(duration)
        if asked is None or not self.shortest * 1000 <= asked <= self.longest * 1000:
            also = ", or leases.ENDLESS" if self.endless else ""
            raise ConfigurationError(
                f"A lease may last {self.shortest:g} to {self.longest:g} seconds here{also}; write"
                f" duration=seconds or a timedelta, or change __lease_policy__. Nothing was sent."
            )
        return asked

    def break_after(self, after: object) -> int | None:
        """The milliseconds that a holder still gets; ``None``: what is left of his lease.

        Raises:
            ConfigurationError: it is no time, or beyond the limit.
        """
        if after is None:
            return None
        asked = milliseconds(after)
        if asked is None or not 0 <= asked <= self.longest_break * 1000:
            raise ConfigurationError(
                f"A lease may be broken after 0 to {self.longest_break:g} seconds here: write"
                " after=seconds or a timedelta, or leave it out. Nothing was sent."
            )
        return asked


def milliseconds(duration: object) -> int | None:
    """Of seconds, or of a ``timedelta``; ``None`` if it is neither, or endless."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if not _is_number(duration):
        return None
    return round(duration * 1000)  # type: ignore[operator]


#: Seconds: a moment that much later is one that every database can store.
_MOST = 10**11


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST
