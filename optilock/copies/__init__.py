"""Objects that come from outside, or are read again, and what they hold.

:mod:`~optilock.copies.merge` is ``session.merge()``, all of it or nothing:
:mod:`~optilock.copies.detached` compares what a copy had read with what is stored, and
:mod:`~optilock.copies.members` the members of its collections.
:mod:`~optilock.copies.locking_reads` tell of an object that is older than its row.
:mod:`~optilock.copies.orphans` are deleted in the version that was held when they were removed, and
:mod:`~optilock.copies.rolled_back` transactions leave no version that never was.
"""
