"""A session as the guard needs to know it, below all that writes.

:mod:`~optilock.session.connections` is where a session writes, unless it is in
:mod:`~optilock.session.autocommit` mode. :mod:`~optilock.session.watched`
is what is known of a session that somebody watches, with :mod:`~optilock.session.records` of what
its transaction has done and the :mod:`~optilock.session.promises` that it has made.
:mod:`~optilock.session.order` is the order of what happens around a flush and a transaction, and
:mod:`~optilock.session.caller` the line of the application that called.
"""
