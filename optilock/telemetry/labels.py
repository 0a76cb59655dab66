"""Shared parts of all telemetry: the labels of a row, and extras that are not installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from optilock.errors import Entry

#: Seconds, from 1 ms to 10 s: the buckets of the duration of a unit.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Table, action and kind.
Labels = tuple[str, str, str]


def count_labels(entries: Iterable[Entry[Any]]) -> Counter[Labels]:
    """Return how many entries have the same table, action and kind."""
    return Counter((one.table or one.model.__name__, one.action, one.kind) for one in entries)


def name_of(error: BaseException) -> str:
    """Return the name of the error's class; its message may have values."""
    return type(error).__qualname__
