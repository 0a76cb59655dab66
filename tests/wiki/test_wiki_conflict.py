"""Two people edit one page: nobody loses a word, on any database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from optilock.errors import ConfigurationError
from optilock.testing import count_statements
from optilock.wiki.conflict import Conflict
from tests.wiki.browsing import Visitor
from tests.wiki.wikis import TEA, wiki_on

Stored = Callable[[str], str | None]

EARLY, LATE = TEA.replace("Boil", "Heat"), TEA.replace("three", "five")
CLASH = TEA.replace("three", "four")


def test_a_saved_page_is_shown_by_a_redirect(ada: Visitor, stored: Stored) -> None:
    answer = ada.send(ada.edit("tea"), body=LATE)
    assert (answer.status, answer.title) == (200, "tea · Wiki")
    assert answer.url.endswith("/pages/tea")
    assert stored("tea") == LATE


def test_saving_is_one_statement_and_with_a_lease_or_a_conflict_two(
    client: TestClient, memory: Engine
) -> None:
    ada = Visitor(client)
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    assert [bool(form.fields["lease"]) for form in (mine, theirs)] == [True, False]
    for form, statements in ((theirs, 1), (mine, 2), (ada.edit("tea"), 2)):
        fields = {**form.fields, "body": LATE}
        with count_statements(memory) as sent:
            client.post(form.action, data=fields, follow_redirects=False)
        assert sent.count == statements


def test_both_edits_are_merged_on_every_database(engine: Engine) -> None:
    ada = Visitor(wiki_on(engine))
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    assert ada.send(theirs, body=EARLY).status == 200
    answer = ada.send(mine, body=LATE)
    assert (answer.status, answer.title) == (409, "Conflict: tea · Wiki")
    assert "Nothing of yours is lost, and nothing was saved." in answer.html
    assert answer.box == TEA.replace("Boil", "Heat").replace("three", "five")
    assert ada.edit("tea").fields["body"] == EARLY  # nothing was saved

    assert ada.send(answer.form).status == 200
    assert ada.edit("tea").fields["body"] == answer.box


def test_clashing_words_leave_in_the_box_what_was_typed_on_every_database(engine: Engine) -> None:
    ada = Visitor(wiki_on(engine))
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    ada.send(theirs, body=CLASH)
    answer = ada.send(mine, body=LATE)
    assert answer.status == 409
    assert "both changed the same words" in answer.html
    assert answer.box == LATE
    for kind, word in (("del", "three"), ("ins", "four"), ("ins", "five")):
        said = {"del": "deleted", "ins": "inserted"}[kind]
        assert f'<{kind}><span class="unseen">{said}: </span>{word}<span' in answer.html
    assert ada.send(answer.form, body="Wait four to five minutes.").status == 200
    assert ada.edit("tea").fields["body"] == "Wait four to five minutes."


def test_a_second_conflict_keeps_the_box_and_begins_from_what_was_shown_as_theirs(
    ada: Visitor, stored: Stored
) -> None:
    mine = ada.edit("tea")
    ada.send(ada.edit("tea"), body=CLASH)
    first = ada.send(mine, body=LATE)
    ada.send(ada.edit("tea"), body=CLASH.replace("Boil", "Heat"))
    second = ada.send(first.form, body=LATE + "\nDrink.")
    assert second.status == 409
    assert second.form.fields["base"] == CLASH.replace("Boil", "Heat")
    assert second.box == LATE.replace("Boil", "Heat") + "\nDrink."  # over their first text
    assert ada.send(second.form).status == 200
    assert stored("tea") == second.box


def test_keeping_theirs_is_a_button_that_sends_nothing(ada: Visitor) -> None:
    mine = ada.edit("tea")
    ada.send(ada.edit("tea"), body=CLASH)
    answer = ada.send(mine, body=LATE)
    assert '<button form="keep">Keep theirs</button>' in answer.html
    assert '<form id="keep" action="/pages/tea"></form>' in answer.html


@pytest.mark.parametrize(
    "body", ["", "\n\nTwo lines above.\n\n", "<b>&amp;\"'</textarea>", "茶 🍵"]
)
def test_each_text_comes_back_as_it_was_typed(ada: Visitor, stored: Stored, body: str) -> None:
    """Also from the box of a conflict, and as the base of the next one."""
    ada.send(ada.edit("tea"), body=body)
    assert stored("tea") == body
    assert ada.edit("tea").fields["body"] == body
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    ada.send(theirs, body=body + " theirs")
    answer = ada.send(mine, body="mine " + body)
    assert answer.box in ("mine " + body, "mine " + body + " theirs")
    assert answer.form.fields["base"] == body + " theirs"
    again = ada.send(ada.send(mine, body="mine").form, body="saved")
    assert (again.status, stored("tea")) == (200, "saved")


def test_texts_are_escaped_wherever_they_are_shown(ada: Visitor) -> None:
    script = "<script>alert(1)</script>"
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    ada.send(theirs, body=f"theirs {script} {TEA}")
    pages = [
        ada.send(mine, body=f"mine {script}"),
        ada.open("/pages/tea"),
        ada.open("/pages/tea/edit"),  # occupied: the editor of the conflict is open
        ada.open("/pages/tea/edit?anyway=yes"),
    ]
    pages.append(ada.open("/new?name=" + script))
    assert all("<script>" not in page.html for page in pages)
    assert all("alert(1)" in page.html for page in pages)


# -- a page that is deleted meanwhile --------------------------------------------------------------


def delete(ada: Visitor) -> None:
    assert ada.send(ada.open("/pages/tea").form).url.endswith(":8000/")


def test_a_page_that_was_deleted_meanwhile_is_made_again_from_what_was_typed(
    engine: Engine,
) -> None:
    ada = Visitor(wiki_on(engine))
    mine = ada.edit("tea")
    delete(ada)
    answer = ada.send(mine, body=LATE)
    assert (answer.status, answer.title) == (409, "Conflict: tea was deleted · Wiki")
    assert (answer.form.action, answer.box) == ("/new", LATE)
    assert ada.open("/pages/tea").status == 404
    assert ada.send(answer.form).status == 200
    assert ada.edit("tea").fields["body"] == LATE


def test_a_page_that_was_made_again_meanwhile_is_a_conflict_without_a_merge(engine: Engine) -> None:
    ada = Visitor(wiki_on(engine))
    mine = ada.edit("tea")
    delete(ada)
    answer = ada.send(mine, body=LATE)
    ada.send(ada.open("/new").form, name="tea", body=EARLY)
    second = ada.send(answer.form)
    assert (second.status, second.box) == (409, LATE)
    assert "What both of you began from" not in second.html
    assert ada.edit("tea").fields["body"] == EARLY
    assert ada.send(second.form).status == 200
    assert ada.edit("tea").fields["body"] == LATE


def test_a_page_that_was_deleted_and_made_again_takes_no_tag_of_before(
    ada: Visitor, stored: Stored
) -> None:
    mine = ada.edit("tea")
    delete(ada)
    ada.send(ada.open("/new").form, name="tea", body=TEA)
    answer = ada.send(mine, body=LATE)
    assert answer.status == 409
    assert (answer.box, stored("tea")) == (LATE, TEA)


def test_a_page_that_has_changed_is_not_deleted(ada: Visitor, stored: Stored) -> None:
    page = ada.open("/pages/tea")
    ada.send(ada.edit("tea"), body=LATE)
    answer = ada.send(page.form)
    assert (answer.status, answer.title) == (409, "Conflict: tea was not deleted · Wiki")
    assert "Wait five minutes." in answer.html
    assert stored("tea") == LATE
    ada.send(answer.form)
    assert stored("tea") is None


def test_a_page_that_somebody_else_has_deleted_is_gone_as_was_wanted(ada: Visitor) -> None:
    mine, theirs = ada.open("/pages/tea").form, ada.open("/pages/tea").form
    ada.send(theirs)
    assert ada.send(mine).status == 200


# -- what opens a merge ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forged", [{"base": "Boil."}, {"seal": "0" * 64}, {"seal": "é"}, {"base": ""}]
)
def test_a_text_that_the_page_did_not_have_in_that_version_opens_no_merge(
    ada: Visitor, stored: Stored, forged: dict[str, str]
) -> None:
    mine = ada.edit("tea")
    ada.send(ada.edit("tea"), body=EARLY)
    answer = ada.send(mine, body=LATE, **forged)
    assert (answer.status, answer.box, stored("tea")) == (409, LATE, EARLY)
    assert "What both of you began from" not in answer.html


def test_a_text_does_not_pass_with_the_tag_of_another_version(ada: Visitor) -> None:
    before = ada.edit("tea")
    ada.send(ada.edit("tea"), body=EARLY)
    now = ada.edit("tea")
    ada.send(ada.edit("tea"), body="First: " + EARLY)
    crossed = {name: before.fields[name] for name in ("base", "seal")}
    assert ada.send(now, body=LATE, **crossed).box == LATE


def test_a_text_of_one_page_opens_no_merge_of_another(ada: Visitor) -> None:
    ada.send(ada.open("/new").form, name="coffee", body=TEA)
    crossed = ada.edit("coffee")
    crossed.action = "/pages/tea/edit"
    ada.send(ada.edit("tea"), body=EARLY)
    assert ada.send(crossed, body=LATE).box == LATE


def test_a_short_secret_is_refused(memory: Engine) -> None:
    with pytest.raises(ConfigurationError, match="at least 16"):
        wiki_on(memory, secret="short")


def test_processes_with_one_secret_take_each_others_forms(memory: Engine) -> None:
    one, other = (Visitor(wiki_on(memory, secret="of all processes")) for _ in range(2))
    mine = one.edit("tea")
    one.send(one.edit("tea"), body=EARLY)
    assert other.send(mine, body=LATE).box == EARLY.replace("three", "five")


def test_after_a_restart_with_another_secret_nothing_is_lost(memory: Engine) -> None:
    before, after = (
        Visitor(wiki_on(memory, secret=secret)) for secret in ("before" * 9, "after" * 9)
    )
    unchanged = before.edit("tea")
    assert after.send(unchanged, body=EARLY).status == 200
    assert after.send(unchanged, body=LATE).box == LATE


def test_a_conflict_without_a_base_is_compared_with_what_is_stored() -> None:
    conflict = Conflict(yours="a b", theirs="a c")
    assert (conflict.merged, conflict.box) == (None, "a b")
    assert [mark.kind for mark in conflict.their_marks] == ["equal"]
    assert [mark.text for mark in conflict.your_marks] == ["a ", "c", "b"]
