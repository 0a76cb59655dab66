"""A session as the guard needs to know it, below all that writes.

:mod:`~optilock.session.watched` is what is known of a session that somebody watches. It has
:mod:`~optilock.session.records` of what the transaction has done, and of what it has promised.
:mod:`~optilock.session.connections` says where a session writes, and refuses a connection on which
every statement commits by itself. :mod:`~optilock.session.order` is the one order of what happens
around a flush and a transaction, and :mod:`~optilock.session.caller` finds the line of the
application that a warning points to.
"""
