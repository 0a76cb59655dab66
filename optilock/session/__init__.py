"""A session as the guard needs to know it, below all that writes.

:mod:`~optilock.session.connections` is where a session writes. :mod:`~optilock.session.guarded`
says whether somebody watches it. :mod:`~optilock.session.before_flush` is the order of what happens
before a flush, and :mod:`~optilock.session.caller` the line of the application that called.
"""
