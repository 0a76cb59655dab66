"""A guarded write as a value, and the conditions that must be true of its row.

:mod:`~optilock.conditions.write` is one row to write. :mod:`~optilock.conditions.condition` must be
true of the row. :mod:`~optilock.conditions.demands` are conditions of a session on all rows that it
writes. These three use no session and no database.

:mod:`~optilock.conditions.request` has the conditions of an HTTP request and its header fields.
"""

from optilock.conditions.condition import Condition
from optilock.conditions.demands import Demand

__all__ = ["Condition", "Demand"]
