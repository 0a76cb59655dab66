"""How a conflict is settled: values in, values out; nothing here knows a session.

:mod:`~optilock.conflicts.resolvers` decide for a row, and :mod:`~optilock.conflicts.resolution` is
what they say. :mod:`~optilock.conflicts.merge` and :mod:`~optilock.conflicts.diff3` join two edits,
and :mod:`~optilock.conflicts.deletes` says what a DELETE of a changed row does.
"""
