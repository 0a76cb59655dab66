"""A session as the guard needs to know it, below all that writes.

:mod:`~optilock.session.watched` is what is known of a session that somebody watches. Its
part :mod:`~optilock.session.written` is what the transaction has written, and what a savepoint
takes back; :mod:`~optilock.session.records` are the values in both.
:mod:`~optilock.session.connections` says where a session writes, and refuses a connection on which
every statement commits by itself. :mod:`~optilock.session.order` is the one order of what happens
around a flush and a transaction, and :mod:`~optilock.session.caller` finds the line of the
application that a warning points to.
"""
