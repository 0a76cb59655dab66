"""What a client sends to a server, read just far enough to know when it waits for an answer.

Values only: bytes in, a number out. A message may come in any number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol as TypingProtocol

__all__ = ["PROTOCOLS", "MySQL", "PostgreSQL", "Protocol"]


class Protocol(TypingProtocol):
    """One connection's client side."""

    def requests(self, data: bytes) -> int:
        """How many requests are complete with these bytes."""


class PostgreSQL:
    """Protocol 3 (https://www.postgresql.org/docs/current/protocol-message-formats.html).

    A client waits after Query and FunctionCall, and after the Sync that ends a group of Parse, Bind
    and Execute messages.
    """

    _AWAITED = frozenset(b"QFS")
    #: The major number of the protocol in a StartupMessage; SSLRequest and others have 1234 there.
    _MAJOR = 3

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False

    def requests(self, data: bytes) -> int:
        self._buffer += data
        count = 0
        while (kind := self._next()) is not None:
            count += kind in self._AWAITED
        return count

    def _next(self) -> int | None:
        """The type of the next message, 0 where it has none; ``None`` while it is incomplete."""
        head = 1 if self._started else 0
        if len(self._buffer) < head + 4:
            return None
        size = head + int.from_bytes(self._buffer[head : head + 4])
        if len(self._buffer) < size:
            return None
        kind = self._buffer[0] if self._started else 0
        if not self._started:
            self._started = int.from_bytes(self._buffer[4:6]) == self._MAJOR
        del self._buffer[:size]
        return kind


class MySQL:
    """The protocol of MySQL and MariaDB (https://mariadb.com/kb/en/0-packet/).

    A packet of number 0 begins a command; logging in goes on from the server's number 0.
    """

    #: COM_QUIT, COM_STMT_SEND_LONG_DATA and COM_STMT_CLOSE have no answer.
    _UNANSWERED = frozenset((0x01, 0x18, 0x19))

    def __init__(self) -> None:
        self._buffer = bytearray()

    def requests(self, data: bytes) -> int:
        self._buffer += data
        count = 0
        while (command := self._next()) is not None:
            count += command >= 0 and command not in self._UNANSWERED
        return count

    def _next(self) -> int | None:
        """The next command, -1 for what is none; ``None`` while the packet is incomplete."""
        if len(self._buffer) < 4:
            return None
        size = 4 + int.from_bytes(self._buffer[:3], "little")
        if len(self._buffer) < size:
            return None
        is_command = self._buffer[3] == 0 and size > 4
        command = self._buffer[4] if is_command else -1
        del self._buffer[:size]
        return command


PROTOCOLS: dict[str, Callable[[], Protocol]] = {
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MySQL,
}
