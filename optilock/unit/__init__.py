"""Units of work: how one is opened, which options it has, and which one is running.

===============  ===================================================================================
units            units of work, as context managers
async_unit       the same for async code
functions        a function as a unit
membership       whether a unit joins the running one, or stays separate
running_units    the units that run in this thread or task
transaction      the transaction of a unit: its begin, its COMMIT, its rollback
sessions         its session, made as the caller's factory makes it
options          the options of a unit, checked once
old_options      options that have other names now
parts            an option as a part, whose methods the unit calls
isolation        the parts for levels of isolation, and for units that only read
conditions       the part that refuses changes of stored rows without a condition
strategies       the option ``strategy=``
reading          the queries of a unit with a strategy: which rows they lock
heat             what a process has learned of hot rows
conflicts        the rows of a unit, and what its end shows about them
refused_locks    locks that the database refuses
second_sessions  sessions inside the unit, around which learning locks nothing
round_trips      the option ``pipelined=``: the last writes go with COMMIT
outcomes         the meaning of an error of COMMIT
cancellation     COMMIT and ROLLBACK while the task of an async unit is cancelled
retries          runs the whole unit again
durations        durations, and the random waits between attempts
repeatable       refuses functions that cannot run again
next_attempt     the rows, and perhaps the transaction, that an attempt leaves to the next one
failures         reports of failures after which no attempt follows
===============  ===================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optilock._coroutines import load_of_asyncio
from optilock._old_paths import load_renamed
from optilock.unit.conditions import ignore_conditions, require_conditions
from optilock.unit.durations import Seconds
from optilock.unit.heat import forget_hot_rows
from optilock.unit.isolation import Isolation
from optilock.unit.options import (
    Propagation,
    UnitOptions,
    UnitOptionsWithoutIsolation,
)
from optilock.unit.parts import Part
from optilock.unit.retries import retry, retrying
from optilock.unit.round_trips import Pipelined, set_trip_time
from optilock.unit.running_units import attempt_number
from optilock.unit.strategies import Adaptive, Strategy
from optilock.unit.units import UnitOfWork, repeatable_read, serializable, unit_of_work

if TYPE_CHECKING:
    from optilock.unit.async_unit import AsyncUnitOfWork

__all__ = [
    "Adaptive",
    "AsyncUnitOfWork",
    "Isolation",
    "Part",
    "Pipelined",
    "Propagation",
    "Seconds",
    "Strategy",
    "UnitOfWork",
    "UnitOptions",
    "UnitOptionsWithoutIsolation",
    "attempt_number",
    "forget_hot_rows",
    "ignore_conditions",
    "repeatable_read",
    "require_conditions",
    "retry",
    "retrying",
    "serializable",
    "set_trip_time",
    "unit_of_work",
]


def __getattr__(name: str) -> Any:
    """Load :class:`AsyncUnitOfWork` when it is used: it needs greenlet, which may be absent."""
    if name == "AsyncUnitOfWork":
        return load_of_asyncio(f"{__name__}.async_unit", name)
    return load_renamed(__name__, name)
