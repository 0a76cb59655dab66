"""Forms that no browser sends: each is refused, nothing of it is stored, and a person keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from optilock import UnitOfWork
from tests.web.form_pages import COLUMNS, FORM, SERVED, Row, as_written, page_of, sessions_of

FORM_TYPE = "application/x-www-form-urlencoded"
#: Posts a body of a media type: the status and the text of the answer.
Post = Callable[[bytes, str], tuple[int, str]]


def on_fastapi_with_request(sessions: Any) -> Any:
    """A route that reads its form itself."""
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse

    from optilock.web.fastapi import install

    app = FastAPI()
    install(app)

    async def edit(request: Request) -> HTMLResponse:
        sent = await request.form()
        with UnitOfWork(sessions) as session:
            again = FORM.save(session, 1, sent)
        page = "saved" if again is None else page_of(again)
        return HTMLResponse(page, 200 if again is None else again.status)

    edit.__annotations__ = {"request": Request}
    app.add_api_route("/", edit, methods=["POST"], response_model=None)
    return app


ALL = {**SERVED, "fastapi with a request": on_fastapi_with_request}


def poster(name: str, app: Any) -> Post:
    if name == "flask":
        flask = app.test_client()

        def of_flask(body: bytes, kind: str) -> tuple[int, str]:
            answer = flask.post("/", data=body, content_type=kind)
            return answer.status_code, answer.get_data(as_text=True)

        return of_flask
    if name == "litestar":
        from litestar.testing import TestClient as LitestarClient

        client: Any = LitestarClient(app, raise_server_exceptions=False)
    else:
        from starlette.testclient import TestClient

        client = TestClient(app, raise_server_exceptions=False)

    def post(body: bytes, kind: str) -> tuple[int, str]:
        answer = client.post("/", content=body, headers={"Content-Type": kind})
        return answer.status_code, answer.text

    return post


@pytest.fixture(params=ALL)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, Post]]:
    engine = sa.create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    sessions = sessions_of(engine)
    with sessions.begin() as session:
        values = {name: as_written(name, 0) for name in COLUMNS}
        session.add(Row(id=1, title="old", other="old", **values))
    yield request.param, sessions, poster(request.param, ALL[request.param](sessions))
    engine.dispose()


def encoded(fields: dict[str, str | list[str]], *more: str) -> bytes:
    pairs = [
        f"{quote(name)}={quote(text)}"
        for name, texts in fields.items()
        for text in ([texts] if isinstance(texts, str) else texts)
    ]
    return "&".join([*pairs, *more]).encode()


def multipart(*parts: tuple[str, bytes]) -> tuple[bytes, str]:
    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (head.encode(), text)
        for head, text in parts
    )
    return body + b"--x--\r\n", "multipart/form-data; boundary=x"


def requests(seen: str, foreign: str, fields: dict[str, Any]) -> dict[str, tuple[bytes, str, Any]]:
    """Return bodies, their media type, and whether a person sees the typed text again."""
    typed = {**fields, "line": "typed by me", "seen": seen}

    def form(is_kept: bool = True, *more: str, **others: Any) -> tuple[bytes, str, bool]:
        return encoded({**typed, **others}, *more), FORM_TYPE, is_kept

    found: dict[str, tuple[bytes, str, Any]] = {
        "forged": form(seen="A" * 22 + seen[22:]),
        "cut": form(seen=seen[:-9]),
        "longer": form(seen=seen + "A"),
        "foreign": form(seen=foreign),
        "huge seen": form(seen="x." + "A" * 400_000),
        "a bomb": form(seen="eJ" * 1000),
        "seen with letters": form(seen="é" * 40),
        "half a pair in seen": form(True, "seen=%ED%A0%80"),
        "two seen": form(True, "seen=other"),
        "NUL in a number": form(whole="1\0"),
        "no UTF-8 in a number": form(True, "whole=%FF%FE", whole=[]),
        "half a pair in a number": form(True, "whole=%ED%A0%80", whole=[]),
        "a huge number": form(whole="9" * 5000),
        "infinity": form(money="Infinity", ratio="nan"),
        "a moment that is none": form(instant="9999-12-31T23:59:59.999", clock="25:61"),
        "an enum that is none": form(colour="__class__"),
        "a field 900 times": form(title=[f"{number}" for number in range(900)]),
        "a field 5,000 times": form(False, title=[f"{number}" for number in range(5000)]),
        "a number twice": form(whole=["1", "2"]),
        "nested JSON in a number": form(whole=json.dumps({"a": [1]})),
        "a field with brackets": form(True, "whole[]=5", "whole=1&whole=x"),
        "JSON": (json.dumps({**typed, "line": {"a": ["b"]}}).encode(), "application/json", None),
        "deep JSON": (b"[" * 100_000 + b"]" * 100_000, "application/json", None),
        "no body": (b"", FORM_TYPE, None),
        "no form": (b"%PDF", "application/pdf", None),
        "half of a multipart": (
            multipart(("seen", seen.encode()))[0][:40], "multipart/form-data; boundary=x", None,
        ),
        "a multipart without a boundary": (b"--x", "multipart/form-data", None),
        "no multipart": (b"abc", "multipart/form-data; boundary=" + "y" * 300, None),
        "a file as text": (
            *multipart(("seen", seen.encode()), ('line"; filename="a.txt', b"typed by me")), "any",
        ),
        "a file as seen": (
            *multipart(('seen"; filename="a', seen.encode()), ("line", b"typed by me")), None,
        ),
        "bytes in a multipart": (*multipart(("seen", seen.encode()), ("whole", b"\xff\xfe")), None),
    }  # fmt: skip
    return found


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # files of frameworks
def test_no_form_is_a_500_and_none_is_stored(served: tuple[str, Any, Post]) -> None:
    _, sessions, post = served
    with sessions() as session:
        form = FORM.of(session.get_one(Row, 1))
        session.add(Row(id=2, title="b", other="b"))
        session.flush()
        foreign = FORM.of(session.get_one(Row, 2)).seen
        session.rollback()
    fields = {**form.texts, **form.lists}
    wrong = []
    for name, (body, kind, is_kept) in requests(form.seen, foreign, fields).items():
        status, page = post(body, kind)
        with sessions() as session:
            row = session.get_one(Row, 1)
            stored = (row.line, row.title, row.whole)
        is_refused = 400 <= status < 500 or is_kept == "any"
        is_shown = is_kept is not True or "typed by me" in page
        if not is_refused or not is_shown or stored != ("one\ntwo", "old", -5):
            wrong.append((name, status, stored, page[:80] if is_kept is True else ""))
            if stored != ("one\ntwo", "old", -5):
                with sessions.begin() as session:
                    row = session.get_one(Row, 1)
                    row.line, row.title, row.whole = "one\ntwo", "old", -5
    assert not wrong, "\n".join(map(str, wrong))


VALUES = ({"a": 1}, [["a"]], [{"b": 1}], float("nan"), float("inf"), 10**400, "\ud800", b"x")
JSON: list[Any] = [
    *([], [1], "x", 5, None, True, [{"seen": "x"}]),
    *({"seen": value} for value in (5, {"a": 1}, ["x", "y"])),
    *(
        {name: value}
        for name in ("line", "whole", "colour", "ident", "instant")
        for value in VALUES
    ),
    *({"whole": value} for value in (True, 1.5)),
    {"line": 5},
    *({"flag": value} for value in VALUES[:3]),
    *({"tags": value} for value in ({"a": 1}, [{"a": 1}], [["a"]], ["\ud800"], ["\0"])),
    {"tags": "b"},  # what dict(form) leaves of two
]


@pytest.mark.engines("sqlite", "postgresql")  # the table has texts without a length
def test_no_json_is_an_error_of_the_server_and_none_is_stored(engine: sa.Engine) -> None:
    sessions = sessions_of(engine)
    with sessions.begin() as session:
        session.add(Row(id=1, **{name: as_written(name, 0) for name in COLUMNS}))
    with sessions() as session:
        form = FORM.of(session.get_one(Row, 1))
    shown = {**form.texts, **form.lists, "seen": form.seen}
    wrong = []
    for sent in JSON:
        mapping = {**shown, "flag": "true", **sent} if isinstance(sent, dict) else sent
        try:
            with UnitOfWork(sessions) as session:
                again = FORM.save(session, 1, mapping)
                if again is not None:
                    page_of(again).encode()
        except Exception as error:
            wrong.append((sent, repr(error)[:300]))
        else:
            if again is None:
                wrong.append((sent, "stored"))
    assert not wrong, "\n".join(map(str, wrong))
