"""How a conflict is settled: values in, values out. Nothing here knows a session.

:mod:`~optilock.conflicts.resolvers` decide about a row, and what they say is a
:mod:`~optilock.conflicts.resolution`, as is what a DELETE does where somebody else has changed or
deleted the row. :mod:`~optilock.conflicts.merge` joins two edits of one value; for text it uses
:mod:`~optilock.conflicts.diff3`, and the ends of its :mod:`~optilock.conflicts.lines` are no
difference. In :mod:`~optilock.conflicts.open_text` what both have changed is left for a person.
:mod:`~optilock.conflicts.together` says which columns conflict as one.
"""
