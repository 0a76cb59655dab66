"""The protocols of PostgreSQL, and of MariaDB and MySQL, read as the bytes go by.

A *request* is what a client sends: :meth:`Protocol.messages` splits it, names the SQL of each
message, and marks those after which the client waits. An *answer* is what the server sends:
:meth:`Protocol.answers` yields one value for each wait that is over, true if the server refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol as TypingProtocol

__all__ = ["PROTOCOLS", "Message", "MySQL", "PostgreSQL", "Protocol"]


@dataclass(frozen=True)
class Message:
    """One message of a client."""

    data: bytes
    #: The SQL that it carries, or that it executes by the name of a prepared statement.
    text: str | None = None
    #: The client waits for the server after it.
    awaited: bool = False


class Protocol(TypingProtocol):
    """One connection."""

    #: How many answers are still to come.
    pending: int
    #: A request that ends the transaction; None if a server that sees the line end does so first.
    rollback: bytes | None
    #: Requests after which the server itself reports a deadlock, and the transaction is over.
    deadlock: tuple[bytes, ...]

    def messages(self, data: bytes) -> Iterator[Message]:
        """Yield the client's messages that are complete with these bytes."""

    def requests(self, data: bytes) -> int:
        """Return after how many messages of these bytes the client waits."""

    def answers(self, data: bytes) -> Iterator[bool]:
        """Yield the waits that end with these bytes of the server: true if it has refused."""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# -- PostgreSQL ------------------------------------------------------------------------------------


def _query(sql: bytes) -> bytes:
    return b"Q" + (len(sql) + 5).to_bytes(4) + sql + b"\0"


class PostgreSQL:
    """Protocol 3 (https://www.postgresql.org/docs/current/protocol-message-formats.html).

    A client waits after Query and FunctionCall, and after the Sync that ends a group of Parse, Bind
    and Execute messages; the server ends each of these with ReadyForQuery.
    """

    rollback: bytes | None = None
    deadlock: tuple[bytes, ...] = (
        _query(
            b"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01',"
            b" MESSAGE = 'deadlock detected'; END $$"
        ),
    )
    _AWAITED = frozenset(b"QFS")
    #: The major number of the protocol in a StartupMessage; SSLRequest and others have 1234 there.
    _MAJOR = 3

    def __init__(self) -> None:
        self._sent = bytearray()
        self._answered = bytearray()
        self._started = self._refused = False
        self.pending = 0
        #: The SQL of prepared statements, by name.
        self._prepared: dict[bytes, str] = {}

    def messages(self, data: bytes) -> Iterator[Message]:
        self._sent += data
        while (message := self._next()) is not None:
            yield message

    def requests(self, data: bytes) -> int:
        return sum(message.awaited for message in self.messages(data))

    def answers(self, data: bytes) -> Iterator[bool]:
        self._answered += data
        at, have = 0, self._answered
        while len(have) >= at + 5 and len(have) > at + (size := _size(have, at + 1)):
            kind, body = have[at], at + 5
            if kind == ord("E") or (kind == ord("C") and have[body : body + 8] == b"ROLLBACK"):
                self._refused = True
            elif kind == ord("Z"):
                self.pending -= 1
                yield self._refused
                self._refused = False
            at += 1 + size
        del have[:at]

    def _next(self) -> Message | None:
        have, head = self._sent, int(self._started)
        if len(have) < head + 4 or len(have) < (size := head + _size(have, head)):
            return None
        data = bytes(have[:size])
        del have[:size]
        if not self._started:
            self._started = int.from_bytes(data[4:6]) == self._MAJOR
            self.pending += self._started
            return Message(data)
        awaited = data[0] in self._AWAITED
        self.pending += awaited
        return Message(data, self._sql(data), awaited)

    def _sql(self, data: bytes) -> str | None:
        match chr(data[0]):
            case "Q":
                return _text(data[5:-1])
            case "P":
                name, _, rest = data[5:].partition(b"\0")
                self._prepared[name] = _text(rest.partition(b"\0")[0])
                return self._prepared[name]
            case "B":
                _, _, rest = data[5:].partition(b"\0")
                return self._prepared.get(rest.partition(b"\0")[0])
        return None


