"""How much Python does a piece of work run? Counted, because time says more of the machine.

``lines_of(work)``   lines that Python ran, in whatever file
``calls_of(work)``   functions of Python that were called, each with its file
``Counting``         a ``Session`` in which sets that SQLAlchemy makes anew cost a line an element
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from sqlalchemy.orm import Session

__all__ = ["Counting", "calls_of", "lines_of"]


def lines_of(work: Callable[[], Any]) -> int:
    """Lines that ``work`` runs; each turn of a loop counts, of a comprehension as well."""
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
        return line

    before = sys.gettrace()
    gc.disable()  # nobody's finalizers are counted
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def calls_of(work: Callable[[], Any]) -> list[tuple[str, str]]:
    """File and name of every function that ``work`` calls, once for each call."""
    called: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.append((frame.f_code.co_filename, frame.f_code.co_name))

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return called


class Counting(Session):
    """Each of these sets is made anew whenever it is asked for, in C, where no line is counted."""

    @property
    def deleted(self) -> Any:
        return _walked(super().deleted)

    @property
    def dirty(self) -> Any:
        return _walked(super().dirty)

    @property
    def new(self) -> Any:
        return _walked(super().new)


def _walked(found: Iterable[Any]) -> Iterable[Any]:
    for _ in found:
        pass
    return found
