"""The database's clock, which a test can move: for queues, leases and handles.

``CLOCK``                  a SQL expression
``make_clock(engine)``     makes its table
``shift(engine, seconds)`` moves it
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    insert,
    select,
    update,
)

from optilock.tokens.sql_functions import ServerTime, add_milliseconds

__all__ = ["CLOCK", "make_clock", "shift"]

_shift = Table("test_clock", MetaData(), Column("milliseconds", BigInteger))
#: The database's clock, and what a test has added.
CLOCK = add_milliseconds(ServerTime(), select(_shift.c.milliseconds).scalar_subquery())


def make_clock(connection: Connection) -> None:
    _shift.drop(connection, checkfirst=True)
    _shift.create(connection)
    connection.execute(insert(_shift).values(milliseconds=0))


def shift(engine: Engine, seconds: float) -> None:
    with engine.begin() as connection:
        moved = _shift.c.milliseconds + round(seconds * 1000)
        connection.execute(update(_shift).values(milliseconds=moved))
