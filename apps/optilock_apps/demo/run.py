"""A run of all editors under all strategies, each on fresh tables, with its outcome.

::

    from optilock_apps.demo.run import Options, run

    for outcome in run(Options(editors=4, edits=25)):
        print(outcome.name, outcome.losses.lost)

Raises :exc:`~optilock.errors.ConfigurationError` for bad input, before anything is written, and
:exc:`~optilock_apps.demo.run.DemoFailed` when an editor could not go on. The tables are dropped in
either case.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from sqlalchemy import Engine, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from optilock import Entry, events, is_transient
from optilock.errors import ConfigurationError, OptilockError
from optilock.leases import LeaseHeld
from optilock_apps.demo.edits import (
    MOST,
    Base,
    Edit,
    Losses,
    Stored,
    compare,
    database_url,
    hot_pages,
    open_engine,
    plan,
    reason,
)
from optilock_apps.demo.strategies import STRATEGIES, Strategy, Write

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Options:
    """The options of the user, checked when they are made."""

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
    """Make the engine of the parent; the demo's tables are dropped afterwards in every case."""
    engine = open_engine(url)
    try:
        _refuse_without_tables(engine)
        try:
            yield engine
        finally:
            Base.metadata.drop_all(engine)
    finally:
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
    """Add up the reports of the editors."""
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


# -- editor processes ------------------------------------------------------------------------------
# A process is started once and receives the strategies one after the other over a pipe:
#
#     parent                     editor
#     "optimistic, merge"  ──>   opens the connection
#                          <──   Ready
#     GO                   ──>   (all editors begin at the same moment)
#                          <──   Written, once per edit
#                          <──   Report
#     None                 ──>   ends; so it does when the pipe closes
#
# An edit counts as committed when COMMIT has returned, not before. A conflict is counted once: when
# the guarded flush reports it or, where the database itself refuses (a serialization failure, a
# deadlock), when the unit is retried without such a report. A leased page is no conflict: nothing
# was read, so the retry begins with the stored text.
#
# The processes are spawned, not forked: a fork would share the parent's database connections. They
# are stopped at the end in every case.


GO = "go"


@dataclass(frozen=True)
class Ready:
    """Connected, and waiting for the others."""


@dataclass(frozen=True)
class Written:
    """One edit is over, committed or given up."""


@dataclass(frozen=True)
class Failed:
    """The editor met an error that no retry can help; ``reason`` is one line."""

    reason: str


class Tally:
    """A listener that counts, and keeps the conflict with the best story."""

    def __init__(self) -> None:
        self.conflicts = 0
        self.resolved = 0
        self.retries = 0
        self.told: Entry[Any] | None = None
        self._reported = False

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Conflict(entries):
                self.conflicts += len(entries)
                self._reported = True
            case events.Resolved(entries):
                self.resolved += len(entries)
                self.told = self.told or _best(entries)
            case events.Retry(error=LeaseHeld()):
                self.retries += 1
            case events.Retry():
                self.retries += 1
                self.conflicts += not self._reported
                self._reported = False
            case events.Committed():
                self._reported = False


@dataclass(frozen=True)
class Report:
    """The work of one editor with one strategy; latencies are seconds, with pauses."""

    committed: tuple[Edit, ...]
    latencies: tuple[float, ...]
    tally: Tally


def editor(pipe: Connection, url: str, edits: Sequence[Edit]) -> None:
    """Serve strategies until the parent ends it; the target of the process."""
    # Ctrl-C reaches the whole group: the parent alone decides, and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    strategies = {strategy.name: strategy for strategy in STRATEGIES}
    engine = open_engine(url)
    try:
        while (name := pipe.recv()) is not None:
            pipe.send(_serve(pipe, engine, strategies[name], edits))
    except (EOFError, BrokenPipeError):
        pass
    finally:
        engine.dispose()


def _serve(
    pipe: Connection, engine: Engine, strategy: Strategy, edits: Sequence[Edit]
) -> Report | Failed:
    try:
        write = strategy.writer(sessionmaker(engine))
        engine.connect().close()
        pipe.send(Ready())
        pipe.recv()
        with counting() as tally:
            return _write_all(pipe, write, edits, tally)
    except (EOFError, BrokenPipeError):
        raise
    except Exception as error:
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")


