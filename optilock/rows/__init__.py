"""One row that two writers know: what was read of it, what is wanted, what is stored.

:mod:`~optilock.rows.sides` has both sides of a conflict, and makes an object equal to its row;
:mod:`~optilock.rows.stored` reads what is stored.
:mod:`~optilock.rows.seen` keeps the version that was read while its object is expired.
:mod:`~optilock.rows.unknown_versions` are those that nobody has read. :mod:`~optilock.rows.locked`
knows which rows were read with a lock. :mod:`~optilock.rows.touch` moves a version though nothing
else changes.
"""
