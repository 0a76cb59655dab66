"""The version of a row that a client has seen, as a condition of a write.

:mod:`~optilock.preconditions.entity_tags` writes a version as an ETag and reads it back, and
:mod:`~optilock.preconditions.rfc9110` judges the conditions of an HTTP request.
:mod:`~optilock.preconditions.etag` compares what a caller demands with the loaded version.
:mod:`~optilock.preconditions.expect` has ``expect`` and ``verify``, which demand a version until
the transaction ends, and ``overwrite``, which demands none.
:mod:`~optilock.preconditions.apply` edits a row if it still is what was seen, and
:mod:`~optilock.preconditions.lock` locks it under the same condition.
:mod:`~optilock.preconditions.signed` signs the values that a client sees, and
:mod:`~optilock.preconditions.merge` merges a client's edits into a row that has changed since.
:mod:`~optilock.preconditions.forms` is a form with its values after a conflict.
:mod:`~optilock.preconditions.names` checks the names, keys and values that a client sends, and
:mod:`~optilock.preconditions.normal` brings texts of a form to the form of their columns.
"""
