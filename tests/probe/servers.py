"""A small server that is right, and servers that are wrong in one way each.

``/items/1`` is there; PUT makes other items, and POST to ``/items`` lets the server choose.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIRST = {"id": 1, "title": "first title", "size": 12}


@dataclass
class Item:
    body: bytes
    version: int = 1


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, kind: type[Right]) -> None:
        super().__init__(("127.0.0.1", 0), kind)
        self.items = {"/items/1": Item(json.dumps(FIRST).encode())}
        self.made: dict[str | None, str] = {}
        self.numbers = itertools.count(2)
        self.requests = itertools.count(1)
        self.lock = threading.RLock()
        self.methods: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.url = f"{self.address}/items/1"

    @property
    def title(self) -> object:
        return json.loads(self.items["/items/1"].body)["title"]


@contextmanager
def serving(kind: type[Right]) -> Iterator[Server]:
    with Server(kind) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Right(BaseHTTPRequestHandler):
    """Compares every condition, and demands one."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def tag(self, item: Item) -> str | None:
        return f'"{item.version}"'

    def matches(self, item: Item, condition: str) -> bool:
        listed = [one.strip() for one in condition.split(",")]
        return condition == "*" or self.tag(item) in listed

    def refusal(self, item: Item | None) -> int | None:
        match, absent = self.headers["If-Match"], self.headers["If-None-Match"]
        if match is not None:
            return None if item is not None and self.matches(item, match) else 412
        if absent is not None:
            return 412 if item is not None else None
        return 428

    def store(self, item: Item, body: bytes) -> None:
        item.body, item.version = body, item.version + 1

    def do_GET(self) -> None:
        item = self.item()
        if item is None:
            self.answer(404)
        elif self.tag(item) is not None and self.headers["If-None-Match"] == self.tag(item):
            self.answer(304, item)
        else:
            self.answer(200, item)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        body = self.sent()
        with self.server.lock:
            item = self.item()
            if status := self.refusal(item):
                self.answer(status)
            elif item is None:
                self.server.items[self.path] = Item(body)
                self.answer(201)
            else:
                self.store(item, body)
                self.answer(204, item)

    def do_DELETE(self) -> None:
        with self.server.lock:
            item = self.item()
            if status := 404 if item is None else self.refusal(item):
                self.answer(status)
            else:
                del self.server.items[self.path]
                self.answer(204)

    def do_POST(self) -> None:
        body, key = self.sent(), self.headers["Idempotency-Key"]
        with self.server.lock:
            if key not in self.server.made:
                self.server.made[key] = f"/items/{next(self.server.numbers)}"
                self.server.items[self.server.made[key]] = Item(body)
            self.answer(201, Location=self.server.made[key])

    def item(self) -> Item | None:
        self.server.methods.append(self.command)
        return self.server.items.get(self.path)

    def sent(self) -> bytes:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        return self.body

    def answer(self, status: int, item: Item | None = None, **fields: str) -> None:
        self.send_response(status)
        tag = None if item is None else self.tag(item)
        body = item.body if item is not None and status in (200, 422) else b""
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        if status not in (204, 304):
            named["Content-Length"] = str(len(body))
        for name, value in {"Content-Type": "application/json", **named}.items():
            self.send_header(name, value)
        if tag is not None:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class NoETag(Right):
    def tag(self, item: Item) -> str | None:
        return None

    def refusal(self, item: Item | None) -> int | None:
        return None


class WeakETag(Right):
    """Takes writes without a condition: its clients have no other way."""

    def tag(self, item: Item) -> str | None:
        return f'W/"{item.version}"'

    def matches(self, item: Item, condition: str) -> bool:
        return condition == "*"

    def refusal(self, item: Item | None) -> int | None:
        status = super().refusal(item)
        return None if status == 428 else status


class WeaklyCompared(WeakETag):
    def matches(self, item: Item, condition: str) -> bool:
        return Right.matches(self, item, condition)


