"""SIGTERM and SIGINT, which stop workers.

One event loop may run several workers, and a signal stops all of them.

A process that a handler forks inherits what its parent does at a signal, and with asyncio also the
line on which the event loop learns of signals. So it would ignore ``terminate()``, or that would
stop its parent's worker. The child restores what was there before the workers or, after those of an
event loop, Python's default.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: The handlers of before, while a worker runs in the main thread.
_before: dict[signal.Signals, Any] = {}
#: What stops the workers of each event loop.
_stops: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], object]]]
_stops = WeakKeyDictionary()
#: The handlers of before, while workers run in an event loop of the main thread.
_before_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[signal.Signals, Any]]
_before_loop = WeakKeyDictionary()


@contextmanager
def stopping_in_thread(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at either signal during the block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for one in _SIGNALS:
        _before[one] = signal.signal(one, lambda *_: stop())
    try:
        yield
    finally:
        _restore_in_thread()


def _restore_in_thread() -> None:
    while _before:
        signal.signal(*_before.popitem())


@contextmanager
def stopping_in_loop(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at either signal during the block, if the event loop can handle them."""
    loop = asyncio.get_running_loop()
    stops = _stops.setdefault(loop, [])
    stops.append(stop)
    if len(stops) == 1:
        before = _before_loop[loop] = {}
        for one in _SIGNALS:
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
                loop.remove_signal_handler(one)  # one of the loop cannot be restored
                found = signal.getsignal(one)
                loop.add_signal_handler(one, lambda: [each() for each in tuple(stops)])
                before[one] = found
    try:
        yield
    finally:
        stops.remove(stop)
        if not stops:
            _restore_in_loop(loop)
            for one, handler in _before_loop.pop(loop, {}).items():
                signal.signal(one, handler)


def _restore_in_loop(loop: asyncio.AbstractEventLoop) -> None:
    for one in _SIGNALS:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(one)


def _restore() -> None:
    _restore_in_thread()
    for loop, stops in tuple(_stops.items()):
        if stops:
            _restore_in_loop(loop)
    _stops.clear()
    _before_loop.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore)
