"""The editor processes, started once and stopped at the end whatever happens.

They are spawned, not forked: a fork would share the parent's database connections.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from optilock.demo.editors import GO, Failed, Ready, Report, Written, editor
from optilock.demo.edits import Edit
from optilock.errors import OptilockError

__all__ = ["DemoFailed", "Staff"]

#: Seconds without a word from any editor, after which the demo is over.
_PATIENCE = 120.0
_GOODBYE = 5.0


class DemoFailed(OptilockError):
    """An editor could not go on; the message says why, in one line."""


class Staff:
    """One process per list of edits, and a pipe to each; a context manager."""

    def __init__(self, url: str, edits: Sequence[Sequence[Edit]]) -> None:
        self._url = url
        self._edits = edits
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def __enter__(self) -> Staff:
        context = multiprocessing.get_context("spawn")
        for own in self._edits:
            here, there = context.Pipe()
            process = context.Process(target=editor, args=(there, self._url, own), daemon=True)
            process.start()
            # Only the editor may hold this end, or its death would not close the pipe.
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            if kind is not None:
                process.terminate()
            process.join(_GOODBYE)
            if process.is_alive():
                process.kill()

    @property
    def edits_asked(self) -> int:
        """How many edits one strategy gets, all editors together."""
        return sum(len(own) for own in self._edits)

    def work(self, strategy: str, written: Callable[[], None]) -> tuple[float, list[Report]]:
        """Seconds from the common start to the last report, and the reports.

        ``written`` is called once per edit. Raises :exc:`DemoFailed`.
        """
        self._tell(strategy)
        self._hear(Ready, len(self._pipes))
        began = time.perf_counter()
        self._tell(GO)
        reports = self._hear(Report, len(self._pipes), written)
        return time.perf_counter() - began, reports

    def _tell(self, word: str) -> None:
        for pipe in self._pipes:
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
        ready = wait(self._pipes, timeout=_PATIENCE)
        if not ready:
            raise DemoFailed(f"No editor wrote anything for {_PATIENCE:.0f} seconds.")
        try:
            return [pipe.recv() for pipe in self._pipes if pipe in ready]
        except EOFError:
            raise DemoFailed("An editor process ended by itself.") from None
