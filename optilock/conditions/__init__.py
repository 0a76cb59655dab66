"""A guarded write as a value: which row is written, with what, and what must be true of it.

:mod:`~optilock.conditions.write` says all that. Nothing here knows a session or a database.
"""
