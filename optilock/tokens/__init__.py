"""Concurrency tokens, one file for each kind: a value that changes with each write of a row.

:mod:`base` has the class of all kinds. Python makes the versions of a :mod:`counter` and of
:mod:`unique`, the database the versions of :mod:`timestamp` and :mod:`row_version`, the application
the versions of :mod:`manual`. :mod:`compare_values` needs no column. :mod:`sql_functions` has the
clock of the database, and :mod:`guard_trigger` the trigger that moves the version of a row that
another program writes.
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
