"""The record of a watched session, below everything that writes.

:mod:`~optilock._watched.session.record` is the record of one watched session, with its parts about
the running flush and the running statement. :mod:`~optilock._watched.session.transaction` is its
part about the transaction: writes, locks, and what a savepoint takes back.
:mod:`~optilock._watched.session.values` are the values in these.
:mod:`~optilock._watched.session.connections` chooses the connection on which a session writes, and
refuses a connection on which every statement commits by itself.
:mod:`~optilock._watched.session.order` is the one order of all steps around a flush and a
transaction. :mod:`~optilock._watched.session.commit_events` collects the written rows, and
publishes them after COMMIT.
"""
