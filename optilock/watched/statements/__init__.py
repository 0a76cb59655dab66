"""UPDATE, DELETE and INSERT statements that a session sends itself, without a flush.

In a watched session :mod:`~optilock.watched.statements.execute` receives each statement and chooses
the module for it. A :mod:`~optilock.watched.statements.call` is one such ``session.execute()``, and
finds the rows of its statement.

*Kinds of statements*
    :mod:`~optilock.watched.statements.by_criteria` handles ``update(Model).where(...)``,
    :mod:`~optilock.watched.statements.by_key` and :mod:`~optilock.watched.statements.legacy_bulk`
    rows by primary key, :mod:`~optilock.watched.statements.by_table` ``update(table)``, also on the
    session's connection.
*Steps*
    :mod:`~optilock.watched.statements.demand_checks` compares its rows with the session's demands,
    :mod:`~optilock.watched.statements.version` moves or keeps their versions,
    :mod:`~optilock.watched.statements.given_versions` replaces those that a program gives, and
    :mod:`~optilock.watched.statements.rollback_effects` records what a rollback takes back.
    :mod:`~optilock.watched.statements.follower` lets the session's objects follow.
    :mod:`~optilock.watched.statements.scopes` finds the scopes of the rows, and
    :mod:`~optilock.watched.statements.written_rows` notes them for the event after COMMIT.
*Refusals*
    :mod:`~optilock.watched.statements.refusals` raises for statements that would leave a version
    as it was, that write rows which no demand can be compared with, or that write rows without a
    version in a strict session. :mod:`~optilock.watched.statements.sql_text` finds the tables that
    a SQL text writes, and :mod:`~optilock.watched.statements.comparisons` the columns that a WHERE
    compares with values. :mod:`~optilock.watched.statements.silent_cascades` refuses deletes for
    which the database changes guarded rows without a trigger, and
    :mod:`~optilock.watched.statements.requests` writes that ignore the condition of a request.

In any session, :mod:`~optilock.watched.statements.bulk` writes many rows by key and reports each,
and :mod:`~optilock.watched.statements.unguarded` finds statements that bypass the version.
:mod:`~optilock.watched.statements.unguarded_warnings` warns of them.
:mod:`optilock.entities` writes one row by its key.
"""
