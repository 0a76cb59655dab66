"""A guarded write as a value: what is written, and what must be true of the row.

:mod:`~optilock.conditions.write` is one row to write. :mod:`~optilock.conditions.condition` is what
must be true of the row. :mod:`~optilock.conditions.demands` is what a session demands of all rows
that it writes, and :mod:`~optilock.conditions.clock` the time by which that is judged. Nothing here
knows a session or a database.
"""
