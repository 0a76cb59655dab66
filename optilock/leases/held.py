"""A lease that is renewed for its holder, until he is done with it or has lost it.

Renewal has a connection of its own, for as long as one UPDATE takes. It waits for nobody: while
somebody has the row locked, perhaps the holder's own transaction, it is left for later, and nobody
else can become the holder meanwhile. A lease that has ended in that time is renewed afterwards,
unless somebody else came first.

A transaction that reads a snapshot (REPEATABLE READ, SERIALIZABLE) would be ended by the database
if the row changed between its begin and its own write of it. So a unit under such a lease
(``parts=[held]``) renews it with its first statement: the row is locked from then on, and nobody
renews it before the transaction is over. It has to write what it writes before the lease ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import Connection, Engine, Select, literal_column, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.leases.errors import LeaseLost
from optilock.leases.operations import lost_on, release_on, renew_on
from optilock.leases.places import Place
from optilock.leases.policy import ENDLESS, milliseconds
from optilock.leases.under import use
from optilock.leases.values import Lease
from optilock.session.connections import connection_apart
from optilock.unit.parts import Part

__all__ = ["Held"]

_log = logging.getLogger("optilock")
#: Called once, with the error, by whoever renews: a thread, or the event loop.
OnLost = Callable[[LeaseLost], object]

#: Of the length of a lease: when it is renewed, and when that is tried again.
_RENEWED_AFTER, _AGAIN_AFTER = 1 / 3, 1 / 20
#: Seconds: the longest wait for another attempt, and for the end of the last one.
_LONGEST, PATIENCE = 1.0, 2.0


class Held(Part):
    """The lease of a ``with`` block; a part of the units that write under it."""

    def __init__(
        self,
        place: Place,
        lease: Lease,
        duration: Any,
        on_lost: OnLost | None,
        on: Collection[type[Any]] | None,
        began: float,
    ) -> None:
        self._place, self._lease, self._on_lost, self._on = place, lease, on_lost, on
        self.length = (milliseconds(duration) or 0) / 1000
        #: By our own clock: it is over if nobody has heard of it since.
        self._ends = began + self.length
        self._error: LeaseLost | None = None

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
        return self._error

    def check(self) -> None:
        """Raise if the lease is lost: to be called before what cannot be taken back.

        Raises:
            LeaseLost: so it is, by what was last heard of it.
        """
        if self._error is not None:
            raise self._error

    def use(self, session: Session) -> None:
        """From here on a watched session writes under the lease: :func:`optilock.leases.use`."""
        use(session, self._lease, on=self._on)

    def begin(self, session: Session) -> None:
        self.use(session)

    def connected(self, session: Session, connection: Connection) -> None:
        """A snapshot must hold the lease as it will be when it is written."""
        if database_of(connection.dialect).reads_snapshot(connection):
            self._renewed(renew_on(connection, self._place, self._lease.id), time.monotonic())

    # -- renewal -----------------------------------------------------------------------------------

    def first_wait(self) -> float:
        return self.length * _RENEWED_AFTER

    def renew_once(self, engine: Engine) -> float:
        """Renew it, if that is possible at once; the seconds until the next attempt.

        Raises:
            LeaseLost: it is lost.
        """
        began, soon = time.monotonic(), min(_LONGEST, self.length * _AGAIN_AFTER)
        try:
            lease = at_once(engine, self._place, self._lease, renew_on)
        except LeaseLost as error:
            self._lose(error)
            raise
        except Exception as error:
            if time.monotonic() >= self._ends:
                lost = LeaseLost(self._place.what, "lost")
                self._lose(lost)
                raise lost from error
            _log.warning("The lease on %s was not renewed, which is tried again", self._place.what)
            return soon
        if lease is None:  # somebody has the row, and so nobody can have become the holder
            return soon
        self._renewed(lease, began)
        return self.first_wait()

    def _renewed(self, lease: Lease, began: float) -> None:
        self._lease, self._ends = lease, began + self.length

    def _lose(self, error: LeaseLost) -> None:
        self._error = error
        if self._on_lost is not None:
            try:
                self._on_lost(error)
            except Exception:
                _log.exception("on_lost= of the lease on %s has raised", self._place.what)

    # -- the end -----------------------------------------------------------------------------------

    def release_once(self, engine: Engine) -> bool:
        """Release it; ``False``: somebody has the row, so it ends by itself unless tried again."""
        if self._error is not None:
            return True
        try:
            return at_once(engine, self._place, self._lease, _released) is not None
        except LeaseLost as error:
            self._error = error
        except Exception:
            _log.warning(
                "The lease on %s was not released: it ends by itself",
                self._place.what,
                exc_info=True,
            )
        return True

    def conclude(self, error: BaseException | None) -> None:
        """Raise what the holder has to know; where another error leaves the block, beside it.

        Raises:
            LeaseLost: the lease was lost before the end of the block.
        """
        if self._error is None:
            return
        if error is None:
            raise self._error
        if error is not self._error:
            error.add_note(f"optilock: {self._error}")


def at_once(
    engine: Engine,
    place: Place,
    lease: Lease,
    do: Callable[[Connection, Place, Any], Any],
) -> Any:
    """Do it on a connection of its own, if that waits for nobody; ``None``: somebody has the row.

    Raises:
        LeaseLost: it is the holder's no more.
    """
    with connection_apart(engine) as connection, connection.begin():
        database = database_of(connection.dialect)
        if database.lock_at_once(connection, _here(place), place.columns.table):
            return do(connection, place, lease.id)
    with connection_apart(engine) as connection:
        why = lost_on(connection, place, lease.id)
    if why is not None:
        raise why
    return None


def _here(place: Place) -> Select[Any]:
    found: Select[Any] = select(literal_column("1")).select_from(place.columns.table)
    keys = zip(place.keys, place.identity, strict=True)
    return found.where(*(key == value for key, value in keys))


def _released(connection: Connection, place: Place, mine: Any) -> bool:
    release_on(connection, place, mine)
    return True


def require_own_connections(engine: Engine) -> None:
    """Refuse an engine whose connections are all the same one.

    Raises:
        ConfigurationError: renewal would be part of the holder's own transaction.
    """
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        raise ConfigurationError(
            "leases.lease() renews on a connection of its own, and this engine has one for all"
            f" ({type(engine.pool).__name__}): use a database in a file or on a server, or"
            " acquire() and renew() by yourself."
        )


def require_end(duration: object) -> None:
    """Refuse an endless lease, which nobody renews.

    Raises:
        ConfigurationError: so it is.
    """
    if duration == ENDLESS:
        raise ConfigurationError(
            "leases.lease() renews the lease, so that it ends by itself when its holder dies: give"
            " it a duration in seconds. An endless one is acquired with acquire()."
        )
