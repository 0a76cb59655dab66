"""Subjects that take turns under load, and the lines that come of it.

A benchmark describes what its writers do (``Bench``); ``measured`` lets each subject have a turn in
each round, on tables that are new, and ``lines`` makes the table and holds the goals against it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sqlalchemy import Connection, Engine

from benchmarks.crowd import Crowd, Load, Turn, Workload, crowd
from benchmarks.measure import Ratio, order
from benchmarks.plan import Plan
from benchmarks.servers import Place
from benchmarks.stores.kinds import Kind, create, settle
from benchmarks.stores.peers import LOCKING, PEERS, present
from benchmarks.table import CountLine, Line, LoadLine, RatioLine

__all__ = [
    "Bench",
    "Loads",
    "Others",
    "against_locks",
    "beside",
    "interleaved",
    "load_lines",
    "ratio_of",
    "reset",
    "standard",
]

#: The writers of a standard workload, and those that its goals speak of.
_WRITERS, _QUICK_WRITERS, _HELD = (1, 8, 16), (4,), 8
_SECONDS, _QUICK_SECONDS = 4.0, 0.5
#: The default beside SELECT FOR UPDATE: units, p99, the slowest writer, deadlocks.
_OURS = "optilock"
_GOODPUT, _P99, _FAIR, _DEADLOCKS = 0.95, 1.3, 0.5, 2
#: Beside each mapper that kept what it promised, and beside what is written by hand.
_MAPPERS, _BY_HAND, _HAND_WRITTEN = 1.0, 0.5, "hand-written"

#: Somebody beside the subjects: what he did in a turn.
Others = Mapping[str, Callable[[Turn], Load]]
#: Subject -> its turns, one for each round.
Loads = Mapping[str, Sequence[Load]]


class Bench(Workload, Protocol):
    """What writers do, on which tables, and what must be true afterwards."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The tables."""

    def begin(self, connection: Connection) -> Counter[str]:
        """Make the rows new where a turn must not see those before it; what is there to begin."""

    def broken(
        self, connection: Connection, before: Counter[str], added: Counter[str]
    ) -> Counter[str]:
        """What is not as it must be, after this was added: ``lost``, and names of its own."""


def reset(engine: Engine, bench: Bench) -> None:
    """The tables of a benchmark, new."""
    create(engine, *bench.kinds)


def interleaved(
    crowd: Crowd,
    engine: Engine,
    bench: Bench,
    subjects: Sequence[str],
    *,
    writers: int,
    seconds: float,
    rounds: int,
    others: Others | None = None,
) -> dict[str, list[Load]]:
    """A turn for each subject in each round; another one begins each round."""
    others = others or {}
    loads: dict[str, list[Load]] = {name: [] for name in (*subjects, *others)}
    for number in range(rounds):
        for name in order(tuple(loads), number):
            turn = Turn(name, bench, writers, seconds, seed=number)
            if name in others:
                loads[name].append(others[name](turn))
            else:
                loads[name].append(_turn(crowd, engine, bench, turn))
    return loads


def _turn(crowd: Crowd, engine: Engine, bench: Bench, turn: Turn) -> Load:
    with engine.begin() as connection:
        before = bench.begin(connection)
    settle(engine, *bench.kinds)
    load = crowd.turn(turn)
    with engine.connect() as connection:
        return replace(load, broken=bench.broken(connection, before, load.added))


def ratio_of(loads: Loads, subject: str, against: str, figure: Callable[[Load], float]) -> Ratio:
    """A figure of one subject for each 1.00 of another, of the same round."""
    ratios = [
        figure(ours) / (figure(theirs) or math.nan)
        for ours, theirs in zip(loads[subject], loads[against], strict=True)
    ]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def load_lines(
    question: str, place: Place, writers: int, loads: Loads, against: str
) -> Iterator[LoadLine]:
    """A line for each subject."""
    for name, turns in loads.items():

        def middle(figure: Callable[[Load], float], turns: Sequence[Load] = turns) -> float:
            return statistics.median(map(figure, turns))

        broken: Counter[str] = Counter()
        for turn in turns:
            broken.update(turn.broken)
        yield LoadLine(
            question=question,
            database=place.label,
            writers=writers,
            subject=name,
            goodput=middle(lambda load: load.goodput),
            against=against,
            ratio=ratio_of(loads, name, against, lambda load: load.goodput)
            if against in loads
            else None,
            p50=middle(lambda load: load.percentile(0.5)),
            p99=middle(lambda load: load.percentile(0.99)),
            fairness=middle(lambda load: load.fairness),
            attempts=middle(lambda load: load.attempts),
            deadlocks=sum(turn.deadlocks for turn in turns),
            lost=broken["lost"],
            broken=sum(broken.values()) - broken["lost"],
            goal=0 if name in PEERS and PEERS[name].own else None,
        )


