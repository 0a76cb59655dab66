"""Queues in tests.

``made(engine, **options)``  the tables, and a queue in them, whose clock a test can move
``shift(engine, seconds)``   move that clock
``queue``                    a fixture: a queue that is made so
``bodies(messages)``         what they say
``lose_all_connections(database)``  as a failing server does
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, insert, select, text, update

from optilock.queue import Message, Queue
from optilock.tables.queue import message_tables
from optilock.tokens.sql_functions import ServerTime, add_milliseconds

__all__ = ["CLOCK", "bodies", "lose_all_connections", "made", "make_tables", "queue", "shift"]

_metadata = MetaData()
_shift = Table("test_clock", _metadata, Column("milliseconds", BigInteger))
#: The database's clock, and what a test has added: a SQL expression.
CLOCK = add_milliseconds(ServerTime(), select(_shift.c.milliseconds).scalar_subquery())


def make_tables(engine: Engine, *, clock: bool = False, **named: Any) -> None:
    message_tables(**named).messages.metadata.create_all(engine)
    if clock:
        _metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(insert(_shift).values(milliseconds=0))


def made(engine: Engine, name: str = "work", **options: Any) -> Queue:
    make_tables(engine, clock=True)
    return Queue(engine, name, **{"clock": CLOCK, **options})


@pytest.fixture
def queue(engine: Engine) -> Iterator[Queue]:
    with made(engine) as queue:
        yield queue


def bodies(messages: Iterable[Message]) -> list[Any]:
    return [message.body for message in messages]


def shift(engine: Engine, seconds: float) -> None:
    with engine.begin() as connection:
        moved = _shift.c.milliseconds + round(seconds * 1000)
        connection.execute(update(_shift).values(milliseconds=moved))


def lose_all_connections(database: Any) -> None:
    """End every connection of the database but one of our own."""
    engine = database.engine()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            )
        else:
            mine = "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
            for number in connection.scalars(text(f"{mine} AND id <> CONNECTION_ID()")).all():
                connection.execute(text(f"KILL {number}"))
    engine.dispose()
