"""Requests that are sent twice, in FastAPI and Flask; and Idempotency-Keys that nobody can read."""

# No annotations from the future: FastAPI reads those of local names.
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Request, Response
from flask import Flask, request
from flask import Response as FlaskResponse
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock import UnitOfWork, etag_of
from optilock.entities import Idempotency
from optilock.web.conditions import STRICT, Policy
from optilock.web.fastapi import Conditions, install, unit
from optilock.web.flask import Optilock
from tests.applications.pages import Base, Page, fill, stored
from tests.support.serving import asgi, ask, wsgi

SECRETS = ["s" * 32]
KEY = '"8e03978e-40d5-43e6"'
FREE = Policy(require=None)


def on_fastapi(sessions: sessionmaker[Session], policy: Policy) -> FastAPI:
    app = FastAPI()
    install(app, policy=policy)

    def again_of(request: Request) -> Idempotency:
        lines = request.headers.getlist("Idempotency-Key")
        return Idempotency(", ".join(lines) if lines else None, keys=SECRETS, principal="ada")

    again = Annotated[Idempotency, Depends(again_of)]
    db = Annotated[Session, unit(sessions)]

    @app.put("/pages/{key}", status_code=204)
    def put(
        key: int, page: dict[str, Any], once: again, asked: Conditions, session: db
    ) -> Response:
        done = asked.put(session, Page, key, page, idempotency=once)
        return Response(status_code=204, headers={"ETag": str(done.etag)})

    return app


def on_flask(sessions: sessionmaker[Session], policy: Policy) -> Flask:
    app = Flask(__name__)
    optilock = Optilock(app, policy=policy)

    @app.put("/pages/<int:key>")
    def put(key: int) -> FlaskResponse:
        header = request.headers.get("Idempotency-Key")
        once = Idempotency(header, keys=SECRETS, principal="ada")
        asked = optilock.conditions()
        with UnitOfWork(sessions) as session:
            done = asked.put(session, Page, key, request.get_json(), idempotency=once)
        return FlaskResponse(status=204, headers={"ETag": str(done.etag)})

    return app


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'pages.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(params=["fastapi", "flask"])
def serve(request: pytest.FixtureRequest, engine: Engine) -> Any:
    sessions = sessionmaker(engine)
    if request.param == "fastapi":
        return lambda policy=STRICT: asgi(on_fastapi(sessions, policy))
    return lambda policy=STRICT: wsgi(on_flask(sessions, policy))


def test_a_request_that_was_sent_twice_counts_once(serve: Any, engine: Engine) -> None:
    lines = [("If-Match", etag_of(fill(engine))), ("Idempotency-Key", KEY)]
    with serve() as port:
        first = ask(port, "PUT", "/pages/1", lines, {"title": "Once"})
        kept = stored(engine)
        second = ask(port, "PUT", "/pages/1", lines, {"title": "Once"})
        other = ask(port, "PUT", "/pages/1", lines, {"title": "Other"})
    assert (first.status, second.status, other.status) == (204, 204, 412)
    assert first.headers["etag"] == second.headers["etag"] == other.headers["etag"]
    assert stored(engine) == kept


def test_an_idempotency_key_that_cannot_be_read_is_a_problem_document(
    serve: Any, engine: Engine
) -> None:
    tag = etag_of(fill(engine))
    before = stored(engine)
    wrong: list[list[str | bytes]] = [
        [""], ['"open'], ["two words"], ['"a", "b"'], [KEY, KEY], ["a", "b"], ['""'], ["*; q=1"],
        ["x" * 256], [b"caf\xe9"], [b'"\x01"'],
    ]  # fmt: skip
    with serve() as port:
        for values in wrong:
            lines = [("If-Match", tag), *(("Idempotency-Key", value) for value in values)]
            answer = ask(port, "PUT", "/pages/1", lines, {"title": "Never"})
            assert (answer.status, answer.problem["type"]) == (400, "urn:optilock:bad-precondition")
            assert "Idempotency-Key" in answer.problem["detail"]
    assert stored(engine) == before


def test_the_last_writer_wins_with_a_key_as_without_one(serve: Any, engine: Engine) -> None:
    fill(engine)
    lines = [("Idempotency-Key", KEY)]
    with serve(FREE) as port:
        tags = [ask(port, "PUT", "/pages/1", lines, {"title": "Any"}) for _ in range(2)]
    assert [answer.status for answer in tags] == [204, 204]
    assert tags[0].headers["etag"] != tags[1].headers["etag"]
