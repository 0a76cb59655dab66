"""Web servers of the tests, in this process, on free ports of 127.0.0.1; and raw requests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

import uvicorn
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.waiting import until

Lines = Sequence[tuple[str | bytes, str | bytes]]


@dataclass(frozen=True)
class Answer:
    """What came back, read to its end."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document."""
        assert self.headers["content-type"] == "application/problem+json"
        found: dict[str, Any] = json.loads(self.content)
        assert found["status"] == self.status
        return found


def ask(
    port: int,
    method: str,
    path: str,
    lines: Lines = (),
    body: bytes | object | None = None,
    *,
    raw: bytes = b"",
) -> Answer:
    """Send one request, whose field lines go out byte by byte as they are given.

    A ``body`` is JSON, and a ``raw`` one what the lines say that it is.
    """
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    content = raw if body is None else content
    sent = [("Host", f"127.0.0.1:{port}"), ("Connection", "close"), *lines]
    if body is not None:
        sent += [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
    head = b"".join(_raw(name) + b": " + _raw(value) + b"\r\n" for name, value in sent)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + head + b"\r\n" + content)
        answer = HTTPResponse(connection, method=method)
        answer.begin()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


@contextmanager
def asgi(app: Any) -> Iterator[int]:
    """Serve an ASGI application; the port."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="auto", ws="none", http="h11")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        until(lambda: server.started, every=0.005)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def wsgi(app: Any) -> Iterator[int]:
    """Serve a WSGI application with a thread for each request; the port."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        """Nobody reads it."""
