"""Who was first, and when: in the conflict pages, and for programs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from optilock_apps.wiki.pages import Page
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from apps.tests.wiki.browsing import Visitor

Stored = Callable[[str], str | None]


def signed_ago(memory: Engine, ago: timedelta) -> None:
    """As if the last write had been then."""
    with memory.begin() as connection:
        at = datetime.now(UTC).replace(tzinfo=None) - ago
        connection.execute(Page.__table__.update().values(changed_at=at))


def test_the_conflict_page_says_who_was_first_and_when(ada: Visitor, memory: Engine) -> None:
    """B10: and the second one's signature is not lost either."""
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    assert ada.send(theirs, body="first", author="  Ada   <Lovelace> ").status == 200
    signed_ago(memory, timedelta(minutes=2, seconds=1))
    answer = ada.send(mine, body="second", author="Bob")
    assert answer.status == 409
    assert "The page was changed by Ada &lt;Lovelace&gt;, 2 minutes ago." in answer.html
    assert answer.form.fields["author"] == "Bob"


def test_without_a_signature_it_is_only_when(ada: Visitor) -> None:
    """B10: a write without one takes no older signature for its own."""
    ada.send(ada.edit("tea"), body="signed", author="Ada")
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    ada.send(theirs, body="unsigned")
    answer = ada.send(mine, body="second")
    assert "The page was changed just now." in answer.html
    assert "Ada" not in answer.html


def test_a_delete_of_a_page_that_has_changed_says_so_too(ada: Visitor) -> None:
    """B10: the page for who wanted to delete."""
    form = ada.open("/pages/tea").form
    ada.send(ada.edit("tea"), body="new", author="Ada")
    answer = ada.send(form)
    assert answer.status == 409
    assert "(changed by Ada, just now)" in answer.html


def test_a_page_that_two_people_make_says_who_was_first(ada: Visitor) -> None:
    """B10: there is no version of before."""
    form = ada.open("/new").form
    ada.send(form, name="milk", body="cold", author="Ada")
    answer = ada.send(form, name="milk", body="warm")
    assert answer.status == 409
    assert "The page was changed by Ada, just now." in answer.html


def test_programs_get_both_in_the_problem_document(ada: Visitor, client: TestClient) -> None:
    """B10: and their own write is not signed with the name of before."""
    tag = client.get("/api/pages/tea").headers["ETag"]
    ada.send(ada.edit("tea"), body="new", author="Ada")
    late = client.patch("/api/pages/tea", json={"body": "x"}, headers={"If-Match": tag})
    assert (late.status_code, late.json()["changed_by"]) == (412, "Ada")
    assert late.json()["changed_at"].startswith("20")
    newest = client.get("/api/pages/tea").headers["ETag"]
    for method in ("PATCH", "PUT"):
        done = client.request(
            method, "/api/pages/tea", json={"body": method}, headers={"If-Match": newest}
        )
        assert done.status_code == 204
        newest = done.headers["ETag"]
        late = client.patch("/api/pages/tea", json={"body": "x"}, headers={"If-Match": tag})
        assert "changed_by" not in late.json()


@pytest.mark.parametrize("author", ["a" * 101, "A\u202eB", "A\0B"])
def test_a_signature_that_cannot_be_shown_is_refused(
    ada: Visitor, stored: Stored, author: str
) -> None:
    """B10: 400, with all that was typed."""
    before = stored("tea")
    answer = ada.send(ada.edit("tea"), body="new", author=author)
    assert (answer.status, answer.box) == (400, "new")
    assert stored("tea") == before


def test_a_page_that_nobody_has_changed_says_nothing(ada: Visitor, memory: Engine) -> None:
    """B10: as of a wiki that is older than signatures."""
    mine = ada.edit("tea")
    ada.send(ada.edit("tea"), body="first")
    with Session(memory) as session, session.begin():
        session.execute(Page.__table__.update().values(changed_at=None))
    answer = ada.send(mine, body="second")
    assert answer.status == 409
    assert "The page was" not in answer.html
