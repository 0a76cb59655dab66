"""Servers on free ports of 127.0.0.1, and a line to one that loses answers.

``served(kind)`` starts a small server of JSON resources that stands for those of other projects:

``strict``    compares ``If-Match``, and refuses a write without it
``lax``       sends ETags, and ignores ``If-Match``
``weak``      sends weak ETags
``untagged``  sends no ETag

``lossy(port)`` passes requests on. When the server has done one, it may cut the client off in place
of the answer.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Line", "Store", "lossy", "served"]


class Store:
    """The resources of a server by their path, and the requests that it got."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.address = ""
        #: Path -> the text of its JSON.
        self.items: dict[str, str] = {"/items/1": '{"a": 1, "b": 1}'}
        #: Method, path, header fields and value of each request.
        self.requests: list[tuple[str, str, Any, Any]] = []
        #: Answers in place of the next ones; an answer of ``None`` cuts the connection.
        self.canned: list[tuple[int, dict[str, str], bytes] | None] = []
        #: Before a write: what another client does then.
        self.before: Callable[[], object] = lambda: None
        #: What it makes of a value before it stores it.
        self.stores: Callable[[Any], Any] = lambda value: value
        #: Files that it serves: path -> type and content.
        self.files: dict[str, tuple[str, bytes]] = {}
        self.keys: dict[str | None, str] = {}
        self.lock = threading.RLock()

    def __getitem__(self, path: str) -> Any:
        return json.loads(self.items[path])

    def __setitem__(self, path: str, value: Any) -> None:
        self.items[path] = json.dumps(value)

    def tag(self, path: str) -> dict[str, str]:
        if self.kind == "untagged" or path not in self.items:
            return {}
        digest = hashlib.sha256(self.items[path].encode()).hexdigest()[:12]
        return {"ETag": f'W/"{digest}"' if self.kind == "weak" else f'"{digest}"'}

    def methods(self) -> list[str]:
        return [method for method, *_ in self.requests]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def do(self) -> None:
        store, method, path = self.store, self.command, self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        store.requests.append((method, path, self.headers, json.loads(body or b"null")))
        if path in store.files:
            kind, content = store.files[path]
            return self.answer(200, {"Content-Type": kind}, content)
        if store.canned:
            canned = store.canned.pop(0)
            if canned is not None:
                return self.answer(*canned)
            self.close_connection = True
            return None
        if method in ("PUT", "PATCH", "DELETE"):
            store.before()
        with store.lock:
            return self.answer(*self.done(method, path, body.decode()))

    do_GET = do_PUT = do_PATCH = do_DELETE = do_POST = do

    def done(self, method: str, path: str, body: str) -> tuple[int, dict[str, str], bytes]:
        store, asked = self.store, self.headers
        if method == "POST":
            key = asked.get("Idempotency-Key")
            place = store.keys.setdefault(key, f"/items/{len(store.items) + 1}")
            store.items.setdefault(place, body)
            return 201, {"Location": place}, b"{}"
        tag = store.tag(path)
        if store.kind == "strict" and method != "GET":
            if "If-Match" not in asked:
                return 428, {}, b""
            if [asked["If-Match"]] != [*tag.values()]:
                return 412, tag, b'{"secret": "of another user"}'
        if path not in store.items:
            return 404, {}, b""
        if method == "DELETE":
            del store.items[path]
            return 204, {}, b""
        if method == "GET":
            if tag and asked.get("If-None-Match") == tag["ETag"]:
                return 304, tag, b""
            return 200, tag, store.items[path].encode()
        stored = json.loads(body)
        if method == "PATCH":
            stored = {**store[path], **stored}
        store[path] = store.stores(stored)
        return 200, store.tag(path), b"{}"

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def served(kind: str) -> Iterator[Store]:
    store = Store(kind)
    handler = type("OfStore", (Handler,), {"store": store})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        store.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield store
        server.shutdown()
        thread.join()


class Line:
    """A line to a server; ``loses(number)`` chooses which answers do not arrive."""

    def __init__(self, port: int, loses: Callable[[int], bool]) -> None:
        self.port, self.loses = port, loses
        self.count, self.lost = 0, 0
        self._lock = threading.Lock()

    def is_lost(self) -> bool:
        """Count an answer."""
        with self._lock:
            self.count += 1
            self.lost += self.loses(self.count)
            return self.loses(self.count)

    def pass_on(self, client: socket.socket, server: socket.socket, asks: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                asks.set()
                server.sendall(data)
        _end(client, server)

    def answer(self, client: socket.socket, server: socket.socket, asks: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if asks.is_set():  # the first part of an answer
                    asks.clear()
                    if self.is_lost():
                        break
                client.sendall(data)
        _end(client, server)


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def lossy(port: int, loses: Callable[[int], bool]) -> Iterator[Line]:
    """A line to the server at this port. The answers have the numbers 1, 2, 3, …"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = Line(listener.getsockname()[1], loses)
        thread = threading.Thread(target=_accept, args=(listener, port, line), daemon=True)
        thread.start()
        yield line
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=5)


def _accept(listener: socket.socket, port: int, line: Line) -> None:
    with suppress(OSError), ExitStack() as ends:  # the listener is closed
        while True:
            client = ends.enter_context(listener.accept()[0])
            server = ends.enter_context(socket.create_connection(("127.0.0.1", port)))
            asks = threading.Event()
            for work in (line.pass_on, line.answer):
                threading.Thread(target=work, args=(client, server, asks), daemon=True).start()
