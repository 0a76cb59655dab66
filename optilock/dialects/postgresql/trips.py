"""Fewer round trips to PostgreSQL, over psycopg."""

from __future__ import annotations

from sqlalchemy import Connection, Dialect

from optilock._undocumented.connections import skips_rollback
from optilock.dialects.postgresql.cursors import describe_once, open_line
from optilock.dialects.postgresql.last_writes import LOCK_TIMEOUT, LastWrites
from optilock.dialects.postgresql.line import has_pipelines
from optilock.dialects.trips import NoteTrip, Trips


class PostgreSQLTrips(Trips):
    describe_once = staticmethod(describe_once)

    def pipelined(
        self,
        connection: Connection,
        *,
        interruptible: bool,
        note_trip: NoteTrip,
    ) -> LastWrites | None:
        limit = LOCK_TIMEOUT if interruptible else None
        line = open_line(connection, limit=limit, note_trip=note_trip)
        return None if line is None else LastWrites(line)

    def lacks_pipelines(self, dialect: Dialect) -> str | None:
        if dialect.driver != "psycopg":
            return super().lacks_pipelines(dialect)
        if not has_pipelines():
            return "psycopg needs libpq 14 or newer for its pipelines: install psycopg[binary]"
        if skips_rollback(dialect):
            return (
                "create_engine(skip_autocommit_rollback=True) does not go with it, because the"
                " driver is in its autocommit mode for the length of the unit, and SQLAlchemy would"
                " then send no ROLLBACK"
            )
        return None
