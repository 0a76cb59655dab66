"""A guarded write as a value: what is written, and what must be true of the row.

:mod:`~optilock.conditions.write` is one row to write, :mod:`~optilock.conditions.condition` what
must be true of it, and :mod:`~optilock.conditions.demands` what a session demands of all its rows.
Nothing here knows a session or a database.
"""
