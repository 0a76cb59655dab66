"""Streams of changes through each framework, served by uvicorn; Flask's answer in place of one."""

# No annotations from the future: the frameworks read those of local names.
import json
import socket
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPResponse

import litestar
import pytest
from fastapi import FastAPI, Request, Response
from flask import Flask
from litestar.params import FromPath
from litestar.response import Stream
from sqlalchemy.orm import Session, sessionmaker

import optilock.live.flask
import optilock.live.litestar
import optilock.live.starlette
import optilock.web.flask
from optilock import etag_of
from optilock.live import Changes
from optilock.web.fastapi import install
from optilock.web.litestar import OptilockPlugin
from tests.support.models import Account
from tests.support.serving import asgi, ask

pytestmark = pytest.mark.engines("sqlite-wal")


def may_read(row: Account) -> bool:
    return row.owner == "Ada"


def on_fastapi(changes: Changes) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI):
        async with changes:
            yield

    app = FastAPI(lifespan=lifespan)
    install(app)

    @app.get("/accounts/{key}/changes")
    async def follow(key: int, request: Request) -> Response:
        return await optilock.live.starlette.stream_changes(
            request, changes, Account, key, authorize=may_read
        )

    return app


def on_litestar(changes: Changes) -> litestar.Litestar:
    @asynccontextmanager
    async def lifespan(_: litestar.Litestar):
        async with changes:
            yield

    @litestar.get("/accounts/{key:int}/changes")
    async def follow(key: FromPath[int], request: litestar.Request) -> Stream:
        return await optilock.live.litestar.stream_changes(
            request, changes, Account, key, authorize=may_read
        )

    return litestar.Litestar([follow], plugins=[OptilockPlugin()], lifespan=[lifespan])


@contextmanager
def stream(port: int, path: str, **fields: str) -> Iterator[HTTPResponse]:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        answer = HTTPResponse(connection)
        answer.begin()
        yield answer
        answer.close()


def next_event(answer: HTTPResponse) -> tuple[str, dict]:
    found = {}
    while "data" not in found:
        name, _, value = answer.readline().decode().rstrip("\n").partition(": ")
        found[name] = value
    return found["id"], json.loads(found["data"])


def write(engine, owner: str) -> str:
    with Session(engine, expire_on_commit=False) as session:
        account = session.get_one(Account, 1)
        account.note = owner
        session.commit()
        return etag_of(account)


@pytest.mark.parametrize("application", [on_fastapi, on_litestar])
def test_a_page_follows_its_row_and_comes_back(engine, account, application) -> None:
    with asgi(application(Changes(engine, poll=0.01))) as port:
        path = "/accounts/1/changes"
        with stream(port, path) as answer:
            assert answer.status == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.readline().startswith(b"retry: ")
            first = write(engine, "one")
            id_, data = next_event(answer)
            assert id_ == data["tag"] == first
        second = write(engine, "two")
        with stream(port, path, Last_Event_ID=first) as answer:
            assert next_event(answer)[0] == second
        with stream(port, f"{path}?seen={first}") as answer:
            assert next_event(answer)[0] == second
        for hidden in (2, 3):  # Bob's, and none
            assert ask(port, "GET", f"/accounts/{hidden}/changes").status == 404


def test_a_page_of_flask_asks(engine, account) -> None:
    sessions = sessionmaker(engine)
    app = Flask(__name__)
    optilock.web.flask.Optilock(app)

    @app.get("/accounts/<int:key>/change")
    def change(key: int):
        return optilock.live.flask.changed_since(sessions, Account, key, authorize=may_read)

    client = app.test_client()
    first = client.get("/accounts/1/change").json["tag"]
    assert client.get("/accounts/1/change", query_string={"seen": first}).status_code == 304
    second = write(engine, "one")
    answer = client.get("/accounts/1/change", query_string={"seen": first})
    assert (answer.json["tag"], answer.headers["Cache-Control"]) == (second, "no-store")
    assert client.get("/accounts/2/change").status_code == 404
