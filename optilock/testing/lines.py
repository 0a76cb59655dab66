"""A line between a driver and its server that a test can cut, hold and answer.

Each connection of the driver has a :class:`Line` of its own: a port of the loopback interface, and
two threads that pass on what they read. Before a message with SQL is passed on, the line asks for a
:class:`Fault` and does it. The driver meets what it would meet on a network: a line
that ends, or an answer of the server.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol as TypingProtocol

from optilock.testing.counting import hang_up, not_read, pass_on
from optilock.testing.protocols import Message, Protocol
from optilock.testing.sql_texts import Statement, Transactions

__all__ = ["Action", "Fault", "Line"]

_CHUNK = 1 << 16


class Action(Enum):
    """The fate of a statement."""

    #: It is not carried out, and the connection is lost.
    LOSE = "lose"
    #: It is carried out, and the connection is lost before the answer.
    LOSE_ANSWER = "lose the answer"
    #: The database refuses it: a deadlock.
    DEADLOCK = "deadlock"
    #: Another transaction writes first.
    WRITE_FIRST = "write first"


class Fault(TypingProtocol):
    """A fault that a line was given."""

    action: Action

    def write(self) -> None:
        """Do the other transaction's write."""

    def happened(self) -> None:
        """Note that it has happened."""

    def give_back(self) -> None:
        """Note that the database has refused the COMMIT itself: the next one may be met."""


class Line:
    """One connection of a driver, by way of this process."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        protocol: Protocol,
        choose: Callable[[Statement], Fault | None],
    ) -> None:
        """Connect to the server, and listen for the driver.

        Raises ``OSError`` when the server is not reached.
        """
        self._connect, self._protocol, self._choose = connect, protocol, choose
        self._server = connect()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._transactions = Transactions()
        self._lock = threading.Lock()
        #: The fault of the next message, chosen by the number of its statement.
        self.due: Fault | None = None
        #: The fault that decides on the answers that are held, and how many are to come.
        self._fault: Fault | None = None
        self._countdown = 0
        self._held = bytearray()
        #: Messages up to one that is awaited are dropped.
        self._drops = False
        #: The bytes that are sent to the server after the answer that is dropped.
        self._next: list[bytes] = []
        self._cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening; a connection that is open goes on."""
        with suppress(OSError):  # close() alone leaves accept() waiting on Linux
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        """The first to come is the connection; others ask the server to cancel its statement."""
        try:
            self._client, _ = self._listener.accept()
        except OSError:
            return hang_up(self._server)
        _send_at_once(self._client, self._server)
        for run in (self._pass_requests, self._pass_answers):
            threading.Thread(target=run, daemon=True).start()
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                pass_on(client, server, not_read)
                pass_on(server, client, not_read)

    # -- what the client sends ---------------------------------------------------------------------

    def _pass_requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(_CHUNK):
                if not self._forward(data):
                    return
        if not self._cut:
            hang_up(self._server)

    def _forward(self, data: bytes) -> bool:
        """Pass on what may pass; return False once the line is to be lost."""
        passed = bytearray()
        with self._lock:
            for message in self._protocol.messages(data):
                if self._drops:
                    self._drops = not message.awaited
                    continue
                fault = self._fault_of(message)
                if fault is None or self._passes(fault, message, passed):
                    passed += message.data
                if self._cut:
                    break
        # Outside of the lock: a server that waits for us to read its answers reads nothing.
        if not self._cut:
            self._server.sendall(passed)
            return True
        self._server.sendall(passed + (self._protocol.rollback or b""))
        if self._protocol.rollback is None:
            self._server.shutdown(socket.SHUT_WR)
        return False

    def _fault_of(self, message: Message) -> Fault | None:
        if self._cut or self._fault is not None:
            return None
        if self.due is not None:
            fault, self.due = self.due, None
            return fault
        if message.text is None:
            return None
        return self._choose(self._transactions.statement(message.text))

    def _passes(self, fault: Fault, message: Message, passed: bytearray) -> bool:
        """Return whether the message is passed on in spite of the fault."""
        match fault.action:
            case Action.WRITE_FIRST:
                fault.write()
                return True
            case Action.LOSE_ANSWER:
                self._fault = fault
                self._countdown = self._protocol.pending + (not message.awaited)
                return True
            case Action.LOSE:
                self._cut = True
                fault.happened()
            case Action.DEADLOCK:
                first, *self._next = self._protocol.deadlock
                self._drops = not message.awaited
                passed += first
                fault.happened()
        return False

    # -- what the server answers -------------------------------------------------------------------

    def _pass_answers(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(_CHUNK):
                with self._lock:
                    passed = self._answer(data)
                if passed is None:
                    break
                self._client.sendall(passed)
        hang_up(self._client)
        hang_up(self._server)
        self.close()

    def _answer(self, data: bytes) -> bytes | None:
        """Return the answers that may pass; None at the end of the line."""
        answers = list(self._protocol.answers(data))
        if self._cut:
            over = answers and self._protocol.rollback is not None
            return None if over else b""
        if self._next:
            if answers:
                self._server.sendall(self._next.pop(0))
                self._protocol.pending = 1
            return b""
        if self._fault is None:
            return data
        self._held += data
        self._countdown -= len(answers)
        if self._countdown > 0:
            return b""
        fault, self._fault = self._fault, None
        if not answers[-1]:
            fault.happened()
            return None
        fault.give_back()
        held, self._held = bytes(self._held), bytearray()
        return held


def _send_at_once(*ends: socket.socket) -> None:
    for end in ends:
        if end.family != socket.AF_UNIX:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
