"""Concurrency tokens: what says that a row is still the one that was read. One file a kind."""

from optilock.tokens.base import Token
from optilock.tokens.compare_values import CompareValues
from optilock.tokens.counter import Counter
from optilock.tokens.unique import Unique

__all__ = ["CompareValues", "Counter", "Token", "Unique"]
