"""Reading, making and deleting pages; and forms that nobody's browser has sent so."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import pytest
from optilock_apps.wiki import forms, texts
from optilock_apps.wiki.texts import LONGEST, LONGEST_NAME, BadText, name_of
from sqlalchemy import Engine, create_engine
from starlette.testclient import TestClient

from apps.tests.programs import ROOT
from apps.tests.wiki.browsing import Visitor
from apps.tests.wiki.wikis import TEA, both, wiki_on

Stored = Callable[[str], str | None]

FORM = {"content-type": "application/x-www-form-urlencoded"}

# -- reading ---------------------------------------------------------------------------------------


def test_the_first_page_lists_all_others(ada: Visitor) -> None:
    ada.send(ada.open("/new").form, name="Green tea (cold), 2nd", body="")
    html = ada.open("/").html
    assert '<a href="/pages/tea">tea</a>' in html
    assert '<a href="/pages/Green%20tea%20%28cold%29%2C%202nd">Green tea (cold), 2nd</a>' in html
    assert ada.open("/pages/Green%20tea%20%28cold%29%2C%202nd").status == 200


def test_a_browser_that_has_the_page_gets_304_until_somebody_saves(client: TestClient) -> None:
    ada = Visitor(client)
    tag = ada.open("/pages/tea").headers["etag"]
    for known in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
        answer = client.get("/pages/tea", headers={"If-None-Match": known})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == tag
    ada.send(ada.edit("tea"), body="new")
    answer = client.get("/pages/tea", headers={"If-None-Match": tag})
    assert answer.status_code == 200
    assert answer.headers["etag"] != tag


def test_a_condition_that_cannot_be_read_is_a_page_that_says_so(ada: Visitor) -> None:
    assert ada.open("/pages/tea", **{"If-Match": "tea"}).status == 400
    assert ada.open("/pages/tea", **{"If-Match": '"never"'}).status == 412


def test_head_has_the_tag_and_no_text(client: TestClient) -> None:
    answer = client.head("/pages/tea")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["etag"] == client.get("/pages/tea").headers["etag"]


def test_a_page_that_is_not_there_can_be_written(ada: Visitor) -> None:
    for path in ("/pages/coffee", "/pages/coffee/edit"):
        answer = ada.open(path)
        assert answer.status == 404
        assert 'href="/new?name=coffee"' in answer.html
    form = ada.open("/new?name=coffee").form
    assert ada.send(form, body="Grind.").url.endswith("/pages/coffee")


@pytest.mark.parametrize("name", ["a/b", "..", "<b>", "\0", "x" * (LONGEST_NAME + 1), " ", "-"])
def test_what_can_be_no_name_is_refused_with_the_text_kept(ada: Visitor, name: str) -> None:
    answer = ada.send(ada.open("/new").form, name=name, body="typed")
    assert (answer.status, answer.box, answer.title) == (400, "typed", "Not saved: new page · Wiki")
    assert name == ".." or ada.open(f"/pages/{quote(name, safe='')}").status == 404


def test_white_space_around_a_name_and_the_form_of_its_accents_do_not_count(ada: Visitor) -> None:
    ada.send(ada.open("/new").form, name="  the\u0301 ", body="hot")
    assert ada.open("/pages/th\u00e9").status == 200
    assert ada.open("/pages/" + quote("the\u0301")).status == 200


@pytest.mark.parametrize("name", ["हिन्दी", "สวัสดี", "Việt Nam"])
def test_the_vowel_signs_of_any_script_can_stand_in_a_name(ada: Visitor, name: str) -> None:
    ada.send(ada.open("/new").form, name=name, body="hot")
    assert ada.open(f"/pages/{quote(name)}").status == 200


def test_a_name_begins_with_no_accent(ada: Visitor) -> None:
    answer = ada.send(ada.open("/new").form, name="\u0301a", body="typed")
    assert (answer.status, answer.box) == (400, "typed")


def test_a_name_with_any_number_of_accents_is_refused_before_they_are_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To sort them takes the square of the time: 20,000 of them three seconds, 80,000 fifty."""
    asked: list[str] = []
    sorts = SimpleNamespace(normalize=lambda form, name: asked.append(name))
    monkeypatch.setattr(texts, "unicodedata", sorts)
    with pytest.raises(BadText, match="at most 100 characters"):
        name_of("a" + "\u0300\u0316" * 20_000)
    assert asked == []


