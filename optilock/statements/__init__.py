"""UPDATE, DELETE and INSERT statements that a session sends itself, without a flush.

In a watched session :mod:`~optilock.statements.execute` sees to each
:mod:`~optilock.statements.call` of ``session.execute()``. ``update(Model).where(...)`` is in
:mod:`~optilock.statements.by_criteria`, rows by primary key in :mod:`~optilock.statements.by_key`
and :mod:`~optilock.statements.legacy_bulk`, and ``update(table)`` in
:mod:`~optilock.statements.by_table`, also on the session's :mod:`~optilock.statements.connection`.
:mod:`~optilock.statements.matching` looks at the rows that a statement finds,
:mod:`~optilock.statements.version` moves their version or leaves it, and
:mod:`~optilock.statements.own` notes what the session has to know afterwards.
:mod:`~optilock.statements.demanded` is what the session demands of the rows.
:mod:`~optilock.statements.upserts` are refused where they would leave the version as it was, and
:mod:`~optilock.statements.sql_text` is searched for versioned tables.

For any session :mod:`~optilock.statements.bulk` writes many rows by key with an answer for each
(:mod:`~optilock.statements.bulk_rows`), :mod:`~optilock.statements.unchanged` is the condition for
an ``update()`` of one's own, and :mod:`~optilock.statements.unguarded` finds what goes past the
guard.
"""
