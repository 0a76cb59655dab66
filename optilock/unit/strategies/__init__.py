"""How a unit of work reads: optimistic, with locks, or with locks on rows that have conflicted.

The part of a unit with a strategy that locks puts a record of its :mod:`reading` on the session,
which passes each query to it. :mod:`heat` remembers the rows that conflict, for the whole process.
"""
