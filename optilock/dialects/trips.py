"""What spares a unit round trips to its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from optilock.dialects.feature import Feature

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
        note_trip: NoteTrip,
    ) -> Any:
        """BEGIN goes with the first statement; what sends COMMIT with the last writes.

        ``None``: the transaction has begun already. An ``interruptible`` unit may be cancelled at
        any time, but not while it waits for these. ``note_trip`` gets the time of a trip. Asked if
        the driver has pipelines.
        """
        return None

    def lacks_pipelines(self, dialect: sa.Dialect) -> str | None:
        """Return why its driver cannot do that; ``None`` if it can."""
        return (
            "BEGIN and COMMIT can go with other statements over psycopg 3 alone"
            f" (postgresql+psycopg://), and this engine has {dialect.name} over {dialect.driver}"
        )
