"""What an editor process does: wait for a strategy, write all its edits, report.

The process is started once and told the strategies one after the other over a pipe::

    parent                     editor
    "optimistic, merge"  ──>   opens the connection
                         <──   Ready
    GO                   ──>   (everybody begins at the same moment)
                         <──   Written, once per edit
                         <──   Report
    None                 ──>   ends; so it does when the pipe closes

An edit counts as committed when COMMIT has returned, not before.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from optilock import Entry, is_transient
from optilock.demo.databases import open_engine
from optilock.demo.edits import Edit
from optilock.demo.strategies import STRATEGIES, Strategy, Write
from optilock.demo.tally import Tally, counting

__all__ = ["GO", "Failed", "Ready", "Report", "Written", "editor"]

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


@dataclass(frozen=True)
class Report:
    """What one editor did under one strategy; latencies are seconds, pauses included."""

    committed: tuple[Edit, ...]
    latencies: tuple[float, ...]
    conflicts: int
    resolved: int
    retries: int
    told: Entry[Any] | None


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
    return Report(
        committed=tuple(committed),
        latencies=tuple(latencies),
        conflicts=tally.conflicts,
        resolved=tally.resolved,
        retries=tally.retries,
        told=tally.told,
    )


def _committed(write: Write, edit: Edit) -> bool:
    """False when all attempts failed: such an edit is not committed, so it cannot be lost."""
    try:
        write(edit)
    except Exception as error:
        if not is_transient(error):
            raise
        return False
    return True
