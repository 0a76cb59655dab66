"""The statements of a queue: values in, rows out. What they mean is :mod:`optilock.queue`'s.

A statement is made once for each queue, and gets its values as parameters. :class:`Messages` is for
any database that has RETURNING; each engine's file has what is better there, or different.

=========  =========================================================================================
parts      what the statements are made of: the queue's place, its clocks, its columns, its locks
receiving  messages without a group: received together, then deleted, kept or changed
groups     messages of groups
sending    messages are sent
looking    messages are looked at, counted, and removed in bulk
waiting    who waits is told that messages were sent
=========  =========================================================================================
"""

from optilock.dialects.messages.groups import Groups
from optilock.dialects.messages.looking import Looking
from optilock.dialects.messages.parts import Place, Row, StatementTime
from optilock.dialects.messages.sending import Sending
from optilock.dialects.messages.waiting import Waiting

__all__ = ["Messages", "Place", "Row", "StatementTime"]


class Messages(Groups, Sending, Looking, Waiting):
    """The statements of one queue, for any database with RETURNING."""
