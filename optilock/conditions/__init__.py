"""A guarded write as a value: which row is written, with what, and what must be true of it.

:mod:`~optilock.conditions.keys` says which row is meant, :mod:`~optilock.conditions.write` what
is written. Nothing here knows a session or a database.
"""
