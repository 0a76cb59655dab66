"""A network of 1 ms, made on one machine.

::

    with delayed("127.0.0.1", 5432) as port:
        create_engine(f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres")

A process of its own stands between client and server and holds every reply back for ``seconds``,
so each round trip takes that much longer. It is a delay and not a narrow pipe: while one reply
waits, the next ones are already read, and all leave when their own time has come.
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

__all__ = ["delayed"]

_CHUNK = 1 << 16


@contextmanager
def delayed(host: str, port: int, *, seconds: float = 0.001) -> Iterator[int]:
    """A port on 127.0.0.1 behind which every reply of ``host:port`` comes ``seconds`` later."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # Threads of the benchmark's own process would wait for its interpreter lock.
    process = context.Process(target=_serve, args=(theirs, host, port, seconds), daemon=True)
    process.start()
    theirs.close()  # else we would wait for ever for a child that could not start
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(ready: Connection, host: str, port: int, seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.send(listener.getsockname()[1])
        while True:
            client, _ = listener.accept()
            _connect(client, socket.create_connection((host, port)), seconds)


def _connect(client: socket.socket, server: socket.socket, seconds: float) -> None:
    replies: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for target, args in (
        (_forward, (client, server)),
        (_collect, (server, replies, seconds)),
        (_deliver, (replies, client)),
    ):
        threading.Thread(target=target, args=args, daemon=True).start()


def _forward(client: socket.socket, server: socket.socket) -> None:
    while chunk := _received(client):
        server.sendall(chunk)
    server.close()


def _collect(
    server: socket.socket, replies: queue.SimpleQueue[tuple[float, bytes]], seconds: float
) -> None:
    while True:
        chunk = _received(server)
        replies.put((time.perf_counter() + seconds, chunk))
        if not chunk:
            return


def _deliver(replies: queue.SimpleQueue[tuple[float, bytes]], client: socket.socket) -> None:
    while True:
        due, chunk = replies.get()
        time.sleep(max(0.0, due - time.perf_counter()))
        if not chunk:
            client.close()
            return
        client.sendall(chunk)


def _received(end: socket.socket) -> bytes:
    """What came in; nothing when either side has hung up."""
    try:
        return end.recv(_CHUNK)
    except OSError:
        return b""
