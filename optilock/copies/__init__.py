"""Objects that come from outside of the session, or are read again, and which version they have.

:mod:`~optilock.copies.merge` is ``session.merge()``, all of it or nothing.
:mod:`~optilock.copies.detached` compares what a copy had read with what is stored;
:mod:`~optilock.copies.members` does so for the members of its collections, and notes in which
version an orphan is to be deleted.
:mod:`~optilock.copies.reads_by_key` is ``session.get()`` with a query that is made once;
:mod:`~optilock.copies.locking_reads` report an object that is older than its row.
:mod:`~optilock.copies.rolled_back` takes from objects the versions of a transaction that came to
nothing.
"""
