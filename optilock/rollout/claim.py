"""The claim of a roll-out: one row per table, so that one process at a time rolls it out.

The row is in a table of its own, ``optilock_rollout_of_`` and the name of the table that gets its
version. The roll-out creates this table first and drops it at the end. A session lock would be left
behind on a pooler's connection, and other nodes of a cluster would not see it. Every connection
sees a row.

* A claim lasts :data:`TERM` seconds, by the server's clock, and is renewed between two transactions
  of the roll-out. So a killed roll-out blocks the next one at most for that time.
* A statement that goes through a whole table may take longer. During it the row is locked as well
  (:meth:`Claim.locked`), and a process that cannot lock the row does not take it.
* The error for the second process names the first one, its host and its start.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.schema import CreateTable, DropTable

from optilock.dialects import database_of
from optilock.dialects.migrations import Target, Ways
from optilock.errors import OptilockError
from optilock.tokens.sql_functions import ServerTime, add_milliseconds
from optilock.tokens.timestamp import UtcDateTime

#: The prefix of these tables' names; autogenerate ignores them.
PREFIX = "optilock_rollout_of_"
#: The longest name that every database takes.
_LONGEST = 63
#: Seconds that a claim lasts; it is renewed after a third of them.
TERM = 15.0


class Holder(NamedTuple):
    """The content of the row."""

    holder: str
    process: str
    since: datetime
    until: datetime
    #: The server's time when the row was read.
    now: datetime

    @property
    def runs(self) -> bool:
        return self.until >= self.now

    def sentence(self, table: str) -> str:
        return (
            f"Another roll-out of {table} is running: {self.process}, since"
            f" {self.since:%Y-%m-%d %H:%M:%S} UTC. Two would only wait for each other: let it"
            " finish, or end it; this one then goes on where it stood. If that process was killed,"
            f" its claim ends by itself within {TERM:g} seconds."
        )


class Claim:
    """The right to roll out one table, on the connection that works."""

    def __init__(self, name: str, row: sa.Table) -> None:
        #: For messages.
        self.name = name
        self.row = row
        self.holder = secrets.token_hex(16)
        self._due = 0.0

    # -- each method is one transaction of the caller ---------------------------------------------

    def is_there(self, connection: sa.Connection) -> bool:
        return sa.inspect(connection).has_table(self.row.name, schema=self.row.schema)

    def is_left(self, connection: sa.Connection) -> bool:
        """Return whether the table is there though no roll-out is running."""
        if not self.is_there(connection):
            return False
        holder = self.read(connection)
        return holder is None or not holder.runs

    def make(self, connection: sa.Connection) -> None:
        """Create the table, unless it is there."""
        if not self.is_there(connection):
            with suppress(IntegrityError):  # PostgreSQL, if another process creates it as well
                connection.execute(CreateTable(self.row, if_not_exists=True))

    def take(self, connection: sa.Connection) -> None:
        """Claim the row.

        Raises:
            OptilockError: another roll-out has it.
        """
        holder = self.read(connection)
        if holder is None:
            self._insert(connection)
        elif holder.runs:
            raise OptilockError(holder.sentence(self.name))
        holder = self.read(connection, lock=True)
        if holder is None or holder.runs:
            raise self._taken(connection)
        self._write(
            connection, since=ServerTime(), process=_process(connection), holder=self.holder
        )

    def read(self, connection: sa.Connection, *, lock: bool = False) -> Holder | None:
        """Return the last holder; with ``lock``, lock the row unless it is locked already."""
        row = self.row.c
        question = sa.select(
            row.holder, row.process, row.since, row.until, ServerTime().label("now")
        )
        if lock:
            question = question.with_for_update(skip_locked=True)
        found = connection.execute(question).first()
        return None if found is None else Holder(*found)

    def keep(self, connection: sa.Connection) -> None:
        """Renew the claim for a whole term.

        Raises:
            OptilockError: another roll-out has taken it.
        """
        if not self._write(connection, self.row.c.holder == self.holder):
            raise self._lost()

    def free(self, connection: sa.Connection) -> None:
        """End the claim, so that the next roll-out can take it at once."""
        mine = self.row.c.holder == self.holder
        connection.execute(self.row.update().where(mine).values(until=self.row.c.since))

    def drop(self, connection: sa.Connection) -> None:
        """Drop the table. Only the holder of the row may do it: another's claim would be lost."""
        connection.execute(DropTable(self.row, if_exists=True))

    # -- while the roll-out works ------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew the claim."""
        return time.monotonic() >= self._due

    @contextmanager
    def locked(self, second: sa.Connection | None) -> Iterator[None]:
        """Lock the row during a statement that may outlast the term.

        It is locked on a second connection, because MariaDB commits before it changes a table.
        ``None``: the database has a single lock, and the statement has it.
        """
        if second is None:
            yield
            return
        mine = sa.select(self.row.c.id).where(self.row.c.holder == self.holder)
        try:
            if second.execute(mine.with_for_update()).first() is None:
                raise self._lost()
            yield
        finally:
            with suppress(DBAPIError):
                second.rollback()

    # -- the row -----------------------------------------------------------------------------------

    def _insert(self, connection: sa.Connection) -> None:
        """Insert a row without a holder; a process that comes at the same time does the same."""
        insert = database_of(connection.dialect).one_row.insert_if_absent(self.row)
        assert insert is not None
        before = {"id": 1, "holder": "", "process": "", "since": ServerTime()}
        connection.execute(insert.values(**before, until=add_milliseconds(ServerTime(), -1000)))

    def _write(self, connection: sa.Connection, *mine: Any, **values: Any) -> bool:
        until = add_milliseconds(ServerTime(), round(1000 * TERM))
        began = time.monotonic()
        written = connection.execute(self.row.update().where(*mine).values(until=until, **values))
        self._due = began + TERM / 3
        return bool(written.rowcount)

    def _taken(self, connection: sa.Connection) -> OptilockError:
        holder = self.read(connection)
        if holder is None:
            return OptilockError(f"Another roll-out of {self.name} is just ending: run this again.")
        return OptilockError(holder.sentence(self.name))

    def _lost(self) -> OptilockError:
        return OptilockError(
            f"This roll-out of {self.name} was not heard of for {TERM:g} seconds, and another one"
            " has taken its place. What was done stays done, and the other one goes on from there."
        )


def claim_for(connection: sa.Connection, ways: Ways, target: Target) -> Claim:
    """Return the claim of a table: the same one for every name and schema that leads to it."""
    table = target.table
    return claim_of(table.name, table.schema or ways.current_schema(connection))


def claim_of(table: str, schema: str | None) -> Claim:
    """Return the claim of a table, without a holder."""
    name = f"{PREFIX}{table}"
    if len(name.encode()) > _LONGEST:
        name = f"{PREFIX}{hashlib.sha256(table.encode()).hexdigest()[:32]}"
    row = sa.Table(
        name,
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("process", sa.String(200), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("until", UtcDateTime(), nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
    )
    return Claim(table, row)


def _process(connection: sa.Connection) -> str:
    """Return our process and the number of its connection on the server, for messages."""
    watching = database_of(connection.dialect).watching
    number = watching.number_of(connection.connection.driver_connection)
    of_the_server = "" if number is None else f", connection {number} of the server"
    return f"process {os.getpid()} on {socket.gethostname()}{of_the_server}"[:200]
