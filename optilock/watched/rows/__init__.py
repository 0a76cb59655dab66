"""One row and its two writers: its values as they were read, are to be written, and are stored.

:mod:`~optilock.watched.rows.entries` has both sides of a conflict, and makes an object equal to its
row. :mod:`~optilock.watched.rows.stored` reads the stored values.

*The version that an object has seen.* :mod:`~optilock.watched.rows.seen` keeps it while the object
is expired, or shows values of several versions, :mod:`~optilock.watched.rows.version_reads` looks
at queries that read it again, and :mod:`~optilock.watched.rows.rolled_back` acts after a rollback.
:mod:`~optilock.watched.rows.joined_transactions` has transactions that go on without the session.
:mod:`~optilock.watched.rows.unknown_versions` has objects that were never read.
:mod:`~optilock.watched.rows.touch` moves a version though nothing else changes, and
:mod:`~optilock.watched.rows.roots` finds the roots of an aggregate that a changed part belongs to.
:mod:`~optilock.watched.rows.changes` has the rows that a flush has written, before and after it.
:mod:`~optilock.watched.rows.in_order` locks rows ahead of a flush in the order of its writes.

*Reads.* :mod:`~optilock.watched.rows.reads_by_key` is ``session.get()``.
:mod:`~optilock.watched.rows.locked` finds the rows that a query can lock, and records the rows that
were read with a lock.

*Merges.* :mod:`~optilock.watched.rows.merge` is ``session.merge()`` of copies,
:mod:`~optilock.watched.rows.payloads` refuses those without a version, and
:mod:`~optilock.watched.rows.members` compares their collections, and notes orphans.
"""