def _write_all(pipe: Connection, write: Write, edits: Sequence[Edit], tally: Tally) -> Report:
    committed, latencies = [], []
    for edit in edits:
        began = time.perf_counter()
        if _committed(write, edit):
            committed.append(edit)
            latencies.append(time.perf_counter() - began)
        pipe.send(Written())
    return Report(tuple(committed), tuple(latencies), tally)


def _committed(write: Write, edit: Edit) -> bool:
    """False when all attempts failed: such an edit is not committed, so it cannot be lost."""
    try:
        write(edit)
    except Exception as error:
        if not is_transient(error):
            raise
        return False
    return True


@contextmanager
def counting() -> Iterator[Tally]:
    """Count what happens inside the block, in this process."""
    tally = events.listen(Tally())
    try:
        yield tally
    finally:
        events.unlisten(tally)


def _best(entries: tuple[Entry[Any], ...]) -> Entry[Any] | None:
    """An entry whose text both sides changed: it has the most to tell."""
    return next((entry for entry in entries if "body" in entry.conflicting), None)


#: Seconds without a word from any editor, after which the demo is over.
_PATIENCE = 120.0
_GOODBYE = 5.0


class DemoFailed(OptilockError):
    """An editor could not go on; the message has the reason in one line."""


@contextmanager
def staff_of(url: str, edits: Sequence[Sequence[Edit]]) -> Iterator[Staff]:
    """One process per list of edits, and a pipe to each."""
    context, staff = multiprocessing.get_context("spawn"), Staff(edits)
    processes: list[BaseProcess] = []
    try:
        for own in edits:
            here, there = context.Pipe()
            process = context.Process(target=editor, args=(there, url, own), daemon=True)
            process.start()
            # Only the editor may hold this end, or its death would not close the pipe.
            there.close()
            staff.pipes.append(here)
            processes.append(process)
        yield staff
    except BaseException:
        for one in processes:
            one.terminate()
        raise
    finally:
        for pipe in staff.pipes:
            pipe.close()
        for one in processes:
            one.join(_GOODBYE)
            if one.is_alive():
                one.kill()


class Staff:
    """The processes of all editors, over their pipes."""

    def __init__(self, edits: Sequence[Sequence[Edit]]) -> None:
        self._edits = edits
        self.pipes: list[Connection] = []

    @property
    def edits_asked(self) -> int:
        """How many edits one strategy gets, all editors together."""
        return sum(len(own) for own in self._edits)

    def work(self, strategy: str, written: Callable[[], None]) -> tuple[float, list[Report]]:
        """Seconds from the common start to the last report, and the reports.

        ``written`` is called once per edit. Raises :exc:`DemoFailed`.
        """
        self._tell(strategy)
        self._hear(Ready, len(self.pipes))
        began = time.perf_counter()
        self._tell(GO)
        reports = self._hear(Report, len(self.pipes), written)
        return time.perf_counter() - began, reports

    def _tell(self, word: str) -> None:
        for pipe in self.pipes:
            try:
                pipe.send(word)
            except OSError:
                raise DemoFailed("An editor process ended by itself.") from None

    def _hear(
        self, kind: type[Any], count: int, written: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """Listen until ``count`` messages of a kind have come."""
        heard: list[Any] = []
        while len(heard) < count:
            for message in self._messages():
                if isinstance(message, kind):
                    heard.append(message)
                elif isinstance(message, Written):
                    written()
                elif isinstance(message, Failed):
                    raise DemoFailed(f"An editor could not go on: {message.reason}")
        return heard

    def _messages(self) -> list[Any]:
        ready = wait(self.pipes, timeout=_PATIENCE)
        if not ready:
            raise DemoFailed(f"No editor wrote anything for {_PATIENCE:.0f} seconds.")
        try:
            return [pipe.recv() for pipe in self.pipes if pipe in ready]
        except EOFError:
            raise DemoFailed("An editor process ended by itself.") from None
