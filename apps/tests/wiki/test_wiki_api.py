"""The same pages for programs: conditional requests in JSON, and problem documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from optilock_apps.wiki.texts import LONGEST
from sqlalchemy import Engine
from starlette.testclient import TestClient

from apps.tests.wiki.browsing import Visitor
from apps.tests.wiki.wikis import TEA, wiki_on
from optilock.testing import count_statements

Stored = Callable[[str], str | None]


def tag_of(client: TestClient, name: str = "tea") -> str:
    return str(client.get(f"/api/pages/{name}").headers["etag"])


def test_each_item_of_the_list_carries_its_tag(client: TestClient) -> None:
    assert client.get("/api/pages").json() == [{"name": "tea", "etag": tag_of(client)}]


def test_a_page_is_read_once(client: TestClient) -> None:
    answer = client.get("/api/pages/tea")
    tag = answer.headers["etag"]
    assert answer.json() == {"name": "tea", "body": TEA, "etag": tag}
    again = client.get("/api/pages/tea", headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    kept = answer.headers["cache-control"]
    assert again.headers["cache-control"] == kept == "no-cache"  # RFC 9110 section 15.4.5
    assert client.head("/api/pages/tea").headers["etag"] == tag


def test_a_page_is_written_in_the_version_that_was_read_on_every_database(engine: Engine) -> None:
    client = wiki_on(engine)
    first = tag_of(client)
    with count_statements(engine) as sent:
        done = client.put("/api/pages/tea", json={"body": "one"}, headers={"If-Match": first})
    assert (done.status_code, sent.count) == (204, 1)
    done = client.patch(
        "/api/pages/tea", json={"body": "two"}, headers={"If-Match": done.headers["etag"]}
    )
    assert done.status_code == 204
    for method in ("PUT", "PATCH", "DELETE"):
        body = None if method == "DELETE" else {"body": "late"}
        late = client.request(method, "/api/pages/tea", json=body, headers={"If-Match": first})
        assert late.status_code == 412
        assert late.headers["content-type"] == "application/problem+json"
        assert late.headers["etag"] == done.headers["etag"] == late.json()["etag"]
        assert late.json()["conflicts"]["body"]["database"] == "two"
    assert client.get("/api/pages/tea").json()["body"] == "two"
    gone = client.delete("/api/pages/tea", headers={"If-Match": done.headers["etag"]})
    assert (gone.status_code, client.get("/api/pages/tea").status_code) == (204, 404)


def test_a_page_is_made_once(client: TestClient, stored: Stored) -> None:
    new = {"If-None-Match": "*"}
    made = client.put("/api/pages/coffee", json={"body": "Grind.\r\n"}, headers=new)
    assert (made.status_code, made.headers["etag"]) == (201, tag_of(client, "coffee"))
    assert made.content == b""
    assert client.put("/api/pages/coffee", json={"body": ""}, headers=new).status_code == 412
    assert stored("coffee") == "Grind.\n"


def test_people_and_programs_see_each_others_edits(client: TestClient) -> None:
    ada = Visitor(client)
    form, tag = ada.edit("tea"), tag_of(client)
    client.put("/api/pages/tea", json={"body": "Stir. " + TEA}, headers={"If-Match": tag})
    answer = ada.send(form, body=TEA + " Drink.")
    assert (answer.status, answer.box) == (409, "Stir. " + TEA + " Drink.")


@pytest.mark.parametrize(
    ("method", "name", "headers", "body", "status"),
    [
        ("PUT", "tea", {}, {"body": "x"}, 428),
        ("PUT", "tea", {"If-Match": "tea"}, {"body": "x"}, 400),
        ("PUT", "tea", {"If-Match": '"never"'}, {"body": "x"}, 412),
        ("PATCH", "none", {"If-Match": "*"}, {"body": "x"}, 404),
        ("DELETE", "tea", {}, None, 428),
        ("DELETE", "none", {"If-Match": "*"}, None, 404),
        ("GET", "none", {}, None, 404),
        ("GET", "%00", {}, None, 404),
        ("PUT", "%3Cb%3E", {"If-None-Match": "*"}, {"body": "x"}, 404),
        ("PUT", "tea", {"If-Match": "*"}, {"body": "\0"}, 400),
        ("PUT", "tea", {"If-Match": "*"}, {"body": "x" * (LONGEST + 1)}, 413),
        ("PUT", "tea", {"If-Match": "*"}, {"body": 7}, 422),
        ("PUT", "tea", {"If-Match": "*"}, {"body": None}, 422),
        ("PUT", "tea", {"If-Match": "*"}, {}, 422),
        ("PUT", "tea", {"If-Match": "*"}, {"body": "x", "name": "y"}, 422),
        ("PUT", "tea", {"If-Match": "*"}, {"body": "x", "version": "y"}, 422),
        ("PUT", "tea", {"If-Match": "*"}, {"body": "x", "y" * 9_000: "z"}, 422),
        ("PUT", "tea", {"If-Match": "*"}, b'{"body": "\\ud800"}', 400),
        ("PUT", "tea", {"If-Match": "*"}, b"{", 422),
        ("PUT", "tea", {"If-Match": "*"}, b"[" * 200_000, 400),
        ("PUT", "tea", {"If-Match": "*", "Sec-Fetch-Site": "cross-site"}, {"body": "x"}, 403),
        ("POST", "tea", {}, {"body": "x"}, 405),
    ],
)
@pytest.mark.tenth
def test_what_is_wrong_is_a_problem_document_and_writes_nothing(
    client: TestClient,
    stored: Stored,
    method: str,
    name: str,
    headers: dict[str, str],
    body: Any,
    status: int,
) -> None:
    sent = body if isinstance(body, bytes) else json.dumps(body)
    kind = {"content-type": "application/json"}
    answer = client.request(method, f"/api/pages/{name}", content=sent, headers={**kind, **headers})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert {"type", "title", "detail"} <= problem.keys()
    assert len(answer.content) < 1_000
    assert stored("tea") == TEA


def test_openapi_names_the_answers(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/api/pages", "/api/pages/{name}"}
    assert {"204", "400", "404", "412", "428"} <= paths["/api/pages/{name}"]["put"][
        "responses"
    ].keys()
