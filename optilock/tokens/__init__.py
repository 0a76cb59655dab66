"""Concurrency tokens, one file for each kind: a value that changes with each write of a row.

==============  ====================================================================================
base            the class of all kinds
counter         a number that Python makes
unique          a random value that Python makes
timestamp       the database's time of the last write
row_version     a version that the database makes for each write
manual          a version that the application makes
compare_values  no column: the values of a row are compared
sql_functions   the clock of the database
guard_trigger   the trigger that moves the version of a row that another program writes
==============  ====================================================================================
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
