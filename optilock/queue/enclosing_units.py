"""Calls without ``session=`` inside a unit of work on the same database.

Such a call commits on its own: a message is sent, or is gone, although the unit is rolled back. And
it may wait for a lock that the unit has, while the unit waits for it: on SQLite for the only lock
there is. So it warns, a strict unit refuses it, and it waits for a lock only for a moment.
"""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from optilock._watched.session.record import is_strict, warn_caller
from optilock.dialects import Cause
from optilock.dialects.queue_sql import Messages
from optilock.dialects.transient import cause_of
from optilock.errors import ConfigurationError, SeparateUnitWarning
from optilock.queue.connections import Work
from optilock.unit.membership import find_unit_around
from optilock.unit.running_units import inside_unit

R = TypeVar("R")

#: Milliseconds for which such a call waits for a lock.
_MOMENT = 100


def separate_work(engine: Engine, store: Messages, call: str, work: Work[R]) -> Work[R]:
    """Return ``work`` as it runs without a session.

    Raises:
        ConfigurationError: a strict unit runs here on the same database.
    """
    unit = find_unit_around(engine) if inside_unit() else None
    if unit is None:
        return work
    text = (
        f"{call}() of the queue {store.place.queue!r} was called without session= inside a unit of"
        " work on the same database: it commits on its own, and stays when the unit is rolled"
        " back. Pass the unit's session (session=), so that both are stored or neither is. If two"
        " transactions are meant, pass a connection of your own."
    )
    if is_strict(unit.session):
        raise ConfigurationError(f"{text} The unit is strict, so nothing was changed.")
    warn_caller(text, SeparateUnitWarning)

    def run(connection: Connection, inside: bool) -> R:
        try:
            with store.atomic_within(connection, _MOMENT):
                return work(connection, True)
        except DBAPIError as error:
            if cause_of(error) is not Cause.LOCK_TIMEOUT:
                raise
            raise ConfigurationError(
                f"{text} It waits for a lock here, and if the unit has this lock, for ever: nothing"
                " was changed."
            ) from error

    return run
