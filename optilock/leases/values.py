"""Leases, their public states, and the policy of a class.

::

    class Page(Leasable, Versioned, Base):
        __lease_policy__ = LeasePolicy(shortest=5, longest=3600)

    class Folder(Leasable, Versioned, Base):
        __lease_policy__ = LeasePolicy(guards=("delete",))    # edits by others go on

    class Price(Versioned, Base):
        __lease_policy__ = LeasePolicy(all_rows=Name("prices"))    # one lease for all of them

====================================  ==========================================================
exclusive write, shared read          the default: others read, only the holder writes
exclusive write, exclusive read       ``exclusive_reads=True``
shared write, exclusive read          ``guards=(), exclusive_reads=True``
====================================  ==========================================================

Only reads by :func:`optilock.leases.read` check a lease; a query does not.
"""

from __future__ import annotations

import math
import secrets
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from sqlalchemy import ColumnElement, String

from optilock._columns.values import can_hold
from optilock.errors import BadPrecondition, ConfigurationError
from optilock.tokens.sql_functions import ServerTime

State = Literal["available", "leased", "expired", "breaking", "broken"]


@dataclass(frozen=True)
class Lease:
    """A lease, as its holder has it. A program that knows ``id`` is the holder: it is in no
    ``repr``.
    """

    #: The class and the key of the row; or the :class:`~optilock.leases.names.Name`.
    of: Any
    #: 128 random bits. Give it to the holder only, and write it into no log.
    id: uuid.UUID = field(repr=False)
    #: Grows with every holder. A system outside of the database can remember the greatest one, and
    #: refuse calls with a smaller one. ``None``: only the id was given.
    fence: int | None = None
    since: datetime | None = None
    #: When it ends by the clock of the database; ``None``: endless, or only the id was given.
    until: datetime | None = None
    #: Seconds until then, at the time of the database's answer.
    seconds: float | None = None


@dataclass(frozen=True)
class LeaseState:
    """The public state of the lease on a row, or a name."""

    state: State
    #: The number of the last holder; 0 if there was none.
    fence: int
    #: The holder's, or the last holder's; ``None`` where it is available.
    since: datetime | None = None
    #: When it ends, or has ended; ``None``: it is available, or endless.
    until: datetime | None = None
    #: Seconds until it has no holder any more; ``None``: it is endless.
    seconds: float | None = 0.0
    #: The label of the holder, or of the last one; ``None``: it gave none, the lease was broken, or
    #: it is available. It is public.
    holder: str | None = None


def state_of(row: Any) -> LeaseState:
    """Return the state, from a row with the columns and the time by name."""
    if row["lease_id"] is None or row["lease_until"] is None:
        return LeaseState("available", row["lease_fence"])
    since, until = row["lease_since"], row["lease_until"]
    left = max(0.0, (until - row["now"]).total_seconds())
    if row["lease_length"] is None:
        state: State = "breaking" if left else "broken"
    else:
        state = "leased" if left else "expired"
    fence, holder = row["lease_fence"], row["lease_holder"]
    if until >= FAR:
        return LeaseState(state, fence, since, None, None, holder)
    return LeaseState(state, fence, since, until, left, holder)


def lease_from(of: Any, row: Any) -> Lease:
    """Return the holder's lease, from such a row."""
    now = state_of(row)
    return Lease(of, row["lease_id"], now.fence, now.since, now.until, now.seconds)


def new_id() -> uuid.UUID:
    """Return an id with 128 random bits: the version of a UUID would take six."""
    return uuid.UUID(bytes=secrets.token_bytes(16))


def read_id(given: object, call: str) -> uuid.UUID:
    """Return the id that was sent.

    Raises:
        BadPrecondition: it is not an id. The message does not repeat it.
    """
    if isinstance(given, Lease):
        return given.id
    if isinstance(given, uuid.UUID):
        return given
    try:
        if isinstance(given, str) and len(given) <= 64:
            return uuid.UUID(given)
    except ValueError:
        pass
    raise BadPrecondition(
        f"{call}() got no id of a lease: send the 32 hexadecimal digits as they were received, with"
        " or without hyphens. Nothing was sent."
    ) from None


#: Characters of a holder's label.
LONGEST_HOLDER = 200


def read_holder(given: object, call: str) -> str | None:
    """Return the holder's label that was given.

    Raises:
        ConfigurationError: it is not a text that every database keeps as it is.
    """
    if given is None:
        return None
    if isinstance(given, str) and given and can_hold(given, String(LONGEST_HOLDER)):
        return str.__str__(given)  # of a text that is an enum, its value
    raise ConfigurationError(
        f"leases.{call}() takes as holder= a text of 1 to {LONGEST_HOLDER} characters without NUL"
        " and half surrogates, or None. It is public: name a person, a host or a process, and no"
        " secret. Nothing was sent."
    )


#: The end of an endless lease. No server makes it another day in its own time zone.
FAR = datetime(9999, 12, 30, tzinfo=UTC)


# -- policies --------------------------------------------------------------------------------------

#: The duration of a lease that ends when it is released or broken.
ENDLESS = math.inf

Guarded = Literal["update", "delete"]
_CLOCK = ServerTime()


class Named(Protocol):
    """A :class:`~optilock.leases.names.Name`, whose leases have a policy themselves."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, eq=False)
class LeasePolicy:
    """How long leases of a class may last, in seconds, and what they guard.

    Raises:
        ConfigurationError: the limits or ``guards`` are not valid.
    """

    shortest: float = 15
    longest: float = 60
    #: A lease may be ``ENDLESS``.
    endless: bool = True
    #: The longest time that a holder gets when its lease is broken.
    longest_break: float = 60
    #: Writes that only the holder may do.
    guards: tuple[Guarded, ...] = ("update", "delete")
    #: Only the holder may :func:`~optilock.leases.read`.
    exclusive_reads: bool = False
    #: The current time in UTC, as a SQL expression. Tests may replace the database's clock.
    clock: ColumnElement[Any] = _CLOCK
    #: The name whose lease guards all rows of the class (:mod:`optilock.leases.condition`). The
    #: :class:`~optilock.leases.names.Names` of the name has the limits of that lease.
    all_rows: Named | None = None

    def __post_init__(self) -> None:
        limits = (self.shortest, self.longest, self.longest_break)
        if not all(is_seconds(one) for one in limits) or not 0 < self.shortest <= self.longest:
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
        """Return the milliseconds of a duration; 0 for an endless one.

        Raises:
            ConfigurationError: it is not a duration, or beyond the limits.
        """
        if duration == ENDLESS and self.endless:
            return 0
        asked = milliseconds(duration)
        if asked is None or not self.shortest * 1000 <= asked <= self.longest * 1000:
            also = ", or leases.ENDLESS" if self.endless else ""
            raise ConfigurationError(
                f"duration must be {self.shortest:g} to {self.longest:g} seconds or a timedelta"
                f" here{also}. To change the limits, change __lease_policy__. Nothing was sent."
            )
        return asked

    def break_after(self, after: object) -> int | None:
        """Return the milliseconds that a holder still gets; ``None``: the rest of its lease.

        Raises:
            ConfigurationError: it is not a time, or beyond the limit.
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
    """Return the milliseconds of a duration; ``None`` if it is not one, or endless."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if not is_seconds(duration):
        return None
    return round(duration * 1000)  # type: ignore[operator]


#: Seconds. Every database can store a time that is so much later.
_MOST = 10**11


def is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST
