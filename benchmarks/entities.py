"""What does a conditional PUT by key take, in place of SELECT, compare, UPDATE?

A client names the version that it has read, and the new values. The usual way reads the row,
compares its version, changes the object and commits: two statements, and SQLAlchemy's own check in
the second. An entity operation is one statement with the version in its WHERE. Both from the
opening of the session to its end; the same without a transaction (AUTOCOMMIT), and a request that
is refused because its version is an old one; the PUT through FastAPI; and :func:`optilock.apply`,
which reads the object as the usual way does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from time import perf_counter, process_time
from typing import Any

from sqlalchemy import Engine, inspect
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.measure import Timing, interleave
from benchmarks.models import NativeItem, OptilockItem, create
from benchmarks.plan import SHORT, Plan
from benchmarks.servers import Place
from benchmarks.table import Line, RatioLine, compare
from benchmarks.through_fastapi import Client, our_application, usual_application
from optilock import PreconditionFailed, apply, entities, watch
from optilock.entities import Version
from optilock.preconditions.entity_tags import PLAIN

__all__ = ["DATABASES", "run", "through_fastapi"]

DATABASES = ("socket", "delayed", "sqlite", "mariadb")

_USUAL = "read, compare, write"
#: What may be taken of the time of the usual way; over a network three trips of four, or one.
_GOALS = {"socket": 0.60, "delayed": 0.80, "sqlite": 0.90}
_ALONE = {**_GOALS, "delayed": 0.40}
_FASTAPI = {"socket": 0.85, "delayed": 0.85, "sqlite": 1.0}
#: It reads the object, as the usual way does.
_APPLY = 1.0
_numbers = itertools.count(1)


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        create(engine, NativeItem, 1)
        create(engine, OptilockItem, 1)
        _Stored.version = 1
        usual, ours = Usual(engine), Ours(watch(sessionmaker(engine)))
        alone, applied = Ours(sessionmaker(autocommit)), Applied(watch(sessionmaker(engine)))
        goal, apart = _GOALS.get(place.name), _ALONE.get(place.name)
        yield from _lines(place, plan, "conditional PUT", usual.put, ours.put, goal)
        yield from _lines(place, plan, "conditional PUT, AUTOCOMMIT", usual.put, alone.put, apart)
        yield from _lines(place, plan, "refused PUT", usual.refused, ours.refused, None)
        yield from _lines(place, plan, "apply()", usual.put, applied.put, _APPLY)
        yield from through_fastapi(place, plan, engine)


def through_fastapi(place: Place, plan: Plan, engine: Engine) -> Iterator[RatioLine]:
    """The PUT through an application, from its request to its answer."""
    create(engine, NativeItem, 1)
    create(engine, OptilockItem, 1)
    ours = our_application(watch(sessionmaker(engine)))
    with closing(asyncio.new_event_loop()) as loop:
        usual = Client(usual_application(sessionmaker(engine)), loop, '"1"')
        our = Client(ours, loop, PLAIN.tag(inspect(OptilockItem), (1,), 1))
        times = plan.repeats_for(place, 1)
        timings = interleave(
            {
                _USUAL: _timed(lambda: usual.put([_values() for _ in range(times)])),
                "optilock": _timed(lambda: our.put([_values() for _ in range(times)])),
            },
            rounds=plan.rounds_for(SHORT),
        )
    goals = {"load to COMMIT": _FASTAPI.get(place.name), "load to COMMIT, CPU": None}
    question = "conditional PUT through FastAPI"
    yield from compare(question, place.label, 1, timings, against=_USUAL, goals=goals)


def _lines(
    place: Place,
    plan: Plan,
    question: str,
    usual: Callable[[], None],
    ours: Callable[[], None],
    goal: float | None,
) -> Iterator[Line]:
    timings = interleave(
        {_USUAL: _timed(usual), "optilock": _timed(ours)},
        rounds=plan.rounds_for(SHORT),
        repeats=plan.repeats_for(place, 1),
    )
    goals = {"load to COMMIT": goal, "load to COMMIT, CPU": None}
    yield from compare(question, place.label, 1, timings, against=_USUAL, goals=goals)


def _timed(work: Callable[[], None]) -> Callable[[], Timing]:
    def timed() -> Timing:
        started, used = perf_counter(), process_time()
        work()
        return Timing(flush=perf_counter() - started, cpu=process_time() - used)

    return timed


def _values() -> dict[str, Any]:
    number = next(_numbers)
    return {"name": f"name {number}", "amount": number, "note": "note"}


class Usual:
    """SELECT, compare, UPDATE."""

    def __init__(self, engine: Engine) -> None:
        self._sessions = sessionmaker(engine)
        with self._sessions() as session:
            self._version = session.get_one(NativeItem, 1).version

    def put(self) -> None:
        """The version is the one that is stored."""
        with self._sessions() as session, session.begin():
            assert self._written(session, self._version)
        self._version += 1

    def refused(self) -> None:
        """It is an older one."""
        with self._sessions() as session:
            assert not self._written(session, self._version - 1)

    @staticmethod
    def _written(session: Session, version: int) -> bool:
        item = session.get_one(NativeItem, 1)
        if item.version != version:
            return False
        for name, value in _values().items():
            setattr(item, name, value)
        return True


class Ours:
    """One statement."""

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions

    def put(self) -> None:
        """The version is the one that is stored."""
        with self._sessions() as session, session.begin():
            seen = Version(_Stored.version)
            _Stored.version = entities.replace(
                session, OptilockItem, 1, _values(), if_match=seen
            ).version

    def refused(self) -> None:
        """It is an older one."""
        with self._sessions() as session:
            try:
                older = Version(_Stored.version - 1)
                entities.replace(session, OptilockItem, 1, _values(), if_match=older)
            except PreconditionFailed:
                return
        raise AssertionError("it was written")


class Applied:
    """The same two statements, by :func:`optilock.apply`."""

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions

    def put(self) -> None:
        """The version is the one that is stored."""
        with self._sessions() as session, session.begin():
            apply(session, OptilockItem, 1, _values(), version=_Stored.version)
        _Stored.version += 1


class _Stored:
    """Of the one row."""

    version = 1