def beside(
    question: str,
    place: Place,
    writers: int,
    loads: Loads,
    subject: str,
    *,
    against: str = LOCKING,
    figure: Callable[[Load], float] = lambda load: load.goodput,
    goal: float | None = None,
    at_least: bool = True,
) -> Iterator[Line]:
    """One figure of one subject against that of another, where both were measured."""
    if subject in loads and against in loads:
        ratios = {against: Ratio(1, 1, 1), subject: ratio_of(loads, subject, against, figure)}
        yield RatioLine(
            f"{question}, {_many(writers)}{subject}",
            place.label,
            writers,
            against,
            ratios,
            subject=subject,
            goal=goal,
            at_least=at_least,
        )


def _many(writers: int) -> str:
    return f"{writers} writers, " if writers > 1 else ""


def against_locks(question: str, place: Place, writers: int, loads: Loads) -> Iterator[Line]:
    """The default beside SELECT FOR UPDATE: units, the slowest hundredth, writers, deadlocks."""
    if _OURS not in loads:
        return
    case = (place, writers, loads, _OURS)
    yield from beside(f"{question}: units/s", *case, goal=_GOODPUT)
    yield from beside(f"{question}: p99", *case, figure=_p99, goal=_P99, at_least=False)
    if writers == 1:
        return
    each = [load.fairness for load in loads[_OURS]]
    yield RatioLine(
        f"{question}: units of the slowest writer, {writers} writers, {_OURS}",
        place.label,
        writers,
        "the fastest",
        {_OURS: Ratio(statistics.median(each), min(each), max(each))},
        goal=_FAIR,
        at_least=True,
    )
    if LOCKING in loads:
        ours, theirs = (sum(load.deadlocks for load in loads[name]) for name in (_OURS, LOCKING))
        question = f"{question}: deadlocks, {writers} writers"
        yield CountLine(question, place.label, writers, ours, goal=_DEADLOCKS * theirs)


def _p99(load: Load) -> float:
    return load.percentile(0.99)


def standard(
    question: str,
    bench: Bench,
    place: Place,
    plan: Plan,
    *,
    others: Others | None = None,
    against: str = LOCKING,
) -> Iterator[Line]:
    """The lines of a standard workload, and what is held against the peers."""
    subjects = present(place.name, plan.subjects)
    many = plan.writers or (_QUICK_WRITERS if plan.quick else _WRITERS)
    with place.others() as engine, crowd(place.url, max(many)) as writers:
        reset(engine, bench)
        for count in many:
            loads = interleaved(
                writers,
                engine,
                bench,
                subjects,
                writers=count,
                seconds=plan.seconds or (_QUICK_SECONDS if plan.quick else _SECONDS),
                rounds=plan.turns(),
                others=others,
            )
            yield from load_lines(question, place, count, loads, against)
            yield from against_locks(question, place, count, loads)
            if count > 1:
                yield from _held(f"{question}: units/s", place, count, loads)


def _held(question: str, place: Place, writers: int, loads: Loads) -> Iterator[Line]:
    """Ours beside each mapper that has lost and broken nothing, and beside what is by hand."""
    subject = _OURS
    goal = writers == _HELD
    for name, turns in loads.items():
        peer = PEERS.get(name)
        if peer is None or peer.own or not (peer.orm and peer.safe):
            continue
        if name == LOCKING or any(+load.broken for load in turns):
            continue
        mapper = _MAPPERS if goal else None
        yield from beside(question, place, writers, loads, subject, against=name, goal=mapper)
    hand = _BY_HAND if goal else None
    yield from beside(question, place, writers, loads, subject, against=_HAND_WRITTEN, goal=hand)
