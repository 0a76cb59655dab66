"""Who waits for messages is told by the database that some were sent, where it can."""

from __future__ import annotations

from sqlalchemy import Connection

from optilock.dialects.messages.parts import Parts

__all__ = ["Waiting"]


class Waiting(Parts):
    #: Are there notifications for those who wait? The others are asked where there are.
    notifies = False

    def can_listen(self, connection: Connection) -> bool:
        """Does the driver hear notifications, and talk to one process, not to a pooler's many?"""
        return False

    def listen(self, connection: Connection) -> None:
        """From now on this connection hears that messages were sent."""

    def begin_watch(self, connection: Connection) -> bool:
        """From now on, until :meth:`end_watch`, whoever sends tells it. False: not for us."""
        return False

    def is_watched(self, connection: Connection) -> bool:
        """Does somebody have the watch?"""
        return False

    def end_watch(self, connection: Connection) -> None:
        """Give up the watch, and tell the others who wait."""

    def tell_waiting(self, connection: Connection) -> None:
        """Wake up who waits for messages, once this transaction is committed."""
