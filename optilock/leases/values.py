"""A lease as its holder has it, and what everybody may know of one."""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from optilock.errors import BadPrecondition
from optilock.leases.columns import FAR

__all__ = ["Lease", "LeaseState", "State", "new_id", "read_id", "state_of"]

State = Literal["available", "leased", "expired", "breaking", "broken"]


@dataclass(frozen=True)
class Lease:
    """What the holder has. Whoever knows ``id`` is the holder: it is in no ``repr``."""

    #: The class and the key of the row; or the :class:`~optilock.leases.names.Name`.
    of: Any
    #: 128 random bits. Hand it to nobody but the holder, and write it into no log.
    id: uuid.UUID = field(repr=False)
    #: Grows with every holder. A system outside of the database that remembers the greatest one it
    #: has seen can refuse whoever comes with a smaller one. ``None``: only the id was given.
    fence: int | None = None
    since: datetime | None = None
    #: When it ends by the clock of the database; ``None``: endless, or only the id was given.
    until: datetime | None = None
    #: Seconds until then, when the database said so.
    seconds: float | None = None


@dataclass(frozen=True)
class LeaseState:
    """What everybody may know of the lease on a row, or a name."""

    state: State
    #: The number of the last holder; 0: there was none.
    fence: int
    #: The holder's, or the last holder's; ``None`` where it is available.
    since: datetime | None = None
    #: When it ends, or has ended; ``None``: it is available, or endless.
    until: datetime | None = None
    #: Seconds until nobody holds it any more; ``None``: it is endless.
    seconds: float | None = 0.0


def state_of(row: Any) -> LeaseState:
    """The state, from the columns of a row and the time; ``row`` has them by name."""
    if row["lease_id"] is None or row["lease_until"] is None:
        return LeaseState("available", row["lease_fence"])
    since, until = row["lease_since"], row["lease_until"]
    left = max(0.0, (until - row["now"]).total_seconds())
    if row["lease_length"] is None:
        state: State = "breaking" if left else "broken"
    else:
        state = "leased" if left else "expired"
    if until >= FAR:
        return LeaseState(state, row["lease_fence"], since, None, None)
    return LeaseState(state, row["lease_fence"], since, until, left)


def lease_from(of: Any, row: Any) -> Lease:
    """The holder's lease, from such a row."""
    now = state_of(row)
    return Lease(of, row["lease_id"], now.fence, now.since, now.until, now.seconds)


def new_id() -> uuid.UUID:
    """All 128 bits are random: the version of a UUID would take six."""
    return uuid.UUID(bytes=secrets.token_bytes(16))


def read_id(given: object, call: str) -> uuid.UUID:
    """The id that somebody has sent.

    Raises:
        BadPrecondition: it is none. The message does not say what was sent.
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
