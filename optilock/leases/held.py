"""A lease that is renewed for its holder, until he is done with it or has lost it.

:mod:`optilock.renewal` has how. While somebody has the row locked nobody else can become the
holder; a lease that has ended in that time is renewed afterwards, unless somebody else came first.

A transaction that reads a snapshot (REPEATABLE READ, SERIALIZABLE) would be ended by the database
if the row changed between its begin and its own write of it. So a unit under such a lease
(``parts=[held]``) renews it with its first statement: the row is locked from then on, and nobody
renews it before the transaction is over. It has to write what it writes before the lease ends.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Engine, Select, literal_column, select
from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError
from optilock.leases.errors import LeaseLost
from optilock.leases.names import Place, place_of
from optilock.leases.operations import acquire, lost_on, release_on, renew_on
from optilock.leases.policy import ENDLESS, milliseconds
from optilock.leases.under import use
from optilock.leases.values import Lease
from optilock.renewal.renewed import OnLost, Renewed, at_once, require_own_connections

__all__ = ["Held", "held_from"]


class Held(Renewed):
    """The lease of a ``with`` block; a part of the units that write under it."""

    lost_as = LeaseLost

    def __init__(
        self,
        place: Place,
        lease: Lease,
        duration: Any,
        on_lost: OnLost | None,
        on: Collection[type[Any]] | None,
        began: float,
    ) -> None:
        length = (milliseconds(duration) or 0) / 1000
        super().__init__(f"the lease on {place.what}", length, on_lost, began)
        self._place, self._lease, self._on = place, lease, on

    @property
    def lease(self) -> Lease:
        """As it was last renewed."""
        return self._lease

    @property
    def fence(self) -> int | None:
        """The number of this holder, for systems outside of the database."""
        return self._lease.fence

    @property
    def lost(self) -> LeaseLost | None:
        """What there is to say once the lease is lost."""
        error: LeaseLost | None = self._error
        return error

    def use(self, session: Session) -> None:
        """From here on a watched session writes under the lease: :func:`optilock.leases.use`."""
        use(session, self._lease, on=self._on)

    def begin(self, session: Session) -> None:
        self.use(session)

    # -- how ---------------------------------------------------------------------------------------

    def renew(self, engine: Engine) -> bool:
        began = time.monotonic()
        renewed = self._at_once(engine, self.renew_on)
        if not renewed and self._place.tells_writes:
            self.heard(began)  # nobody can become the holder, nor has anybody
        return renewed

    def end(self, engine: Engine) -> bool:
        return self._at_once(engine, lambda one: release_on(one, self._place, self._lease.id))

    def silence(self) -> LeaseLost:
        return LeaseLost(self._place.what, "lost")

    def renew_on(self, connection: Connection) -> None:
        self._lease = renew_on(connection, self._place, self._lease.id)

    def _at_once(self, engine: Engine, do: Any) -> bool:
        place, mine = self._place, self._lease.id
        table = place.columns.table
        return at_once(engine, _here(place), table, do, lambda one: lost_on(one, place, mine))


def _here(place: Place) -> Select[Any]:
    found: Select[Any] = select(literal_column("1")).select_from(place.columns.table)
    keys = zip(place.keys, place.identity, strict=True)
    return found.where(*(key == value for key, value in keys))


def held_from(
    session: Session,
    of: Any,
    duration: Any,
    if_match: Any,
    on_lost: OnLost | None,
    on: Collection[type[Any]] | None,
) -> tuple[Held, Engine]:
    """Become the holder, in the session's transaction; and the engine by which it is renewed."""
    _require_end(duration)
    place, began = place_of(of, "lease"), time.monotonic()
    engine = place.connection(session).engine
    require_own_connections(engine, "leases.lease", "acquire() and renew()")
    taken = acquire(session, of, duration, if_match=if_match)
    return Held(place, taken, duration, on_lost, on, began), engine


def _require_end(duration: object) -> None:
    """Refuse an endless lease, which nobody renews.

    Raises:
        ConfigurationError: so it is.
    """
    if duration == ENDLESS:
        raise ConfigurationError(
            "leases.lease() renews the lease, so that it ends by itself when its holder dies: give"
            " it a duration in seconds. An endless one is acquired with acquire()."
        )
