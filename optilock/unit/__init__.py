"""Units of work: how one is opened, which options it has, and which one is running.

:mod:`~optilock.unit.units` and :mod:`~optilock.unit.async_unit` open a unit, which ends in spite of
:mod:`~optilock.unit.cancellation`, or make :mod:`~optilock.unit.functions` into units. By its
:mod:`~optilock.unit.membership` it joins one of the :mod:`~optilock.unit.running_units`, or has a
:mod:`~optilock.unit.transaction` of its own, over :mod:`~optilock.unit.sessions` that are made as
the caller's factory makes them. Its :mod:`~optilock.unit.options` are checked once, and
:mod:`~optilock.unit.old_options` warn. An option is
one of the :mod:`~optilock.unit.parts`, such as :mod:`~optilock.unit.isolation` or the
:mod:`~optilock.unit.conditions` that each row needs. With one of the
:mod:`~optilock.unit.strategies`, a unit locks rows in its :mod:`~optilock.unit.reading`, by the
:mod:`~optilock.unit.heat` of their :mod:`~optilock.unit.conflicts`, and does without
:mod:`~optilock.unit.refused_locks`, and without all of them around
:mod:`~optilock.unit.second_sessions`. In fewer :mod:`~optilock.unit.round_trips`, its last writes
go with COMMIT, and :mod:`~optilock.unit.outcomes` are what an error of COMMIT means.
:mod:`~optilock.unit.retries` run the whole unit again, after waits of random
:mod:`~optilock.unit.durations`, if its function is :mod:`~optilock.unit.repeatable`. A failed
attempt leaves rows and perhaps its transaction to the :mod:`~optilock.unit.next_attempt`, and its
:mod:`~optilock.unit.failures` are reported when no attempt follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optilock.coroutines import load_of_asyncio
from optilock.old_paths import load_renamed
from optilock.unit.conditions import ignore_conditions, require_conditions
from optilock.unit.durations import Seconds
from optilock.unit.heat import forget_hot_rows
from optilock.unit.isolation import Isolation
from optilock.unit.options import (
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
