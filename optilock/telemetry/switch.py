"""The switch of one kind of telemetry: ``instrument()`` and ``uninstrument()`` of a module."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack


class Switch:
    """Installs all or nothing, and takes back what it has installed."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._installed: ExitStack | None = None

    def on(self, install: Callable[[ExitStack], None]) -> None:
        """Call ``install``, which registers with the stack how each thing is taken back.

        If it raises, what it has installed is taken back, and the switch stays off. A switch that
        is on stays as it is.
        """
        with self._changing:
            if self._installed is None:
                with ExitStack() as undo:
                    install(undo)
                    self._installed = undo.pop_all()

    def off(self) -> None:
        """Take back what was installed; a switch that is off stays as it is."""
        with self._changing:
            undo, self._installed = self._installed, None
            if undo is not None:
                undo.close()
