"""All editors under all strategies, each on fresh tables, and what came of every one.

::

    from optilock.demo.run import Options, run

    for outcome in run(Options(editors=4, edits=25)):
        print(outcome.name, outcome.losses.lost)

Raises :exc:`~optilock.errors.ConfigurationError` for bad input, before anything is written, and
:exc:`~optilock.demo.editors.DemoFailed` when an editor could not go on. The tables are dropped in
either case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import Engine, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from optilock import Entry
from optilock.demo.editors import Report, Staff, staff_of
from optilock.demo.edits import Losses, Stored, compare, plan
from optilock.demo.strategies import STRATEGIES, Strategy
from optilock.demo.wiki import MOST, Base, database_url, hot_pages, open_engine, reason
from optilock.errors import ConfigurationError

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Options:
    """What the user may choose; checked when it is made."""

    editors: int = 4
    #: Per editor.
    edits: int = 25
    pages: int = 3
    seed: int = 1
    url: str | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.editors <= 64:
            raise ConfigurationError(
                "An update is lost only where two editors meet: --editors takes 2 to 64,"
                f" not {self.editors}."
            )
        if not 1 <= self.edits <= 10_000:
            raise ConfigurationError(
                f"Every editor writes something: --edits takes 1 to 10000, not {self.edits}."
            )
        if not 1 <= self.pages <= MOST:
            raise ConfigurationError(f"--pages takes 1 to {MOST}, not {self.pages}.")

    @property
    def backend(self) -> str:
        """SQLAlchemy's name of the database: postgresql, sqlite, mysql or mariadb."""
        return "sqlite" if self.url is None else make_url(self.url).get_backend_name()


def run(options: Options, progress: Progress = lambda name, written: None) -> list[Outcome]:
    """The outcome of every strategy; ``progress`` hears its name and how many edits are over."""
    originals = hot_pages(options.pages)
    edits = plan(
        editors=options.editors, edits=options.edits, pages=list(originals), seed=options.seed
    )
    with (
        database_url(options.url) as url,
        _tables_of(url) as engine,
        staff_of(url, edits) as staff,
    ):
        return [_one(engine, staff, strategy, originals, progress) for strategy in STRATEGIES]


def _one(
    engine: Engine, staff: Staff, strategy: Strategy, originals: dict[str, str], progress: Progress
) -> Outcome:
    _fresh_tables(engine, strategy, originals)
    progress(strategy.name, 0)
    seconds, reports = staff.work(strategy.name, lambda: progress(strategy.name, 1))
    committed = list(chain.from_iterable(report.committed for report in reports))
    return outcome_of(
        strategy.name,
        asked=staff.edits_asked,
        reports=reports,
        losses=compare(originals, _stored(engine, strategy), committed),
        seconds=seconds,
    )


@contextmanager
def _tables_of(url: str) -> Iterator[Engine]:
    """The engine of the parent; whatever happens, the demo's tables are gone afterwards."""
    engine = open_engine(url)
    _refuse_without_tables(engine)
    try:
        yield engine
    finally:
        Base.metadata.drop_all(engine)
        engine.dispose()


def _refuse_without_tables(engine: Engine) -> None:
    try:
        Base.metadata.create_all(engine)
    except SQLAlchemyError as error:
        raise ConfigurationError(
            f"Cannot make the demo's tables on {engine.url.render_as_string(hide_password=True)}:"
            f" {reason(error, engine.url)}"
        ) from None


def _fresh_tables(engine: Engine, strategy: Strategy, originals: dict[str, str]) -> None:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(
            strategy.model(name=name, body=body, views=0, tags=[])
            for name, body in originals.items()
        )


def _stored(engine: Engine, strategy: Strategy) -> list[Stored]:
    with Session(engine) as session:
        pages = session.scalars(select(strategy.model)).all()
        return [Stored(page.name, page.body, page.views, page.tags) for page in pages]


@dataclass(frozen=True)
class Outcome:
    """One row of the table. ``latencies`` are milliseconds, sorted."""

    name: str
    asked: int
    committed: int
    losses: Losses
    conflicts: int
    resolved: int
    retries: int
    #: From the common start to the last commit.
    seconds: float
    latencies: tuple[float, ...]
    told: Entry[Any] | None

    @property
    def edits_per_second(self) -> float:
        return self.committed / self.seconds if self.seconds else 0.0

    @property
    def sound(self) -> bool:
        """Everything that was committed is stored, once, and nothing else."""
        return not (self.losses.lost or self.losses.surplus or self.losses.damaged)


def outcome_of(
    name: str, *, asked: int, reports: Sequence[Report], losses: Losses, seconds: float
) -> Outcome:
    """Add up what the editors report."""
    latencies = sorted(1000 * each for report in reports for each in report.latencies)
    tallies = [report.tally for report in reports]
    return Outcome(
        name=name,
        asked=asked,
        committed=sum(len(report.committed) for report in reports),
        losses=losses,
        conflicts=sum(tally.conflicts for tally in tallies),
        resolved=sum(tally.resolved for tally in tallies),
        retries=sum(tally.retries for tally in tallies),
        seconds=seconds,
        latencies=tuple(latencies),
        told=next((tally.told for tally in tallies if tally.told is not None), None),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values; 0.0 of none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.0
    """
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
