"""The watched session: how each of its writes carries the version that its object was read in.

From the bottom to the top, each part importing only those above it in this list:

:mod:`~optilock._watched.session` is a session's record: its transaction, its flush, its statement.
:mod:`~optilock._watched.rows` is what objects have seen of their rows, and what the rows hold now.
:mod:`~optilock._watched.writes` sends rows to the database and reads which of them were written.
:mod:`~optilock._watched.scopes` moves and checks versions of predicates before COMMIT.
:mod:`~optilock._watched.statements` checks UPDATE, DELETE and SQL text that a program sends itself.
:mod:`~optilock._watched.guard` is the flush: before it, its writes, and conflicts settled after it.
:mod:`~optilock._watched.aggregates` moves the version of a root when one of its children changes.
"""