def _size(data: bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 4])


# -- MariaDB and MySQL -----------------------------------------------------------------------------


def _command(sql: bytes) -> bytes:
    return (len(sql) + 1).to_bytes(3, "little") + b"\0\x03" + sql


class MySQL:
    """The protocol of MySQL and MariaDB (https://mariadb.com/kb/en/0-packet/).

    A packet of number 0 begins a command; logging in goes on from the server's number 0. An answer
    is one packet, or a result set: its columns, and its rows up to a packet that ends them.
    """

    rollback: bytes | None = _command(b"ROLLBACK")
    #: A deadlock rolls back the whole transaction, and SIGNAL does not.
    deadlock: tuple[bytes, ...] = (
        _command(b"ROLLBACK"),
        _command(
            b"SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT ="
            b" 'Deadlock found when trying to get lock; try restarting transaction'"
        ),
    )
    #: COM_QUIT, COM_STMT_SEND_LONG_DATA and COM_STMT_CLOSE have no answer.
    _UNANSWERED = frozenset((0x01, 0x18, 0x19))
    #: COM_QUERY and COM_STMT_PREPARE.
    _WITH_SQL = frozenset((0x03, 0x16))
    #: A client with this capability gets no packet between columns and rows.
    _DEPRECATE_EOF = 1 << 24
    _MORE_RESULTS = 0x0008

    def __init__(self) -> None:
        self._sent = bytearray()
        self._answered = bytearray()
        self._ends = 2
        #: Packets that have yet to end a part of the answer; None at its first packet.
        self._left: int | None = None
        self.pending = 0

    def messages(self, data: bytes) -> Iterator[Message]:
        for packet in _packets(self._sent, data):
            body = packet[4:]
            if packet[3] == 1 and self._ends == 2 and len(body) >= 32:
                self._ends -= bool(int.from_bytes(body[:4], "little") & self._DEPRECATE_EOF)
            if packet[3] or not body or body[0] in self._UNANSWERED:
                yield Message(packet)
                continue
            self.pending, self._left = 1, None
            sql = _text(body[1:]) if body[0] in self._WITH_SQL else None
            yield Message(packet, sql, awaited=True)

    def requests(self, data: bytes) -> int:
        return sum(message.awaited for message in self.messages(data))

    def answers(self, data: bytes) -> Iterator[bool]:
        for packet in _packets(self._answered, data):
            if self.pending and (refused := self._ended_by(packet[4:])) is not None:
                self.pending, self._left = 0, None
                yield refused

    def _ended_by(self, body: bytes) -> bool | None:
        """Return whether the answer that this packet ends is a refusal; None if it goes on."""
        if body[:1] == b"\xff":
            return True
        if self._left is None:
            if body[:1] != b"\0":
                self._left = self._ends
                return None
            flags = _flags(body)
        elif body[:1] == b"\xfe" and len(body) < 0xFFFFFF:
            self._left -= 1
            if self._left:
                return None
            flags = _flags(body) if self._ends == 1 else int.from_bytes(body[3:5], "little")
        else:
            return None
        if flags & self._MORE_RESULTS:
            self._left = None
            return None
        return False


def _packets(buffer: bytearray, data: bytes) -> Iterator[bytes]:
    buffer += data
    while len(buffer) >= 4:
        size = 4 + int.from_bytes(buffer[:3], "little")
        if len(buffer) < size:
            return
        packet = bytes(buffer[:size])
        del buffer[:size]
        yield packet


def _flags(body: bytes) -> int:
    """Return the status of an OK packet, behind two numbers of variable length."""
    at = 1
    for _ in range(2):
        at += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(body[at], 1) if at < len(body) else 1
    return int.from_bytes(body[at : at + 2], "little")


PROTOCOLS: dict[str, Callable[[], Protocol]] = {
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MySQL,
}
