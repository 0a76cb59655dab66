"""Who rolls out a table: one at a time, by a row that says so and that ends by itself.

The row stands in a table of its own beside the one that gets its version, ``optilock_rollout_of_``
and its name, which the roll-out makes first and drops when it is over. A lock of the session would
be left behind on a pooler's connection, and would not be seen on another node of a cluster; a row
is seen by everybody, whoever's connection it came by.

* It is claimed for :data:`TERM` seconds, by the server's clock, and claimed on between two
  transactions of the roll-out. So a roll-out that was killed blocks the next one for so long at
  most.
* A statement may take longer than that, if it goes through a whole table. For its time the row is
  locked as well (:meth:`Claim.locked`), and who cannot have the row does not take it.
* Whoever is refused is told which process has it, on which host, and since when.
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

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.schema import CreateTable, DropTable

from optilock.conditions.condition import Clock, later
from optilock.dialects import database_of
from optilock.dialects.migrations import Target, Ways
from optilock.errors import OptilockError
from optilock.tokens.timestamp import UtcDateTime

__all__ = ["PREFIX", "TERM", "Claim", "claim_for", "claim_of"]

#: What the names of these tables begin with; autogenerate leaves them alone.
PREFIX = "optilock_rollout_of_"
#: The longest name that every database takes.
_LONGEST = 63
#: Seconds that a claim lasts; it is claimed on after a third of that.
TERM = 15.0


class Holder(NamedTuple):
    """What the row says."""

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
    """The right to roll out one table, on the connection of whoever works."""

    def __init__(self, name: str, row: Table) -> None:
        #: For messages.
        self.name = name
        self.row = row
        self.holder = secrets.token_hex(16)
        self._again = 0.0

    # -- each of these is one transaction of the caller's -----------------------------------------

    def is_there(self, connection: Connection) -> bool:
        return inspect(connection).has_table(self.row.name, schema=self.row.schema)

    def is_left(self, connection: Connection) -> bool:
        """Is the table there though nobody works?"""
        if not self.is_there(connection):
            return False
        there = self.read(connection)
        return there is None or not there.runs

    def make(self, connection: Connection) -> None:
        """The table, unless it is there."""
        if not self.is_there(connection):
            with suppress(IntegrityError):  # PostgreSQL, where somebody makes it at the same time
                connection.execute(CreateTable(self.row, if_not_exists=True))

    def take(self, connection: Connection) -> None:
        """Claim the row.

        Raises:
            OptilockError: somebody else has it.
        """
        there = self.read(connection)
        if there is None:
            self._insert(connection)
        elif there.runs:
            raise OptilockError(there.sentence(self.name))
        there = self.read(connection, lock=True)
        if there is None or there.runs:
            raise self._taken(connection)
        self._write(connection, since=Clock(), process=_process(connection), holder=self.holder)

    def read(self, connection: Connection, *, lock: bool = False) -> Holder | None:
        """Who has it, or had it last; to ``lock`` it, unless somebody else has."""
        row = self.row.c
        question = select(row.holder, row.process, row.since, row.until, Clock().label("now"))
        if lock:
            question = question.with_for_update(skip_locked=True)
        found = connection.execute(question).first()
        return None if found is None else Holder(*found)

    def keep(self, connection: Connection) -> None:
        """Claim it on, for a whole term.

        Raises:
            OptilockError: somebody else has taken it.
        """
        if not self._write(connection, self.row.c.holder == self.holder):
            raise self._lost()

    def free(self, connection: Connection) -> None:
        """Let the next one have it at once."""
        mine = self.row.c.holder == self.holder
        connection.execute(self.row.update().where(mine).values(until=self.row.c.since))

    def drop(self, connection: Connection) -> None:
        """The table goes. To be done by who holds the row, or another's claim would go with it."""
        connection.execute(DropTable(self.row, if_exists=True))

    # -- who works ---------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Is it time to claim it on?"""
        return time.monotonic() >= self._again

    @contextmanager
    def locked(self, beside: Connection | None) -> Iterator[None]:
        """Lock the row for the time of a statement that may outlast the term.

        On a connection beside the one that works, because MariaDB commits before it changes a
        table. ``None``: the database has one lock for all, and the statement has that.
        """
        if beside is None:
            yield
            return
        mine = select(self.row.c.id).where(self.row.c.holder == self.holder)
        try:
            if beside.execute(mine.with_for_update()).first() is None:
                raise self._lost()
            yield
        finally:
            with suppress(DBAPIError):
                beside.rollback()

    # -- the row -----------------------------------------------------------------------------------

    def _insert(self, connection: Connection) -> None:
        """A row that nobody holds; whoever comes at the same time makes the same."""
        insert = database_of(connection.dialect).insert_if_absent(self.row)
        assert insert is not None
        before = {"id": 1, "holder": "", "process": "", "since": Clock()}
        connection.execute(insert.values(**before, until=later(Clock(), -1000)))

    def _write(self, connection: Connection, *mine: Any, **values: Any) -> bool:
        until = later(Clock(), round(1000 * TERM))
        began = time.monotonic()
        written = connection.execute(self.row.update().where(*mine).values(until=until, **values))
        self._again = began + TERM / 3
        return bool(written.rowcount)

    def _taken(self, connection: Connection) -> OptilockError:
        there = self.read(connection)
        if there is None:
            return OptilockError(f"Another roll-out of {self.name} is just ending: run this again.")
        return OptilockError(there.sentence(self.name))

    def _lost(self) -> OptilockError:
        return OptilockError(
            f"This roll-out of {self.name} was not heard of for {TERM:g} seconds, and another one"
            " has taken its place. What was done stays done, and the other one goes on from there."
        )


def claim_for(connection: Connection, ways: Ways, target: Target) -> Claim:
    """The claim of a table that was looked at: one, by whichever name and schema it was found."""
    table = target.table
    return claim_of(table.name, table.schema or ways.current_schema(connection))


def claim_of(table: str, schema: str | None) -> Claim:
    """The claim of this table, which nobody holds yet."""
    name = f"{PREFIX}{table}"
    if len(name.encode()) > _LONGEST:
        name = f"{PREFIX}{hashlib.sha256(table.encode()).hexdigest()[:32]}"
    row = Table(
        name,
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("holder", String(32), nullable=False),
        Column("process", String(200), nullable=False),
        Column("since", UtcDateTime(), nullable=False),
        Column("until", UtcDateTime(), nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
    )
    return Claim(table, row)


def _process(connection: Connection) -> str:
    """Ours, and the number of our connection on its server, for people who look for it."""
    number = database_of(connection.dialect).number_of(connection.connection.driver_connection)
    of_the_server = "" if number is None else f", connection {number} of the server"
    return f"process {os.getpid()} on {socket.gethostname()}{of_the_server}"[:200]
