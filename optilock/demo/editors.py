"""The editor processes: what one of them does, what it counts, and the staff of all.

A process is started once and told the strategies one after the other over a pipe::

    parent                     editor
    "optimistic, merge"  ──>   opens the connection
                         <──   Ready
    GO                   ──>   (everybody begins at the same moment)
                         <──   Written, once per edit
                         <──   Report
    None                 ──>   ends; so it does when the pipe closes

An edit counts as committed when COMMIT has returned, not before. A conflict is counted once: when
the guarded flush reports it, or, where the database itself refuses (a serialization failure, a
deadlock), when the unit is sent into a retry without one. To find a page leased is none: nothing
was read, so the retry begins with what is stored.

The processes are spawned, not forked: a fork would share the parent's database connections. They
are stopped at the end whatever happens.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from optilock import Entry, events, is_transient
from optilock.demo.edits import Edit
from optilock.demo.strategies import STRATEGIES, Strategy, Write
from optilock.demo.wiki import open_engine
from optilock.errors import OptilockError
from optilock.leases import LeaseHeld

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
    """A listener that counts, and keeps the conflict that is best to tell."""

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
    """What one editor did under one strategy; latencies are seconds, pauses included."""

    committed: tuple[Edit, ...]
    latencies: tuple[float, ...]
    tally: Tally


def editor(pipe: Connection, url: str, edits: Sequence[Edit]) -> None:
    """Serve strategies until told to end; the target of the process."""
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
    """An editor could not go on; the message says why, in one line."""


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
