"""A guarded write as a value: what is written, and what must be true of the row.

:mod:`~optilock.conditions.write` is one row to write. :mod:`~optilock.conditions.condition` is what
must be true of the row. :mod:`~optilock.conditions.demands` is what a session demands of all rows
that it writes. These three know no session and no database.

:mod:`~optilock.conditions.request` has the conditions of an HTTP request, and
:mod:`~optilock.conditions.fields` reads their header fields.
"""
