"""The record of a watched session, below everything that writes.

:mod:`~optilock.watched.session.watched` is the record of one watched session.
:mod:`~optilock.watched.session.written` is its part about the writes of the transaction, and what a
savepoint takes back; :mod:`~optilock.watched.session.records` are the values in both.
:mod:`~optilock.watched.session.connections` chooses the connection on which a session writes, and
refuses a connection on which every statement commits by itself.
:mod:`~optilock.watched.session.order` is the one order of all steps around a flush and a
transaction.
"""