class StillETag(Right):
    """The size of the body."""

    def tag(self, item: Item) -> str | None:
        return f'"{len(item.body)}"'


class StaleAccepted(Right):
    def matches(self, item: Item, condition: str) -> bool:
        return True


class BlindDelete(Right):
    def refusal(self, item: Item | None) -> int | None:
        return None if self.command == "DELETE" else super().refusal(item)


class NoDelete(Right):
    def do_DELETE(self) -> None:
        self.answer(405)


class PostTwice(Right):
    def do_POST(self) -> None:
        self.server.made.clear()
        super().do_POST()


class WritesAndRefuses(Right):
    """Says 412 when it has written."""

    def refusal(self, item: Item | None) -> int | None:
        status = super().refusal(item)
        if status == 412 and item is not None and self.command == "PUT":
            self.store(item, self.body)
        return status


class Lenient(Right):
    """Takes writes without a condition, and answers HEAD with 405."""

    def refusal(self, item: Item | None) -> int | None:
        status = super().refusal(item)
        return None if status == 428 else status

    def do_HEAD(self) -> None:
        self.answer(405)


class Limited(Right):
    """Answers each third request 429."""

    def parse_request(self) -> bool:
        found = super().parse_request()
        if found and next(self.server.requests) % 3 == 0:
            self.sent() if "Content-Length" in self.headers else None
            self.answer(429, Retry_After="0")
            return False
        return found


class Rewrites(Right):
    """Stores titles in capitals."""

    def store(self, item: Item, body: bytes) -> None:
        body = json.dumps({**json.loads(body), "title": json.loads(body)["title"].upper()}).encode()
        super().store(item, body)


class ComparesFirst(Right):
    """Locks after it has compared: of six who have read, all have the newest tag."""

    six = threading.Barrier(6)

    def refusal(self, item: Item | None) -> int | None:
        status = super().refusal(item)
        ended = [*self.server.methods][-12:]
        while ended[-1:] == ["PUT"]:
            ended.pop()
        if status is None and ended[-6:] == ["GET"] * 6:
            self.server.lock.release()
            self.six.wait(60)
            self.server.lock.acquire()
        return status


class Redirects(Right):
    """Sends the same page after each POST."""

    def do_POST(self) -> None:
        self.sent()
        self.answer(308, Location="/items/1")


class Fixed(Right):
    """Lets nobody change the title, and stores a body as it is; another client adds a member."""

    def store(self, item: Item, body: bytes) -> None:
        super().store(item, json.dumps({**json.loads(body), "views": 7}).encode())

    def refusal(self, item: Item | None) -> int | None:
        title = json.loads(self.body).get("title") if self.command == "PUT" else None
        return 422 if title not in (None, FIRST["title"]) else super().refusal(item)

    def answer(self, status: int, item: Item | None = None, **fields: str) -> None:
        said = Item(b'{"detail": "title cannot be changed"}')
        super().answer(status, said if status == 422 else item, **fields)


class AwayForAWhile(Right):
    """Answers 502, with a page for people, to some requests after the second write."""

    def parse_request(self) -> bool:
        found = super().parse_request()
        if found and self.server.methods.count("PUT") == 2 and next(self.server.requests) < 5:
            self.sent() if "Content-Length" in self.headers else None
            self.answer(502)
            return False
        return found


class Named(Right):
    """A 422 names a member that clients may not send, and that the server keeps."""

    def store(self, item: Item, body: bytes) -> None:
        super().store(item, json.dumps({**json.loads(item.body), **json.loads(body)}).encode())

    def refusal(self, item: Item | None) -> int | None:
        return 422 if b"size" in self.body else super().refusal(item)

    def answer(self, status: int, item: Item | None = None, **fields: str) -> None:
        said = Item(b'{"detail": [{"loc": ["body", "size"], "msg": "unknown"}]}')
        super().answer(status, said if status == 422 else item, **fields)
