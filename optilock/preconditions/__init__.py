"""What a caller demands of a row before it is written: the ETag that was seen.

:mod:`~optilock.preconditions.etag` is the token as text, and reads it back.
:mod:`~optilock.preconditions.expect` demands it of a write, :mod:`~optilock.preconditions.verify`
of a row that is only read, and :mod:`~optilock.preconditions.apply` edits a row under it.
"""