def test_upper_and_lower_case_are_two_pages(engine: Engine) -> None:
    ada = Visitor(wiki_on(engine))
    assert ada.open("/pages/Tea").status == 404
    assert ada.send(ada.open("/new").form, name="Tea", body="big").status == 200
    assert ada.edit("tea").fields["body"] == TEA


@pytest.mark.full
def test_the_longest_text_fits_into_every_database(engine: Engine) -> None:
    ada = Visitor(wiki_on(engine))
    text = "🍵" * LONGEST
    assert ada.send(ada.edit("tea"), body=text).status == 200
    assert ada.send(ada.edit("tea"), body=text).status == 200  # the base is as long
    assert ada.edit("tea").fields["body"] == text


# -- forms that are wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"tag": ""}, 400),
        ({"tag": "*"}, 400),
        ({"tag": ' "a"; DROP TABLE'}, 400),
        ({"tag": '"a", "b"'}, 400),
        ({"tag": "7"}, 400),
        ({"tag": '"a"' * 9_000}, 400),
        ({"body": "typed\0"}, 400),
        ({"body": "typed" + "x" * LONGEST}, 413),
    ],
)
def test_a_form_that_cannot_be_saved_keeps_what_was_typed(
    ada: Visitor, stored: Stored, changed: dict[str, str], status: int
) -> None:
    answer = ada.send(ada.edit("tea"), **{"body": "typed", **changed})
    assert (answer.status, answer.title) == (status, "Not saved: tea · Wiki")
    assert answer.box.startswith("typed")
    assert stored("tea") == TEA


@pytest.mark.parametrize(
    ("tag", "status"), [('"AAAAAAAA.1"', 409), ('W/"AAAAAAAA.1"', 409), ('"é"', 409)]
)
def test_a_tag_that_the_page_never_had_is_a_conflict(
    ada: Visitor, stored: Stored, tag: str, status: int
) -> None:
    answer = ada.send(ada.edit("tea"), body="typed", tag=tag)
    assert (answer.status, answer.box) == (status, both("typed", TEA))
    assert stored("tea") == TEA


