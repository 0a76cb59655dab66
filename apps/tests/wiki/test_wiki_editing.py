"""Somebody edits a page: others are told, nobody is stopped, and it ends by itself."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from optilock_apps.wiki.command import _engine
from optilock_apps.wiki.editing import Editing
from optilock_apps.wiki.pages import Base, Page, prepare
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from apps.tests.wiki.browsing import Answer, Visitor
from apps.tests.wiki.wikis import TEA, wiki_on
from optilock import leases
from optilock.errors import ConfigurationError
from tests.support.waiting import until

Stored = Callable[[str], str | None]

EDIT = "/pages/tea/edit"
EARLY, LATE = TEA.replace("Boil", "Heat"), TEA.replace("three", "five")


def state(engine: Engine) -> str:
    with Session(engine) as session:
        return leases.look(session, (Page, "tea")).state


def beat(client: TestClient, lease: str) -> Any:
    return client.post("/pages/tea/editing", data={"lease": lease}).json()


def told(page: Answer) -> bool:
    """Does the page say that somebody else edits?"""
    (notice,) = re.findall('<p id="editing"[^>]*>', page.html)
    return "hidden" not in notice


# -- the editor ------------------------------------------------------------------------------------


def test_who_opens_the_editor_second_is_told_and_can_read_on_every_database(engine: Engine) -> None:
    ada = bob = Visitor(wiki_on(engine))
    first = ada.open(EDIT)
    assert (first.title, told(first), state(engine)) == ("Edit: tea · Wiki", False, "leased")
    uuid.UUID(first.form.fields["lease"])

    second = bob.open(EDIT)
    assert (second.status, second.title, second.forms) == (200, "Being edited: tea · Wiki", [])
    assert told(second)
    assert re.search(r'since\n<time datetime="[-\dT:+]{25}">\d\d:\d\d UTC</time>', second.html)
    assert TEA.splitlines()[0] in second.html
    assert first.form.fields["lease"] not in second.html


def test_who_edits_anyway_saves_as_ever_and_nothing_is_lost_on_every_database(
    engine: Engine,
) -> None:
    ada = bob = Visitor(wiki_on(engine))
    mine = ada.open(EDIT).form
    anyway = bob.open(EDIT + "?anyway=yes")
    assert told(anyway)
    assert (anyway.box, anyway.form.fields["lease"]) == (TEA, "")
    assert bob.send(anyway.form, body=EARLY).status == 200

    answer = ada.send(mine, body=LATE)
    assert (answer.status, answer.box) == (409, EARLY.replace("three", "five"))
    assert answer.form.fields["lease"] == mine.fields["lease"]  # she goes on editing
    assert state(engine) == "leased"
    assert ada.send(answer.form).status == 200
    assert state(engine) == "available"


def test_who_opens_the_editor_after_a_save_edits_what_was_saved(ada: Visitor) -> None:
    ada.send(ada.open(EDIT).form, body=LATE)
    page = ada.open(EDIT)
    assert (page.box, told(page)) == (LATE, False)


def test_a_form_that_could_not_be_saved_keeps_its_lease(client: TestClient) -> None:
    ada = Visitor(client)
    form = ada.open(EDIT).form
    answer = ada.send(form, body="typed\0")
    assert (answer.status, answer.form.fields["lease"]) == (400, form.fields["lease"])
    assert client.get("/pages/tea/editing").json()["since"]


@pytest.mark.parametrize("lease", ["", "x", "é", "0" * 32, "0" * 9_000])
def test_a_form_whose_lease_is_none_saves_as_ever(ada: Visitor, stored: Stored, lease: str) -> None:
    assert ada.send(ada.open(EDIT).form, body="typed", lease=lease).status == 200
    assert stored("tea") == "typed"


def test_a_lease_that_has_ended_leaves_the_editor_free_and_the_first_one_can_still_save(
    engine: Engine,
) -> None:
    client = wiki_on(engine, lease_seconds=1)
    ada = bob = Visitor(client)
    mine = ada.open(EDIT).form
    until(lambda: state(engine) != "leased", every=0.1)
    theirs = bob.open(EDIT)
    assert not told(theirs)
    assert ada.send(mine, body=EARLY).status == 200  # without her lease, which Bob's stays beside
    assert bob.send(theirs.form, body=LATE).box == EARLY.replace("three", "five")


def test_a_page_that_is_edited_can_be_written_by_programs_and_deleted(
    client: TestClient, stored: Stored
) -> None:
    ada = Visitor(client)
    mine = ada.open(EDIT).form
    tag = client.get("/api/pages/tea").headers["etag"]
    patch = client.patch("/api/pages/tea", json={"body": EARLY}, headers={"If-Match": tag})
    assert (patch.status_code, stored("tea")) == (204, EARLY)
    ada.send(ada.open("/pages/tea").form)
    assert stored("tea") is None
    assert ada.send(mine, body=LATE).box == LATE
    assert beat(client, mine.fields["lease"])["since"] is None
    assert client.post("/pages/tea/editing/end", data={"lease": "x"}).status_code == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Purpose": "prefetch"},
        {"Sec-Purpose": "prefetch;prerender", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Dest": "image", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_an_editor_that_nobody_has_opened_is_no_edit(
    client: TestClient, headers: dict[str, str]
) -> None:
    assert client.head(EDIT).status_code == 200
    assert client.get(EDIT, headers=headers).status_code == 200
    assert client.get("/pages/tea/editing").json()["since"] is None


def test_a_busy_database_opens_the_editor_without_a_lease(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/wiki.db", connect_args={"timeout": 0})
    client = wiki_on(engine)
    ada = Visitor(client)
    mine = ada.open(EDIT).form.fields["lease"]
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        page = ada.open(EDIT + "?anyway=yes")
        assert (page.status, page.box, page.form.fields["lease"]) == (200, TEA, "")
        assert beat(client, mine)["lease"] == mine  # it is not forgotten
    engine.dispose()


# -- the script's questions ------------------------------------------------------------------------


def test_a_heartbeat_keeps_the_lease_and_its_begin_on_every_database(engine: Engine) -> None:
    client = wiki_on(engine, lease_seconds=30)
    ada = Visitor(client)
    mine = ada.open(EDIT).form.fields["lease"]
    since = client.get("/pages/tea/editing").json()["since"]
    answer = beat(client, mine)
    assert answer == {"lease": mine, "since": None, "said": None, "again": 10}
    asked = client.get("/pages/tea/editing")
    assert (asked.json()["since"], asked.json()["again"]) == (since, 3)
    assert asked.headers["cache-control"] == "no-store"
    assert mine not in asked.text

    assert beat(client, "")["since"] == since
    assert beat(client, str(uuid.uuid4()))["lease"] == ""


def test_who_leaves_makes_room_for_who_waits(client: TestClient) -> None:
    ada = Visitor(client)
    mine = ada.open(EDIT).form.fields["lease"]
    client.post("/pages/tea/editing/end", data={"lease": str(uuid.uuid4())})  # not hers
    assert client.get("/pages/tea/editing").json()["since"]
    assert client.post("/pages/tea/editing/end", data={"lease": mine}).status_code == 204
    assert client.get("/pages/tea/editing").json()["since"] is None
    theirs = beat(client, "")["lease"]
    assert theirs
    assert theirs != mine
    assert beat(client, mine)["since"]  # she has come back, and is told


def test_heartbeats_of_other_sites_are_refused(client: TestClient) -> None:
    site = {"Sec-Fetch-Site": "cross-site"}
    for path in ("/pages/tea/editing", "/pages/tea/editing/end"):
        assert client.post(path, data={"lease": ""}, headers=site).status_code == 403


def test_a_begin_of_another_day_says_the_day() -> None:
    assert Editing(since=datetime(2020, 4, 5, 14, 2, tzinfo=UTC)).said == "5 April, 14:02 UTC"


# -- the id, the table, the options ----------------------------------------------------------------


def test_the_id_of_a_lease_is_in_no_address_and_in_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with _engine(str(tmp_path / "wiki.db"), None) as engine:
        client = wiki_on(engine)
        page = Visitor(client).open(EDIT)
        lease = page.form.fields["lease"]
        addresses = re.findall(r'(?:href|action|src|address)="([^"]*)', page.html)
        assert "/pages/tea/editing" in addresses
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE optilock_wiki_pages"))
        with pytest.raises(DBAPIError) as raised:
            beat(client, lease)
    for said in (*addresses, str(raised.value), caplog.text):
        assert lease not in said
        assert lease.replace("-", "") not in said


def test_a_wiki_from_before_leases_gets_their_columns(engine: Engine) -> None:
    Base.metadata.drop_all(engine)
    old = [column for column in Page.__table__.columns if not column.name.startswith("lease_")]
    wiki_on(engine)
    with engine.begin() as connection:
        for column in Page.__table__.columns:
            if column not in old:
                connection.execute(
                    text(f"ALTER TABLE optilock_wiki_pages DROP COLUMN {column.name}")
                )
    prepare(engine)
    prepare(engine)
    with Session(engine) as session, session.begin():
        lease = leases.acquire(session, (Page, "tea"), 60)
    assert lease.fence == 1


@pytest.mark.parametrize("seconds", [0, 0.5, 3601, float("inf")])
def test_a_lease_of_no_length_is_refused(memory: Engine, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="1 to 3600 seconds"):
        wiki_on(memory, lease_seconds=seconds)
