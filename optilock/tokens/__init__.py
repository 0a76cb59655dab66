"""Concurrency tokens: what says that a row is still the one that was read. One file for each kind.

:mod:`base` is what every kind has. Python makes the versions of a :mod:`counter` and of
:mod:`unique`, the database those of :mod:`timestamp` and :mod:`row_version`, the application those
of :mod:`manual`. :mod:`compare_values` needs no column. :mod:`guard_trigger` is the trigger that
keeps the versions true where others write.
"""

from optilock.tokens.base import Token
from optilock.tokens.compare_values import CompareValues
from optilock.tokens.counter import Counter
from optilock.tokens.manual import Manual
from optilock.tokens.row_version import RowVersion
from optilock.tokens.timestamp import Timestamp, UtcDateTime
from optilock.tokens.unique import Unique

__all__ = [
    "CompareValues",
    "Counter",
    "Manual",
    "RowVersion",
    "Timestamp",
    "Token",
    "Unique",
    "UtcDateTime",
]
