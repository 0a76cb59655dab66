"""A server of conditional requests in a process of its own, and a proxy that loses its answers.

``python -m tests.support.pages_server <url> <statement for a new connection> …`` prints its port,
and serves until its standard input is closed:

``PUT /pages/<number>``, ``PATCH``, ``DELETE``  with ``If-Match``, or ``If-None-Match: *``
``POST /pages``                                 the server chooses the key
``GET /pages/<key>``                            the text, and the tag

The body is the text of the page; ``From`` says who sends it. ``serving(target)`` starts two for a
test, and ``lossy(port)`` a proxy in front of one, which cuts the client off after the server has
answered, and so after COMMIT.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, String, event
from sqlalchemy import create_engine as engine_of
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import OptilockError, Versioned, entities, etag_of
from optilock.entities import Idempotency
from optilock.preconditions.rfc9110 import required
from optilock.tokens import Unique

if TYPE_CHECKING:  # not in the servers, which are to start soon
    from tests.engines import Target

__all__ = ["Lossy", "Page", "Write", "lossy", "prepare", "serving"]

ROOT = Path(__file__).parents[2]
SECRET = "the same secret for all processes"


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "served_pages"
    __version_token__ = Unique()
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    text: Mapped[str | None] = mapped_column(String(40))


class Write(Base):
    """One row for each write of a page: a trigger of the database notes it, whoever writes."""

    __tablename__ = "served_writes"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str | None] = mapped_column(String(40))


def prepare(engine: Engine) -> None:
    """Make the tables, and the triggers."""
    Base.metadata.create_all(engine)
    note = f"INSERT INTO {Write.__tablename__} (text) VALUES (NEW.text)"
    run = f"BEGIN {note}; END"
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(
                "CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN {note}; RETURN NEW; END $$"
            )
            run = "EXECUTE FUNCTION note_write()"
        for what in ("INSERT", "UPDATE"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER note_{what} AFTER {what} ON {Page.__tablename__}"
                f" FOR EACH ROW {run}"
            )


# -- the server ------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def do_GET(self) -> None:
        with Session(self.engine) as session:
            page = session.get_one(Page, self._key())
            self._answer(200, etag_of(page), page.text or "")

    def _write(self) -> None:
        asked = required(self.command, list(self.headers.items()))
        if self.command != "POST" and asked.status is not None:
            return self._answer(asked.status)
        try:
            with Session(self.engine) as session, session.begin():
                again = Idempotency(
                    self.headers["Idempotency-Key"], keys=[SECRET], principal=self.headers["From"]
                )
                stored = self._stored(session, asked, again)
        except OptilockError as error:
            return self._answer(error.status)  # type: ignore[attr-defined]
        return self._answer(204, stored.etag, again=stored.again)

    do_PUT = do_PATCH = do_POST = do_DELETE = _write

    def _stored(self, session: Session, asked: Any, again: Idempotency) -> entities.Stored:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        values, key = {"text": body}, self._key()
        if key is None:
            return entities.insert(session, Page, None, values, idempotency=again)
        if asked.absent:
            return entities.insert(session, Page, key, values, if_none_match="*", idempotency=again)
        if_match = "*" if asked.exists else asked.versions
        if self.command == "DELETE":
            return entities.delete(session, Page, key, if_match=if_match, idempotency=again)
        write = entities.replace if self.command == "PUT" else entities.merge
        return write(session, Page, key, values, if_match=if_match, idempotency=again)

    def _key(self) -> uuid.UUID | None:
        _, _, key = self.path.removeprefix("/pages").rpartition("/")
        return uuid.UUID(int=int(key)) if key else None

    def _answer(
        self, status: int, etag: str | None = None, body: str = "", again: bool = False
    ) -> None:
        self.send_response(status)
        if etag is not None:
            self.send_header("ETag", etag)
        self.send_header("Again", str(again))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *words: Any) -> None:
        pass


def main(url: str, *on_connect: str) -> None:
    Handler.engine = engine_of(url)

    @event.listens_for(Handler.engine, "connect")
    def set_up(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        for statement in on_connect:
            cursor.execute(statement)
        cursor.close()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        sys.stdin.read()  # whoever has started it is gone, or wants it to end
        server.shutdown()
    Handler.engine.dispose()


@contextmanager
def serving(target: Target) -> Iterator[tuple[int, int]]:
    """The ports of two servers of this database, in processes that end with the block."""
    processes = [_started(target), _started(target)]
    try:
        first, second = (int(one.stdout.readline()) for one in processes if one.stdout)
        yield first, second
    finally:
        for one in processes:
            assert one.stdin is not None
            one.stdin.close()
        for one in processes:
            one.wait(timeout=60)
            assert one.stdout is not None
            one.stdout.close()


def _started(target: Target) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.pages_server", target.url, *target.on_connect],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# -- the proxy -------------------------------------------------------------------------------------


class Lossy:
    """A line to a server. While it is ``losing``, what the server answers cuts the client off."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.losing = threading.Event()

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)

    def answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while (data := server.recv(1 << 16)) and not self.losing.is_set():
                client.sendall(data)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def lossy(port: int) -> Iterator[Lossy]:
    """A line to the server at this port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = Lossy(listener.getsockname()[1])
        thread = threading.Thread(target=_accept, args=(listener, port, line), daemon=True)
        thread.start()
        yield line
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=5)


def _accept(listener: socket.socket, port: int, line: Lossy) -> None:
    with suppress(OSError), ExitStack() as ends:  # the listener is closed
        while True:
            client = ends.enter_context(listener.accept()[0])
            server = ends.enter_context(socket.create_connection(("127.0.0.1", port)))
            for work in ((line.pass_on, client, server), (line.answer, server, client)):
                threading.Thread(target=work[0], args=work[1:], daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
