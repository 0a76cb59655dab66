"""``pipelined=``: units in fewer trips, whose last writes go with COMMIT.

::

    with unit_of_work(SessionLocal, pipelined=True) as session:
        session.get_one(Account, 42).owner = "Ada"
    # BEGIN and SELECT in one trip, UPDATE and COMMIT in another

    with unit_of_work(SessionLocal, pipelined="auto") as session:
        session.get_one(Account, 42).owner = "Ada"
    # the same where the server is far away, and a plain unit elsewhere

The last write goes with COMMIT. Four places do that, in this order
(``docs/decisions/fewer-round-trips.md``):

1. This module puts an :class:`~optilock._watched.session.record.Ending` on the session's record,
   and lets the last flush run inside ``session.commit()`` (:func:`flush_inside_commit`), after the
   listeners of ``before_commit``, so that only the end follows the flush.
2. :mod:`optilock._watched.guard.batch` defers the rows of the flush.
3. :mod:`optilock._watched.guard.batch` hands the deferred rows to the Ending, if
   nothing was sent before them in this flush. Otherwise they are sent as usual.
4. ``optilock/dialects/postgresql/last_writes.py`` has the Ending, over the ``line.py`` of a
   connection of psycopg and its ``cursors.py``.

The results are those without the option, and there are never more trips. If anything comes after
the last flush, COMMIT is sent separately. BEGIN still goes with the first statement, except where a
listener has begun the transaction, where the session is bound to a ``Connection``, and in two
phases.

**Where it pays** (``"auto"``). A pool's :class:`TripTime` is learned from trips with BEGIN: of
every unit while the server is far away, and otherwise of one unit in :data:`PROBE`, which sends
only BEGIN along. The last :data:`LATEST` trips decide. COMMIT goes along only where a plain unit
would store the same. Engines that cannot do it have plain units.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.orm import Session

from optilock._mapped import facts, place_of
from optilock._mapping.original_values import edit_that_counts
from optilock._undocumented.flushes import (
    is_opened_by_session,
    listeners_of,
    stored_states_to_flush,
)
from optilock._watched.guard.promises import can_check_last, hold_by_locks
from optilock._watched.rows.stored import MOST_CHECKED
from optilock._watched.scopes.transaction import has_scopes_to_end
from optilock._watched.session.connections import binds_of_sessions
from optilock._watched.session.record import record_of
from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.unit.durations import Seconds, in_seconds
from optilock.unit.parts import Part

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def _began_here(session: Session, connection: Connection) -> bool:
    """Return whether the session itself has opened the only phase of this transaction."""
    transaction = session.get_transaction()
    if session.twophase or transaction is None:
        return False
    return is_opened_by_session(transaction, connection)


#: Whether a unit takes fewer round trips. ``"auto"`` does if its server is far away.
Pipelined = bool | Literal["auto"]
AUTO: Final = "auto"


def check_pipelined(value: Any) -> None:
    """Refuse any other value.

    Raises:
        ConfigurationError: the value is not True, False or "auto".
    """
    if not (isinstance(value, bool) or value == AUTO):
        raise ConfigurationError(
            f'pipelined={value!r} is unknown: write True; False; or "auto", for engines that can'
            " do it and are far away."
        )


class PipelinedPart(Part, option="pipelined"):
    """The part that sends BEGIN and COMMIT with statements, always or where the server is far."""

    def __init__(self, asked: Pipelined) -> None:
        self._if_far = asked == AUTO

    def opened(self, sessions: Any) -> None:
        if not self._if_far:
            refuse_drivers(sessions)

    def connected(self, session: Session, connection: Connection) -> None:
        trip = trip_time_of(connection.engine) if self._if_far else None
        if self._if_far and (trip is None or not trip.next_unit()):
            return
        dialect = connection.dialect
        database = database_of(dialect)
        if trip is None:
            database.trips.refuse_pipeline(dialect)
        if not _began_here(session, connection):
            return
        ending = database.trips.pipelined(
            connection,
            interruptible=dialect.is_async,
            note_trip=None if trip is None else trip.note,
        )
        if trip is None or trip.is_far:
            record_of(session).ending = ending

    def after(self, session: Session, error: BaseException | None) -> None:
        record_of(session).ending = None


#: Listeners to these may send something after the last flush.
_AFTER_WRITES = (
    "before_commit",
    "after_flush",
    "after_flush_postexec",
    "pending_to_persistent",
    "persistent_to_deleted",
)
_OUR_OWN = f"{__name__.partition('.')[0]}."


def flush_inside_commit(session: Session, parts: Iterable[Part]) -> bool:
    """Let the last flush run inside ``session.commit()`` if only COMMIT can follow it.

    Returns False, and the unit flushes before, for parts with a ``before_commit`` of their own,
    promises (``expect``, ``verify``) of rows that are neither locked nor checked in the last trip,
    scopes to move or to check, and the application's listeners to :data:`_AFTER_WRITES`, which may
    add other statements.
    """
    known = record_of(session)
    if known.ending is None or len(known.connections) != 1:
        return False
    if not (hold_by_locks(session) or _ends_with_checks(session)):
        return False
    if known.conditions is not None and known.conditions.is_ignored:
        return False
    if has_scopes_to_end(session):
        return False
    if _may_send_more(session, parts):
        return False
    known.announce_last_flush()
    return True


def _ends_with_checks(session: Session) -> bool:
    """Return whether the last flush changes rows, and few other promised rows are checked with it.

    A check of its own would wait for a lock without a limit where a cancelled task waits for it.
    """
    if not can_check_last(session):
        return False
    changed = filter(edit_that_counts, stored_states_to_flush(session))
    written = {place_of(state) for state in changed if facts(state.mapper).guarded}
    others = (record_of(session).promises or {}).keys() - written
    return bool(written) and len(others) <= MOST_CHECKED


def _may_send_more(session: Session, parts: Iterable[Part]) -> bool:
    """Return whether a part or a listener may send statements after the last flush."""
    for part in parts:
        if type(part).before_commit is not Part.before_commit:
            return True
    for name in _AFTER_WRITES:
        for listener in listeners_of(session, name):
            if not str(listener.__module__).startswith(_OUR_OWN):
                return True
    return False


#: An attribute of factories and engines: no driver of theirs is refused.
_NOT_REFUSED = "_optilock_pipelines"


def refuse_drivers(sessions: Any) -> None:
    """Ask the databases of a session factory, or of an engine, once.

    Engines that the factory does not name, or gets later, are checked when they connect.

    Raises:
        ConfigurationError: a driver cannot do it.
    """
    if hasattr(sessions, _NOT_REFUSED):
        return
    for bind in binds_of_sessions(sessions):
        database_of(bind.dialect).trips.refuse_pipeline(bind.dialect)
    with suppress(AttributeError):  # an AsyncEngine takes none
        setattr(sessions, _NOT_REFUSED, True)


# -- how far away a server is ----------------------------------------------------------------------

#: Seconds of a trip with BEGIN: from the first on units take fewer trips, below the second they do
#: not any more. On a socket it is 0.0001, and two trips fewer pay from 0.0002 to 0.0003 on.
FAR, NEAR = 0.0005, 0.0003
#: Of so many trips all must be long for a server that is far, and half of them short for one that
#: is near.
LATEST = 8
#: Of so many units near the server, one measures a trip.
PROBE = 64
#: An attribute of a pool: the trip time of its server; ``None`` if its driver has no pipelines.
_TRIP = "_optilock_trip"

_UNKNOWN: Any = object()

_log = logging.getLogger("optilock")


class TripTime:
    """The time of a round trip to the server of a pool, from the trips of its units.

    Only a long way makes all of the latest trips long, since other things make some of them longer.
    In a busy process a trip is longer than the way, so it does not show that a server is far.

    Threads share it without a lock: each attribute is replaced as a whole, and what two threads
    note at the same time may count once.
    """

    def __init__(self, given: float | None = None) -> None:
        self.is_far = given is not None and given >= FAR
        self._is_given = given is not None
        self._latest: tuple[float, ...] = ()
        #: Units until one measures a trip.
        self._left = 0

    def next_unit(self) -> bool:
        """Return whether the next unit sends BEGIN with its first statement."""
        if self.is_far or self._is_given:
            return self.is_far
        if self._left > 0:
            self._left -= 1
            return False
        self._left = PROBE - 1
        return True

    def note(self, seconds: float, busy: float) -> None:
        """Note a trip, in which this process was ``busy`` for so many seconds."""
        is_long, was_far = seconds >= FAR, self.is_far
        if self._is_given or (is_long and busy > seconds / 2):
            return
        latest = self._latest = (*self._latest, seconds)[-LATEST:]
        if is_long and not was_far:
            self._left = 0  # the next unit measures, too
        if len(latest) < LATEST:
            return
        half = sorted(latest)[LATEST // 2 - 1]  # so many are as short
        if (half < NEAR) if was_far else (min(latest) >= FAR):
            self.is_far = not was_far
            _log.info(_CHANGED, "the usual" if was_far else "fewer", min(latest) * 1000)


_CHANGED = "units with pipelined='auto' take %s round trips: one takes %.2f ms"


def trip_time_of(engine: Engine | AsyncEngine) -> TripTime | None:
    """Return the trip time of the engine's pool; ``None`` if its driver has no pipelines."""
    known = engine.pool.__dict__
    found: TripTime | None = known.get(_TRIP, _UNKNOWN)
    if found is _UNKNOWN:
        found = known.setdefault(_TRIP, TripTime() if _has_pipelines(engine.dialect) else None)
    return found


def _has_pipelines(dialect: Dialect) -> bool:
    try:
        database_of(dialect).trips.refuse_pipeline(dialect)
    except ConfigurationError:
        return False
    return True


def set_trip_time(engine: Engine | AsyncEngine, seconds: Seconds | None) -> None:
    """Give units with ``pipelined="auto"`` the trip time of an engine's pool. For tests.

    They measure nothing from here on: with 0 they are plain units, and with 0.001 they take fewer
    trips, if the engine can. With None, or when the pool is disposed, they learn it again.

    Raises:
        ConfigurationError: it is no duration.
    """
    known = engine.pool.__dict__
    if seconds is None:
        known.pop(_TRIP, None)
        return
    given = in_seconds("seconds", seconds)
    known[_TRIP] = TripTime(given) if _has_pipelines(engine.dialect) else None
