"""What clients get wrong, behind each framework: the right status, a short answer, no write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, inspect
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from optilock import etag_of
from optilock.preconditions.entity_tags import PLAIN, ETags
from tests.applications import on_fastapi, on_flask, on_litestar, on_starlette, pages
from tests.applications.pages import Base, Note, Page
from tests.support.serving import Answer, asgi, ask, wsgi

FRAMEWORKS = ("fastapi", "flask", "litestar", "starlette")


@dataclass(frozen=True)
class Served:
    """An application that is being served, and its database."""

    port: int
    engine: Engine


@pytest.fixture(scope="module", params=FRAMEWORKS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    name = request.param
    path = tmp_path_factory.mktemp(name) / "pages.db"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    other = create_async_engine(f"sqlite+aiosqlite:///{path}")
    sessions, async_sessions = sessionmaker(engine), async_sessionmaker(other)

    def another(key: int) -> None:
        pages.another(engine, key)

    serve: dict[str, Callable[[], Any]] = {
        "fastapi": lambda: asgi(on_fastapi.application(sessions)),
        "flask": lambda: wsgi(on_flask.application(sessions)),
        "litestar": lambda: asgi(on_litestar.application(async_sessions, another)),
        "starlette": lambda: asgi(on_starlette.application(async_sessions, another)),
    }
    with serve[name]() as port:
        yield Served(port, engine)
    asyncio.run(other.dispose())
    engine.dispose()


GOOD = {"title": "Written"}


def of(etags: ETags, model: Any = Page, key: int = 1) -> str:
    """A tag that somebody has made up."""
    return etags.tag(inspect(model), (key,), UUID(int=7))


LINES: dict[str, tuple[Callable[[str, str], list[tuple[str | bytes, str | bytes]]], set[int]]] = {
    "nothing": (lambda tag, other: [], {428}),
    "only a date": (
        lambda tag, other: [("If-Unmodified-Since", "Fri, 31 Dec 2199 23:59:59 GMT")],
        {428},
    ),
    "two dates": (lambda tag, other: [("If-Unmodified-Since", "x")] * 2, {428}),
    "empty": (lambda tag, other: [("If-Match", "")], {400}),
    "without quotes": (lambda tag, other: [("If-Match", tag.strip('"'))], {400}),
    "single quotes": (lambda tag, other: [("If-Match", "'abc'")], {400}),
    "an open quote": (lambda tag, other: [("If-Match", tag[:-1])], {400}),
    "a control byte": (lambda tag, other: [("If-Match", b'"a\x01b"')], {400}),
    "a control byte after": (lambda tag, other: [("If-Match", tag.encode() + b"\x7f")], {400}),
    "star beside tags": (lambda tag, other: [("If-Match", f"*, {tag}")], {400}),
    "star and tag in two lines": (
        lambda tag, other: [("If-Match", tag), ("If-Match", "*")],
        {400},
    ),
    "a good line and a bad one": (
        lambda tag, other: [("If-Match", tag), ("if-match", "x")],
        {400},
    ),
    "oversized": (lambda tag, other: [("If-Match", tag + ", " * 5000)], {400, 431}),
    "too many": (lambda tag, other: [("If-Match", ", ".join([tag] * 65))], {400}),
    "bytes that are no ASCII": (lambda tag, other: [("If-Match", b'"caf\xe9"')], {412}),
    "weak": (lambda tag, other: [("If-Match", f"W/{tag}")], {412}),
    "of another row": (lambda tag, other: [("If-Match", other)], {412}),
    "of another table": (lambda tag, other: [("If-Match", of(PLAIN, Note))], {412}),
    "of another tenant": (
        lambda tag, other: [("If-Match", of(ETags(tenant="acme")))],
        {412},
    ),
    "signed by somebody": (
        lambda tag, other: [("If-Match", of(ETags(keys=["k" * 32])))],
        {412},
    ),
    "no version of the class": (
        lambda tag, other: [("If-Match", tag.split(".")[0] + "." + "9" * 60 + '"')],
        {412},
    ),
    "star that is to be absent": (lambda tag, other: [("If-None-Match", "*")], {412, 400}),
    "its own tag not to be there": (lambda tag, other: [("If-None-Match", tag)], {428}),
    "tag and the same not": (
        lambda tag, other: [("If-Match", tag), ("If-None-Match", tag)],
        {412},
    ),
    "there and absent": (
        lambda tag, other: [("If-Match", "*"), ("If-None-Match", "*")],
        {412},
    ),
}


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("case", LINES)
def test_a_bad_condition_is_refused_and_nothing_is_written(
    served: Served, case: str, method: str
) -> None:
    first = pages.fill(served.engine)
    lines, statuses = LINES[case]
    before = pages.stored(served.engine)
    body = None if method == "DELETE" else GOOD
    sent = lines(etag_of(first), of(PLAIN, key=2))
    answer = ask(served.port, method, "/pages/1", sent, body)
    assert answer.status in statuses
    assert pages.stored(served.engine) == before
    is_short_and_tells_nothing(answer)


def is_short_and_tells_nothing(answer: Answer) -> None:
    assert len(answer.content) < 1000
    for word in (b"SELECT", b"UPDATE", b"Page", b"hidden", b"optilock.", b"Traceback"):
        assert word not in answer.content


BODIES: dict[str, tuple[object, set[int]]] = {
    "broken": (b"{", {400, 422}),
    "no text": (b"\xff\xfe", {400, 422}),
    "a list": ([1], {400, 422}),
    "an unknown field": ({"title": "x", "colour": "red"}, {400, 422}),
    "the key": ({"title": "x", "id": 9}, {400, 422}),
    "the version": ({"title": "x", "version": "1"}, {400, 422}),
    "null": ({"title": None}, {400, 422}),
}


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize("case", BODIES)
def test_a_bad_body_is_refused_after_a_bad_condition_and_before_a_stale_one(
    served: Served, case: str, method: str
) -> None:
    first = pages.fill(served.engine)
    body, statuses = BODIES[case]
    before = pages.stored(served.engine)
    for lines in ([("If-Match", etag_of(first))], [("If-Match", '"stale"')]):
        answer = ask(served.port, method, "/pages/1", lines, body)
        assert answer.status in statuses
        is_short_and_tells_nothing(answer)
    assert ask(served.port, method, "/pages/1", [], body).problem["status"] == 428
    assert ask(served.port, method, "/pages/1", [("If-Match", "x")], body).problem["status"] == 400
    assert pages.stored(served.engine) == before


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_what_is_not_there_any_more_is_404_whatever_was_demanded(
    served: Served, method: str
) -> None:
    tag = etag_of(pages.fill(served.engine))
    pages.empty(served.engine)
    for line in (tag, "*"):
        answer = ask(served.port, method, "/pages/1", [("If-Match", line)], GOOD)
        assert answer.problem["type"] == "urn:optilock:not-found"
    assert pages.stored(served.engine) == []


def test_unknown_methods_and_paths_write_nothing(served: Served) -> None:
    tag = etag_of(pages.fill(served.engine))
    before = pages.stored(served.engine)
    assert ask(served.port, "BREW", "/pages/1", [("If-Match", tag)], GOOD).status in (405, 501)
    assert ask(served.port, "PUT", "/pages/one", [("If-Match", tag)], GOOD).status in (404, 422)
    assert pages.stored(served.engine) == before


def test_who_may_not_is_told_so_first(served: Served) -> None:
    pages.fill(served.engine)
    for body in (b"{", GOOD):
        for lines in ([], [("If-Match", "x")]):
            sent = [*lines, ("X-Who", "nobody")]
            assert ask(served.port, "PATCH", "/pages/1", sent, body).status == 403


def test_several_lines_are_one_list(served: Served) -> None:
    tag = etag_of(pages.fill(served.engine))
    lines = [("If-Match", '"a,b"'), ("if-match", f' "c" , {tag}')]
    answer = ask(served.port, "PUT", "/pages/1", lines, GOOD)
    assert (answer.status, answer.headers["etag"] != tag) == (200, True)


def test_a_get_carries_the_tag_and_is_answered_with_304(served: Served) -> None:
    tag = etag_of(pages.fill(served.engine))
    plain = ask(served.port, "GET", "/pages/1")
    assert (plain.status, plain.headers["etag"]) == (200, tag)
    known = ask(served.port, "GET", "/pages/1", [("If-None-Match", f"W/{tag}")])
    assert (known.status, known.headers["etag"], known.content) == (304, tag, b"")
    failed = ask(served.port, "GET", "/pages/1", [("If-Match", '"x"')])
    assert failed.problem["etag"] == tag


def test_an_answer_to_head_has_no_body(served: Served) -> None:
    tag = etag_of(pages.fill(served.engine))
    there = ask(served.port, "HEAD", "/pages/1")
    assert (there.status, there.headers["etag"], there.content) == (200, tag, b"")
    gone = ask(served.port, "HEAD", "/pages/9")
    assert (gone.status, gone.content) == (404, b"")
    assert gone.headers["content-type"] == "application/problem+json"
    assert ask(served.port, "GET", "/pages/9").problem["title"] == "Not Found"


def test_a_conflict_shows_the_tag_and_the_listed_values_and_no_others(served: Served) -> None:
    tag = etag_of(pages.fill(served.engine))
    pages.another(served.engine, 1)
    late = ask(served.port, "PATCH", "/pages/1", [("If-Match", tag)], GOOD)
    assert late.status == 412
    assert late.problem["etag"] == late.headers["etag"] != tag
    assert late.problem["conflicts"] == {"title": {"current": "Written", "database": "Theirs"}}
    again = ask(served.port, "PATCH", "/pages/1", [("If-Match", late.headers["etag"])], GOOD)
    assert again.status in (200, 204)


def test_a_conflict_at_commit_is_an_answer(served: Served) -> None:
    pages.fill(served.engine)
    answer = ask(served.port, "PUT", "/late/1")
    assert (answer.status, answer.problem["type"]) == (409, "urn:optilock:conflict")
