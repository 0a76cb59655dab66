"""What a caller demands of a row before it is written: the version that was seen.

:mod:`~optilock.preconditions.etag` writes a version as text and reads it back.
:mod:`~optilock.preconditions.signed` signs what a client has seen, and
:mod:`~optilock.preconditions.merge` merges what it sends into a row that has moved since.
:mod:`~optilock.preconditions.names` looks at the names that a client sends, and
:mod:`~optilock.preconditions.values` at the keys and values;
:mod:`~optilock.preconditions.normal` brings texts of a form to the form of their columns.
:mod:`~optilock.preconditions.forms` is a form that two people edit, with its values after a
conflict.
:mod:`~optilock.preconditions.expect` demands it of a row that is written, or only read.
:mod:`~optilock.preconditions.apply` edits a row if it still is what was seen.
:mod:`~optilock.preconditions.lock` locks a row, and sees that it still is what was loaded.
:mod:`~optilock.preconditions.overwrite` demands nothing, by name: the last writer wins.
"""
