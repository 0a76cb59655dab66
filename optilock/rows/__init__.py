"""A row that two writers know: what was read of it, what is wanted, what is stored.

:mod:`~optilock.rows.sides` has both sides of a conflict. :mod:`~optilock.rows.seen` keeps the
version that was read while its object is expired, :mod:`~optilock.rows.locked` knows what was read
with a lock, :mod:`~optilock.rows.detached` what an object outside of a session had read, and
:mod:`~optilock.rows.touch` moves a version though nothing else changes.
"""