def test_the_tag_of_one_page_does_not_pass_for_that_of_another(
    ada: Visitor, stored: Stored
) -> None:
    ada.send(ada.open("/new").form, name="coffee", body=TEA)
    crossed = ada.edit("coffee")
    crossed.action = "/pages/tea/edit"
    assert ada.send(crossed, body="typed").status == 409
    assert stored("tea") == TEA


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"&".join([b"body=x"] * 11), FORM, 400),
        (b'{"body": "x"}', {"content-type": "application/json"}, 415),
        (b"body=x", {"content-type": "text/plain"}, 415),
        (b"body=x", {}, 415),
        (b"x" * (4 * 1024 * 1024 + 1), FORM, 413),
        (b"body=x", {**FORM, "content-length": "-1"}, 413),
        (b"body=x", {**FORM, "content-length": "9" * 5_000}, 413),
        (iter([b"body=", b"x"]), FORM, 411),  # its length is not announced
        (b"body=x", {**FORM, "content-length": "6", "transfer-encoding": "chunked"}, 411),
        (b"", FORM, 400),
    ],
)
def test_what_is_no_form_of_the_wiki_is_refused(
    client: TestClient, stored: Stored, body: Any, headers: dict[str, str], status: int
) -> None:
    answer = client.post("/pages/tea/edit", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert stored("tea") == TEA


def test_a_form_is_read_beside_the_event_loop_so_that_nobody_waits_for_a_large_one(
    ada: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[bool] = []

    def parse(*arguments: Any, **options: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            loops.append(False)
        else:
            loops.append(True)
        return parse_qsl(*arguments, **options)

    monkeypatch.setattr(forms, "parse_qsl", parse)
    ada.send(ada.edit("tea"), body="Green tea")
    assert loops == [False]


@pytest.mark.parametrize("body", [b"%ED%A0%80", b"%FF", b"\xff"], ids=["half", "quoted", "raw"])
def test_bytes_that_are_no_text_are_refused_and_not_replaced(
    client: TestClient, stored: Stored, body: bytes
) -> None:
    form = Visitor(client).edit("tea")
    content = urlencode({**form.fields, "body": ""}).encode() + b"&body=" + body
    assert client.post(form.action, content=content, headers=FORM).status_code == 400
    assert stored("tea") == TEA


def test_other_methods_are_405_and_other_addresses_404(client: TestClient) -> None:
    assert client.put("/pages/tea").status_code == 405
    assert client.get("/pages/tea/delete").status_code == 405
    assert client.get("/nowhere").status_code == 404
    assert client.get("/docs").status_code == 404  # FastAPI's would load scripts from elsewhere


def test_a_delete_that_names_no_version_deletes_nothing(ada: Visitor, stored: Stored) -> None:
    assert ada.send(ada.open("/pages/tea").form, tag="*").status == 400
    assert stored("tea") == TEA


def test_what_was_typed_stays_when_the_database_is_busy(tmp_path: Any) -> None:
    file = tmp_path / "wiki.db"
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 0})
    ada = Visitor(wiki_on(engine))
    form, new = ada.edit("tea"), ada.open("/new").form
    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        answers = [ada.send(form, body="typed"), ada.send(new, name="coffee", body="typed")]
        other.execute("ROLLBACK")
    other.close()
    assert [(answer.status, answer.box) for answer in answers] == [(503, "typed")] * 2
    assert [ada.send(answer.form).status for answer in answers] == [200, 200]
    engine.dispose()


# -- protection ------------------------------------------------------------------------------------

HERE = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # curl
        ({"Origin": HERE}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": HERE}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": HERE}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        ({"Sec-Fetch-Site": ""}, 403),
        ({"Origin": "http://127.0.0.1:8001"}, 403),
        ({"Origin": "https://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://["}, 403),
    ],
)
@pytest.mark.tenth
def test_a_form_of_another_site_is_refused(
    ada: Visitor, stored: Stored, headers: dict[str, str], status: int
) -> None:
    answer = ada.send(ada.edit("tea"), headers=headers, body="typed")
    assert answer.status == status
    assert stored("tea") == ("typed" if status == 200 else TEA)


@pytest.mark.parametrize("path", ["/", "/pages/tea", "/nowhere", "/static/style.css", "/api/pages"])
def test_every_answer_forbids_frames_guesses_and_scripts_of_others(
    client: TestClient, path: str
) -> None:
    answer = client.get(path)
    policy = answer.headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    own = {"style-src", "script-src", "connect-src", "form-action"}
    assert {name for name, value in rules.items() if value == "'self'"} == own
    assert set(rules) - own == {"default-src", "base-uri", "frame-ancestors"}
    assert {rules[name] for name in set(rules) - own} == {"'none'"}
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("text", "ground"),
    [
        ("ink", "paper"),
        ("quiet", "paper"),
        ("link", "paper"),
        ("paper", "link"),
        ("ink", "notice"),
        ("ink", "inserted"),
        ("ink", "deleted"),
    ],
)
def test_each_colour_can_be_read_on_its_ground(client: TestClient, text: str, ground: str) -> None:
    """4.5 to 1 and more (WCAG 2.2, 1.4.3)."""
    style = client.get("/static/style.css").text
    colours = dict(re.findall(r"--(\w+): #(\w{6});", style))
    one, other = sorted(luminance(colours[name]) for name in (text, ground))
    assert (other + 0.05) / (one + 0.05) >= 4.5


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_no_page_loads_anything_from_elsewhere(ada: Visitor) -> None:
    pages = [ada.open(path).html for path in ("/", "/pages/tea", "/pages/tea/edit", "/new", "/x")]
    for html in pages:
        assert set(re.findall("<script[^>]*>", html)) <= {'<script src="/static/editing.js" defer>'}
        assert "http:" not in html
        assert "https:" not in html


def test_the_pictures_in_the_documentation_are_small() -> None:
    page = ROOT / "docs" / "tutorial" / "wiki.md"
    shown = re.findall(r"\]\((\.\./pictures/[\w-]+\.png)\)", page.read_text())
    assert len(shown) == 3
    assert all((page.parent / picture).stat().st_size < 200_000 for picture in shown)
