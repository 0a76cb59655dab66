"""What spares a unit round trips to its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from optilock.dialects.feature import Feature
from optilock.errors import ConfigurationError

#: Takes the seconds of a trip, and those of the process on its processors in that time.
NoteTrip = Callable[[float, float], None]


class Trips(Feature):
    """BEGIN and COMMIT that go with other statements, over drivers that can send them together."""

    def describe_once(self, dialect: sa.Dialect) -> None:
        """Let the driver describe the results of optilock's own queries once, if that is slow."""

    def pipelined(
        self,
        connection: sa.Connection,
        *,
        interruptible: bool,
        note_trip: NoteTrip | None = None,
    ) -> Any:
        """BEGIN goes with the first statement; what sends COMMIT with the last writes.

        ``None``: the transaction has begun already. An ``interruptible`` unit may be cancelled at
        any time, but not while it waits for these. With ``note_trip``, which gets the time of a
        trip, COMMIT goes along only where a plain unit would store the same. Asked if the driver is
        not refused.
        """
        return None

    def refuse_pipeline(self, dialect: sa.Dialect) -> None:
        """Raise ``ConfigurationError`` when its driver cannot do that."""
        raise ConfigurationError(
            "pipelined=True sends BEGIN and COMMIT together with statements, which only psycopg 3"
            f" can do (postgresql+psycopg://). This engine has {dialect.name} over"
            f" {dialect.driver}, which waits for the answer to each: use psycopg; or write"
            ' pipelined="auto", which is a plain unit here. Nothing was sent.'
        )
