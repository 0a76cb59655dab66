"""Every request of the RFC's table, through a server, to a row: the answer, and what is stored.

A tag of the table is the row's own tag, and the older one that of the version before it. Where the
table has tags that no row has (weak ones, empty ones), the application makes tags of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock import etag_of
from optilock.conditions.request import date
from tests.applications import on_fastapi, on_flask, pages
from tests.applications.pages import Base, Page
from tests.support.serving import asgi, ask, wsgi

TABLE = Path(__file__).parents[1] / "vectors" / "http_preconditions.json"
VECTORS = [pytest.param(one, id=one["id"]) for one in json.loads(TABLE.read_text())["vectors"]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path_factory.mktemp('vectors') / 'pages.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module", params=["fastapi", "flask"])
def port(request: pytest.FixtureRequest, engine: Engine) -> Iterator[int]:
    sessions = sessionmaker(engine)
    if request.param == "flask":
        with wsgi(on_flask.application(sessions)) as port:
            yield port
    else:
        with asgi(on_fastapi.application(sessions)) as port:
            yield port


def test_the_whole_table_is_asked() -> None:
    assert len(VECTORS) == 73


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.tenth
def test_a_server_answers_as_the_table_says_and_writes_nothing_else(
    vector: Any, engine: Engine, port: int
) -> None:
    state, request = vector["given"], vector["steps"][0]["args"]
    method, headers = request["method"], request["headers"]
    own = state["etag"] not in ('"v5"', None) or (state["exists"] and state["etag"] is None)
    names = prepared(engine, state, own=own)
    lines = [(name, in_terms_of(names, value)) for name, value in headers.items()]
    if state["status_without_conditions"] == 403:
        lines.append(("X-Who", "nobody"))
    kind = "pages" if state["policy"] else "own" if own else "free"
    body = {"title": "Written"} if method in ("PUT", "PATCH", "POST") else None
    before = pages.stored(engine)

    answer = ask(port, method, f"/{kind}/1", lines, body)

    wanted = {vector["steps"][0]["expect"]["status"], *vector.get("also_acceptable", ())}
    assert answer.status in wanted
    assert changed(before, pages.stored(engine)) == done(method, answer.status)
    if answer.status in (400, 412, 428):
        assert answer.problem["type"].startswith("urn:optilock:")
    if answer.status == 304:
        assert (answer.content, "etag" in answer.headers) == (b"", state["etag"] is not None)


def prepared(engine: Engine, state: Any, *, own: bool) -> dict[str, str]:
    """Store what is given; the words of the table, and what they are here."""
    if not state["exists"]:
        pages.empty(engine)
        return {"v5": "none.5", "v4": "none.4", "v3": "none.3", "V5": "NONE.5"}
    modified = date(state["last_modified"]) if state["last_modified"] else None
    modified = modified and modified.replace(tzinfo=None)
    first = pages.fill(engine, modified=modified, own=state["etag"])
    if own:
        return {"v5": state["etag"] or ""}
    old = etag_of(first)[1:-1]
    with Session(engine) as session:
        page = session.get_one(Page, 1)
        page.title = "Fifth"
        session.flush()
        new = etag_of(page)[1:-1]
        session.commit()
    return {"v5": new, "v4": old, "v3": old + "3", "V5": new.swapcase()}


def in_terms_of(names: dict[str, str], value: str) -> str:
    if set(names) == {"v5"}:
        return value
    for word, tag in names.items():
        value = value.replace(word, tag)
    return value


def changed(before: list[Any], after: list[Any]) -> str:
    keys = [{row[0] for row in rows} for rows in (before, after)]
    if keys[0] != keys[1]:
        return "deleted" if keys[0] > keys[1] else "made"
    return "nothing" if before == after else "written"


def done(method: str, status: int) -> str:
    """What the answer promises."""
    if method in ("GET", "TRACE") or not 200 <= status < 300:
        return "nothing"
    return {201: "made"}.get(status, "deleted" if method == "DELETE" else "written")
