"""One row and its two writers: its values as they were read, are to be written, and are stored.

===================  ===============================================================================
entries              both sides of a conflict; an object made equal to its row
stored               the stored values
seen                 the version of an object that is expired, or shows values of several versions
version_reads        queries that read a version again
rolled_back          versions after a rollback
joined_transactions  transactions that go on without the session
unknown_versions     objects whose version was never read
touch                a version that moves though nothing else changes
roots                the roots of an aggregate that a changed part belongs to
changes              the rows that a flush has written, before and after it
in_order             locks on rows ahead of a flush, in the order of its writes
reads_by_key         ``session.get()`` and ``session.refresh()``
locked               the rows that a query can lock, and those that were read with a lock
merge                ``session.merge()`` of copies
payloads             refuses copies without a version
members              collections of copies, compared; orphans
===================  ===============================================================================
"""
