"""Conditional PUTs through FastAPI: the application of the usual way, ours, and a client of both.

The client calls the application in this process, as a server would, with a request that has been
parsed. A socket and a parser cost both the same, and would only move the ratio towards 1.00. The
routes are plain functions, so they run in FastAPI's threads, and each has its session by a
dependency.
"""

# No annotations from the future: FastAPI reads those of local names.
import asyncio
import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.models import NativeItem, OptilockItem
from optilock import entities
from optilock.web.fastapi import Conditions, install, unit

__all__ = ["Client", "our_application", "usual_application"]


class ItemIn(BaseModel):
    """The body."""

    name: str
    amount: int
    note: str


def usual_application(sessions: sessionmaker[Session]) -> FastAPI:
    """SELECT, compare, UPDATE; 412 where the version is another one."""
    app = FastAPI()

    def session_of_request() -> Iterator[Session]:
        with sessions() as session:
            yield session

    @app.put("/items/{key}", status_code=204)
    def put(
        key: int,
        item: ItemIn,
        session: Annotated[Session, Depends(session_of_request)],
        if_match: Annotated[str, Header()],
        response: Response,
    ) -> None:
        stored = session.get(NativeItem, key)
        if stored is None:
            raise HTTPException(404)
        if if_match != f'"{stored.version}"':
            raise HTTPException(412)
        for name, value in item.model_dump().items():
            setattr(stored, name, value)
        session.flush()
        response.headers["ETag"] = f'"{stored.version}"'
        session.commit()

    return app


def our_application(sessions: sessionmaker[Session]) -> FastAPI:
    """One statement."""
    app = FastAPI()
    install(app)
    db = unit(sessions)

    @app.put("/items/{key}", status_code=204)
    def put(
        key: int,
        item: ItemIn,
        session: Annotated[Session, db],
        conditions: Conditions,
        response: Response,
    ) -> None:
        stored = entities.replace(
            session, OptilockItem, key, item.model_dump(), **conditions.demands
        )
        assert stored.etag is not None
        response.headers["ETag"] = stored.etag

    return app


class Client:
    """Sends the tag that the answer before has brought."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop, etag: str) -> None:
        self._app, self._loop, self._etag = app, loop, etag

    def put(self, bodies: Iterable[dict[str, Any]]) -> None:
        """Store these values in row 1, one after the other.

        They are one task, as in a server: FastAPI's threads end with the task that began them.
        """
        self._loop.run_until_complete(self._put_all([json.dumps(one).encode() for one in bodies]))

    async def _put_all(self, bodies: list[bytes]) -> None:
        for body in bodies:
            status, headers = await self._put(body)
            assert status == 204, status
            self._etag = headers[b"etag"].decode()

    async def _put(self, body: bytes) -> tuple[int, dict[bytes, bytes]]:
        answers: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            answers.append(message)

        await self._app(self._scope(len(body)), receive, send)
        return answers[0]["status"], dict(answers[0]["headers"])

    def _scope(self, length: int) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "PUT",
            "scheme": "http",
            "path": "/items/1",
            "raw_path": b"/items/1",
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"127.0.0.1:8000"),
                (b"content-type", b"application/json"),
                (b"content-length", str(length).encode()),
                (b"if-match", self._etag.encode()),
            ],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
        }
