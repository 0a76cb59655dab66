"""UPDATE, DELETE and INSERT statements that a session sends itself, without a flush.

In a watched session :mod:`~optilock.statements.execute` sees each
:mod:`~optilock.statements.call` of ``session.execute()``, and chooses the file:

*by what the statement names*
    :mod:`~optilock.statements.by_criteria` has ``update(Model).where(...)``,
    :mod:`~optilock.statements.by_key` and :mod:`~optilock.statements.legacy_bulk` rows by primary
    key, :mod:`~optilock.statements.by_table` ``update(table)``, also on the session's
    connection.
*by what is done with it*
    :mod:`~optilock.statements.matching` looks at the rows that a statement finds, and
    :mod:`~optilock.statements.demanded` asks of them what the session demands.
    :mod:`~optilock.statements.version` moves their version, or leaves it.
    :mod:`~optilock.statements.own` notes what the session has to know afterwards.
*what is refused*
    :mod:`~optilock.statements.refused` has what would leave the version as it was, and what writes
    rows that nobody can ask for what the session demands. :mod:`~optilock.statements.sql_text`
    finds the tables that a text writes. :mod:`~optilock.statements.strict` has what a strict
    session refuses: to change rows without a version. :mod:`~optilock.statements.requests` has what
    the condition of a request, and a unit that needs one for each row, refuse.

For any session, :mod:`~optilock.statements.bulk` writes many rows by key and answers for each
(:mod:`~optilock.statements.bulk_rows`,
:mod:`~optilock.statements.version_types`), :mod:`~optilock.statements.one_row` writes one row in
one statement (:mod:`~optilock.statements.one_form`), :mod:`~optilock.statements.new_row` inserts it
or writes it whatever is there, ``unchanged`` is the condition for an ``update()`` of one's own, and
:mod:`~optilock.statements.unguarded` finds statements that go around the version.
"""
