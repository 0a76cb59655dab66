"""How a unit of work reads: optimistic, with locks, or so as each row has been found to need it.

The :mod:`part` of a unit with a strategy that locks puts a record of its :mod:`reading` on the
session, which sees each query. :mod:`heat` remembers which rows conflict, for the whole process,
and :mod:`lockable` says of which rows of a query a lock can be asked for.
"""
