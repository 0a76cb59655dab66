"""Which units of work, and which attempt of a retry, are running here and now.

"Here" is the thread or the task that opened them. A context variable alone would not do: a child
task and a worker thread get a copy of it, and would write into a session that belongs to their
parent. So each entry knows its owner, and a copy in other hands finds nothing::

    running = enter(sessions, unit)
    find(sessions, UnitOfWork)       # the unit; None in a child task or another thread
    inside_unit()                    # True; False there
    leave(running)
    attempt_number()                 # 1; 2 in the attempt after a conflict

A unit that was left is gone from every copy, too. ``leave`` may be called from another context
than ``enter`` (generators of web frameworks do that).
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import _get_running_loop
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar
from weakref import ref

from optilock.watched.guard.repeats import RunningAttempt, attempt_here

U = TypeVar("U")


class _Thread(threading.local):
    """Each thread has a mark of its own."""

    def __init__(self) -> None:
        self.mark = object()


_thread = _Thread()


@dataclass(eq=False)
class Running:
    """One unit of work between its begin and its end."""

    key: object
    unit: object | None
    owner: object


_unit_of: Callable[[Running], object] = attrgetter("unit")
_units: ContextVar[tuple[Running, ...]] = ContextVar("optilock_units", default=())


def enter(key: object, unit: object) -> Running:
    """Remember that ``unit`` runs here on ``key`` (the session factory it was opened with)."""
    running = Running(key, unit, _here())
    _units.set((*filter(_unit_of, _units.get()), running))
    return running


def leave(running: Running) -> None:
    """The unit has ended, everywhere; leaving it twice does nothing."""
    running.unit = running.key = None  # the entry goes with the next one


def find(key: object, kind: type[U]) -> U | None:
    """The innermost unit of this ``kind`` that runs here on ``key``."""
    for running in reversed(_ours()):
        if running.key is key and isinstance(running.unit, kind):
            return running.unit
    return None


def opened_with() -> list[object]:
    """What the units that run here were opened with, the outermost first."""
    return [running.key for running in _ours()]


def inside_unit() -> bool:
    """Does a unit of work run here, on whatever sessions?"""
    return any(map(_unit_of, _units.get())) and bool(_ours())


def begin_attempt(number: int, started: float) -> tuple[RunningAttempt, RunningAttempt | None]:
    """An attempt begins here; gives it, and the one around it, for :func:`end_attempt`."""
    begun, around = RunningAttempt(number, started, _here()), attempt_here.get()
    attempt_here.set(begun)
    return begun, around


def end_attempt(over: RunningAttempt, around: RunningAttempt | None) -> None:
    """The attempt is over, and the one around it is the current one again."""
    over.over()
    attempt_here.set(around)


def current_attempt() -> RunningAttempt | None:
    """The attempt that runs here; ``None`` without a retry."""
    found = attempt_here.get()
    return found if found is not None and found.owner is _here() else None


def attempt_number() -> int:
    """The number of the attempt that runs here, from 1; 1 where nothing is run again.

    For a session that reads from a standby: the attempt after a conflict reads from the primary, or
    it might get the same old row again::

        class Routing(Session):
            def get_bind(self, mapper=None, *, clause=None, **options):
                writes = self._flushing or isinstance(clause, (Update, Delete, Insert))
                return primary if writes or attempt_number() > 1 else standby
    """
    attempt = current_attempt()
    return 1 if attempt is None else attempt.number


def _ours() -> list[Running]:
    here = _here()
    return [one for one in _units.get() if one.unit is not None and one.owner is here]


def _here() -> object:
    """Stands for the task, or the thread where no task runs.

    A task is held weakly: numbers are used again, and a context must not keep its own task alive.
    Inside SQLAlchemy's ``run_sync`` the task is still the one that called it.
    """
    if _get_running_loop() is None:
        return _thread.mark
    task = asyncio.current_task()
    return _thread.mark if task is None else ref(task)
