"""Concurrency tokens: what says that a row is still the one that was read. One file a kind."""

from optilock.tokens.base import Token
from optilock.tokens.compare_values import CompareValues
from optilock.tokens.counter import Counter
from optilock.tokens.manual import Manual
from optilock.tokens.row_version import RowVersion
from optilock.tokens.timestamp import Timestamp
from optilock.tokens.unique import Unique
from optilock.tokens.utc_date_time import UtcDateTime

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
