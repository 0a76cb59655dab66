"""The units of work, and the attempt of a retry, that run in this thread or task.

A context variable alone would not do: a child task and a worker thread get a copy of it, and would
write into a session that belongs to their parent. So each entry has its owner, and a copy in
another thread or task finds nothing::

    running = enter_unit(sessions, unit)
    find_unit(sessions, UnitOfWork)  # the unit; None in a child task or another thread
    inside_unit()                    # True; False there
    leave_unit(running)
    attempt_number()                 # 1; 2 in the attempt after a conflict

A unit that was left is gone from every copy, too. ``leave_unit`` may be called from another context
than ``enter_unit`` (generators of web frameworks do that).
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar
from weakref import ref

from optilock._watched.guard.running_attempts import RunningAttempt, attempt_here

U = TypeVar("U")


class _Thread(threading.local):
    """An object for each thread."""

    def __init__(self) -> None:
        self.mark = object()


_thread = _Thread()


@dataclass(eq=False)
class RunningUnit:
    """One unit of work between its begin and its end."""

    key: object
    unit: object | None
    owner: object


_unit_of: Callable[[RunningUnit], object] = attrgetter("unit")
_units: ContextVar[tuple[RunningUnit, ...]] = ContextVar("optilock_units", default=())


def enter_unit(key: object, unit: object) -> RunningUnit:
    """Note that ``unit`` runs here on ``key`` (the session factory it was opened with)."""
    running = RunningUnit(key, unit, _here())
    _units.set((*filter(_unit_of, _units.get()), running))
    return running


def leave_unit(running: RunningUnit) -> None:
    """End the unit in every copy of the context; ending it twice does nothing."""
    running.unit = running.key = None  # the next unit drops the entry


def find_unit(key: object, kind: type[U]) -> U | None:
    """Return the innermost unit of this ``kind`` that runs here on ``key``."""
    for running in reversed(units_here()):
        if running.key is key and isinstance(running.unit, kind):
            return running.unit
    return None


def units_here() -> list[RunningUnit]:
    """Return the units that run here, the outermost first."""
    here = _here()
    return [one for one in _units.get() if one.unit is not None and one.owner is here]


def units_around() -> list[object]:
    """Return the units that run here, or in the threads and tasks that have begun this one."""
    return [one.unit for one in _units.get() if one.unit is not None]


def inside_unit() -> bool:
    """Return whether a unit of work runs here, on any sessions."""
    return any(map(_unit_of, _units.get())) and bool(units_here())


@contextmanager
def outside_units() -> Iterator[None]:
    """Hide the units and the attempt that run here from what the block calls."""
    units, attempt = _units.set(()), attempt_here.set(None)
    try:
        yield
    finally:
        attempt_here.reset(attempt)
        _units.reset(units)


def begin_attempt(
    number: int, started: float, name: str | None = None
) -> tuple[RunningAttempt, RunningAttempt | None]:
    """Begin an attempt here; return it and the outer one, for :func:`end_attempt`."""
    begun, around = RunningAttempt(number, started, _here(), name), attempt_here.get()
    attempt_here.set(begun)
    return begun, around


def end_attempt(over: RunningAttempt, around: RunningAttempt | None) -> None:
    """End the attempt and make the outer one the current one again."""
    over.over()
    attempt_here.set(around)


def current_attempt() -> RunningAttempt | None:
    """Return the attempt that runs here; ``None`` without a retry."""
    found = attempt_here.get()
    return found if found is not None and found.owner is _here() else None


def attempt_number() -> int:
    """Return the number of the attempt that runs here, from 1; 1 without a retry.

    For a session that reads from a standby: the attempt after a conflict reads from the primary,
    because the standby may still return the old row::

        class Routing(Session):
            def get_bind(self, mapper=None, *, clause=None, **options):
                writes = self._flushing or isinstance(clause, (Update, Delete, Insert))
                return primary if writes or attempt_number() > 1 else standby
    """
    attempt = current_attempt()
    return 1 if attempt is None else attempt.number


def _here() -> object:
    """Return an object for the task, or for the thread where no task runs.

    The object is a weak reference: ids are reused, and a context must not keep its own task alive.
    Inside SQLAlchemy's ``run_sync`` the task is still the one that called it.
    """
    if _get_running_loop() is None:
        return _thread.mark
    task = asyncio.current_task()
    return _thread.mark if task is None else ref(task)
