"""Fewer round trips to PostgreSQL, over psycopg."""

from __future__ import annotations

from sqlalchemy import Connection, Dialect

from optilock._undocumented.connections import skips_rollback
from optilock.dialects.postgresql.cursors import describe_once, open_line
from optilock.dialects.postgresql.last_writes import LOCK_TIMEOUT, LastWrites
from optilock.dialects.postgresql.line import has_pipelines
from optilock.dialects.trips import NoteTrip, Trips
from optilock.errors import ConfigurationError


class PostgreSQLTrips(Trips):
    describe_once = staticmethod(describe_once)

    def pipelined(
        self,
        connection: Connection,
        *,
        interruptible: bool,
        note_trip: NoteTrip | None = None,
    ) -> LastWrites | None:
        limit = LOCK_TIMEOUT if interruptible else None
        line = open_line(connection, limit=limit, note_trip=note_trip)
        return None if line is None else LastWrites(line, careful=note_trip is not None)

    def refuse_pipeline(self, dialect: Dialect) -> None:
        if dialect.driver != "psycopg":
            super().refuse_pipeline(dialect)
        if not has_pipelines():
            raise ConfigurationError(
                "pipelined=True needs psycopg over libpq 14 or newer, which has pipelines. Install"
                " psycopg[binary], or leave pipelined=True out. Nothing was sent."
            )
        if skips_rollback(dialect):
            raise ConfigurationError(
                "pipelined=True does not go with create_engine(skip_autocommit_rollback=True): it"
                " brings the driver into its autocommit mode for the length of the unit, and"
                " SQLAlchemy would then send no ROLLBACK. Leave one of them out. Nothing was sent."
            )
