"""Queues in tests.

``made(engine, **options)``  the tables, and a queue in them, whose clock a test can move
``shift(engine, seconds)``   move that clock (:mod:`tests.support.clock`)
``queue``                    a fixture: a queue that is made so
``bodies(messages)``         what they say
``Asked(engine)``            when statements are sent from now on
``lose_all_connections(database)``  as a failing server does
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from optilock.queue import Message, Queue
from optilock.queue.waiters import LONGEST
from optilock.tables.queue import message_tables
from tests.support.clock import CLOCK, make_clock
from tests.support.clock import shift as shift
from tests.support.waiting import until

__all__ = [
    "CLOCK",
    "Asked",
    "bodies",
    "lose_all_connections",
    "made",
    "make_tables",
    "queue",
    "shift",
]


def make_tables(engine: Engine, *, clock: bool = False, **named: Any) -> None:
    message_tables(**named).messages.metadata.create_all(engine)
    if clock:
        with engine.begin() as connection:
            make_clock(connection)


def made(engine: Engine, name: str = "work", **options: Any) -> Queue:
    make_tables(engine, clock=True)
    return Queue(engine, name, **{"clock": CLOCK, **options})


@pytest.fixture
def queue(engine: Engine) -> Iterator[Queue]:
    with made(engine) as queue:
        yield queue


def bodies(messages: Iterable[Message]) -> list[Any]:
    return [message.body for message in messages]


class Asked:
    """When an engine sends statements, from now on.

    A busy machine is late with both, and sends no more statements for that.
    """

    def __init__(self, engine: Engine) -> None:
        self.times = [time.monotonic()]
        event.listen(
            engine, "before_cursor_execute", lambda *_: self.times.append(time.monotonic())
        )

    def has_looked(self, times: int = 1) -> bool:
        """Whoever is to wait for a message has looked for one."""
        return len(self.times) > times

    def is_silent(self) -> bool:
        """After some statements, none has been sent for longer than any pause of one who asks."""
        return len(self.times) > 1 and time.monotonic() - self.times[-1] > 2 * LONGEST

    def is_seldom(self) -> bool:
        """The last three came a second after another."""
        last = self.times[1:][-3:]
        return len(last) == 3 and all(b - a > 0.9 * LONGEST for a, b in pairwise(last))


def lose_all_connections(database: Any) -> None:
    """End every connection of the database but one of our own, and wait for their end."""
    engine = database.engine()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            )
        else:
            mine = "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
            others = text(f"{mine} AND id <> CONNECTION_ID()")
            for number in connection.scalars(others).all():
                connection.execute(text(f"KILL {number}"))
            until(lambda: not connection.scalars(others).all())
    engine.dispose()
