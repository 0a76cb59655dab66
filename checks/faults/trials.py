"""One trial: a work, of which one call of the driver fails; and the questions asked afterwards."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from checks.faults.drivers import ASYNC, KINDS, Plan, faulty_engine, is_injected
from checks.faults.works import WORKS, Work, World
from optilock import is_transient
from optilock.errors import CommitOutcomeUnknown

__all__ = ["Trial", "calls_of", "chosen", "run"]


@dataclass(frozen=True)
class Trial:
    engine: str
    work: str
    number: int
    kind: str
    when: str

    def __str__(self) -> str:
        return f"{self.engine} {self.work}: call {self.number} {self.kind} {self.when}"


@contextmanager
def world_of(engine: str, work: Work, url: str, plan: Plan) -> Iterator[World]:
    with _own_file(url) as url:
        yield from _world_on(engine, work, url, plan)


@contextmanager
def _own_file(url: str) -> Iterator[str]:
    """A copy of SQLite's file: whatever a trial leaves open locks no other."""
    file = make_url(url).database
    if not url.startswith("sqlite") or file is None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="optilock-fault-") as folder:
        copied = shutil.copy(file, Path(folder, "trial.db"))
        yield f"sqlite:///{copied}"


def _world_on(engine: str, work: Work, url: str, plan: Plan) -> Iterator[World]:
    made = faulty_engine(engine, url, plan, **work.options)
    asynchronous = isinstance(made, AsyncEngine)
    world = World(made, create_engine(url), asyncio.new_event_loop() if asynchronous else None)
    world.leaves_message = work is WORKS["done"]
    try:
        world.reset()
        yield world
    finally:
        plan.armed = False
        if world.loop is not None:
            world.loop.run_until_complete(made.dispose())  # type: ignore[arg-type]
            world.loop.run_until_complete(asyncio.sleep(0))
            world.loop.close()
        else:
            made.dispose()
        world.direct.dispose()


def calls_of(engine: str, name: str, url: str) -> list[str]:
    """The calls that the work makes, where none fails."""
    work, plan = WORKS[name], Plan()
    with world_of(engine, work, url, plan) as world:
        plan.armed = True
        error = _outcome(work, world)
        plan.armed = False
        _require(_is_usual(work, error), f"without a fault it ends in {error!r}")
        _require(work.stored(world) == (work.ends_in is None), "without a fault it is not stored")
    return plan.calls


def chosen(
    engines: list[str], names: list[str], kinds: list[str], trials: int, seed: int, calls: Any
) -> list[Trial]:
    """Trials of these engines and works, each call as often as any other."""
    chance = random.Random(seed)
    every = [
        Trial(engine, name, number, kind, when)
        for engine in engines
        for name in names
        if engine in WORKS[name].engines
        for kind, when in KINDS
        if kind in kinds and kind != ("interrupt" if engine in ASYNC else "cancel")
        for number, call in enumerate(calls(engine, name), 1)
        if not (call == "rollback" and kind == "lost" and _keeps_place(engine, WORKS[name]))
    ]
    if len(every) <= trials:
        return every
    return chance.sample(every, trials)


def _keeps_place(engine: str, work: Work) -> bool:
    """A ROLLBACK that fails while SQLAlchemy closes a session of the program's own.

    The connection stays out of its pool for as long as somebody has the error, and SQLite's file
    locked with it; so it is without optilock.
    """
    return work.own_session and "sqlite" in engine


def run(trial: Trial, url: str) -> str | None:
    """What is wrong, in a sentence; ``None``: nothing."""
    work = WORKS[trial.work]
    plan = Plan(trial.number, trial.kind, trial.when)
    with _quiet(), world_of(trial.engine, work, url, plan) as world:
        plan.armed = True
        error = _outcome(work, world)
        plan.armed = False
        try:
            _judge(work, world, plan, error)
            _look_afterwards(work, world)
        except Exception as wrong:  # also what is still locked by whatever was left open
            told = wrong if isinstance(wrong, AssertionError) else repr(wrong)
            return f"{trial} ({plan.fired}), ended in {error!r}: {told}"
    return None


def _outcome(work: Work, world: World) -> BaseException | None:
    try:
        work.do(world)
    except BaseException as error:
        return error
    return None


def _is_usual(work: Work, error: BaseException | None) -> bool:
    return error is None if work.ends_in is None else isinstance(error, work.ends_in)


def _require(true: object, otherwise: str) -> None:
    if not true:
        raise AssertionError(otherwise)


def _judge(work: Work, world: World, plan: Plan, error: BaseException | None) -> None:
    interrupts = plan.kind in ("interrupt", "cancel")
    usual = _is_usual(work, error)
    _require(usual or plan.fired, f"ended in {error!r} without a fault")
    _require(not (usual and interrupts and plan.fired), f"the {plan.kind} was swallowed")
    stored = work.stored(world)
    if usual:
        _require(stored == (work.ends_in is None), f"ended in {error!r}, and is stored {stored}x")
        return
    assert error is not None
    _require(is_injected(error), f"another error than the first: {error!r}")
    _require(stored in (0, 1), f"stored {stored} times")
    if isinstance(error, CommitOutcomeUnknown):
        _require(not interrupts, f"an {plan.kind} became {error!r}")
        return
    if interrupts:
        _require(not isinstance(error, Exception), f"an {plan.kind} became {error!r}")
        told = any(note.startswith("optilock:") for note in getattr(error, "__notes__", ()))
        # The program's own COMMIT, or what SQLAlchemy sends as it closes the connection after it.
        told = told or (not work.retried and plan.fired in ("commit", "rollback"))
        _require(
            not stored or told or work.commits_itself, "stored, and the interrupt says nothing"
        )
        return
    told = any("is stored" in note for note in getattr(error, "__notes__", ()))
    passes = work.retried and is_transient(error) and not told
    _require(not passes, f"not run again after {error!r}")
    # A session of the program's own that rolls back after a statement that has committed itself.
    closing = work.commits_itself and plan.fired == "rollback"
    # A COMMIT of the program's own, of which SQLAlchemy raises the driver's error.
    closing = closing or (not work.retried and plan.fired == "commit")
    _require(not stored or told or closing or work.in_steps, f"stored, and told as {error!r}")


def _look_afterwards(work: Work, world: World) -> None:
    """The same engine does the same work again, once."""
    try:
        world.reset()
    except DBAPIError as error:
        raise AssertionError(f"something is still open: {error!r}") from error
    error = _outcome(work, world)
    if not _is_usual(work, error) and is_injected(error):
        world.reset()  # a line that was cut when nothing went over it is found out only now
        error = _outcome(work, world)
    _require(_is_usual(work, error), f"the engine is of no use afterwards: {error!r}")
    stored = work.stored(world)
    _require(stored == (work.ends_in is None), f"the next work is stored {stored} times")
    pool: Any = world.engine.pool
    _require(pool.checkedout() == 0, f"{pool.checkedout()} connections were not given back")


@contextmanager
def _quiet() -> Iterator[None]:
    """Pools say of connections that they throw them away; that is what is wanted."""
    loggers = [logging.getLogger(name) for name in ("sqlalchemy.pool", "optilock", "asyncio")]
    before = [(one.level, one.propagate) for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for one, (level, propagate) in zip(loggers, before, strict=True):
            one.setLevel(level)
            one.propagate = propagate
