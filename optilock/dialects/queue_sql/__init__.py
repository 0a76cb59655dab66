"""The statements of a queue: values in, rows out. :mod:`optilock.queue` gives them their meaning.

A statement is made once for each queue, and gets its values as parameters. :class:`Messages` is for
any database that has RETURNING; each engine's file overrides statements that differ there.

=========  =========================================================================================
parts      the parts of the statements: the queue's place, clocks, columns and locks; sending
receiving  messages without a group: received together, then deleted, kept or changed; counting
           messages, removing many, and waiting for them
groups     messages of groups
=========  =========================================================================================
"""

from optilock.dialects.queue_sql.groups import Groups
from optilock.dialects.queue_sql.parts import HandlerConnection, Place, Row, Sending
from optilock.dialects.queue_sql.receiving import Looking, Waiting

__all__ = ["HandlerConnection", "Messages", "Place", "Row"]


class Messages(Groups, Sending, Looking, Waiting):
    """The statements of one queue, for any database with RETURNING."""
