"""Two people edit one page: nobody loses a word, on any database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from optilock_apps.wiki.conflict import Conflict
from sqlalchemy import Engine
from starlette.testclient import TestClient

from apps.tests.wiki.browsing import Visitor
from apps.tests.wiki.wikis import TEA, both, wiki_on
from optilock.errors import ConfigurationError
from optilock.resolvers.open_text import MARKS
from optilock.testing import count_statements

Stored = Callable[[str], str | None]

EARLY, LATE = TEA.replace("Boil", "Heat"), TEA.replace("three", "five")
CLASH = TEA.replace("three", "four")
#: A place that both have changed; and where nobody knows what both began from, what differs.
CLASHING = TEA.replace("Wait three minutes.", both("Wait five minutes.", "Wait four minutes."))
DIFFERING = both("Boil the water.", "Heat the water.") + TEA.replace(
    "Boil the water.\n", ""
).replace("Wait three minutes.", both("Wait five minutes.", "Wait three minutes."))


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
    cases = ((theirs, LATE, 1), (mine, EARLY, 2), (ada.edit("tea"), EARLY, 2))
    for form, body, statements in cases:
        fields = {**form.fields, "body": body}
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


def test_clashing_words_leave_both_sides_in_the_box_on_every_database(engine: Engine) -> None:
    """A5: the box has all edits, with both sides of what clashes between marks."""
    ada = Visitor(wiki_on(engine))
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    ada.send(theirs, body=CLASH)
    answer = ada.send(mine, body=LATE)
    assert answer.status == 409
    assert "both changed the same words" in answer.html
    assert answer.box == CLASHING
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
    assert first.box == CLASHING
    second = ada.send(first.form, body=LATE + "\nDrink.")
    assert second.status == 409
    assert second.form.fields["base"] == CLASH.replace("Boil", "Heat")
    assert second.box == LATE.replace("Boil", "Heat") + "\nDrink."  # over their first text
    assert ada.send(second.form).status == 200
    assert stored("tea") == second.box


LONG = "".join(f"line {number}\n" for number in range(40))


def test_a_save_of_a_box_that_is_still_open_stores_and_drops_nothing(
    ada: Visitor, stored: Stored
) -> None:
    """A5: one click cannot drop what its author has not seen, nor store marks."""
    ada.send(ada.edit("tea"), body=LONG)
    mine = ada.edit("tea")
    theirs = LONG.replace("line 0\n", "ADA 0\n").replace("line 30\n", "ADA 30\n")
    ada.send(ada.edit("tea"), body=theirs)
    answer = ada.send(mine, body=LONG.replace("line 0\n", "BOB 0\n"))
    assert answer.box == theirs.replace("ADA 0\n", both("BOB 0", "ADA 0"))
    # The places stand before the box, with a way to each.
    assert answer.html.index("Changed by both of you: 1 place") < answer.html.index("<textarea")

    for box in (answer.box, answer.box.replace("BOB 0", "BOTH 0"), ">>>>>>> end\n" + LONG):
        again = ada.send(answer.form, body=box)
        assert (again.status, again.box, stored("tea")) == (409, box, theirs)
        assert "Some places are still open, so nothing was saved." in again.html
        assert again.form.fields["tag"] == answer.form.fields["tag"]
    settled = theirs.replace("ADA 0", "BOTH 0")
    assert ada.send(again.form, body=settled).status == 200
    assert stored("tea") == settled


def test_a_page_that_is_about_marks_is_edited_as_any_other(ada: Visitor, stored: Stored) -> None:
    """A5: lines that the text had before are no open place."""
    about = both("yours", "theirs")
    ada.send(ada.open("/new").form, name="marks", body=about)
    assert ada.send(ada.edit("marks"), body=about + "more").status == 200
    assert stored("marks") == about + "more"


def test_each_of_several_places_leads_to_the_next(ada: Visitor) -> None:
    """A5: also without scripts."""
    mine = ada.edit("tea")
    ada.send(ada.edit("tea"), body=TEA.replace("Boil", "Heat").replace("three", "four"))
    html = ada.send(mine, body=TEA.replace("Boil", "Warm").replace("three", "five")).html
    assert "Changed by both of you: 2 places" in html
    for place in ('<li id="place-1">', '<a href="#place-2"', '<li id="place-2">', 'href="#body"'):
        assert place in html
    for side in ("theirs", "yours"):
        assert f'href="#{side}-1"' in html
        assert f'href="#{side}-2"' in html
        assert f'id="{side}-2"' in html
        assert f'href="#{side}-3"' not in html


def test_a_save_without_a_change_is_no_edit(ada: Visitor, memory: Engine, stored: Stored) -> None:
    """F: the other editor gets no page of a conflict, and nothing of hers is overwritten."""
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    with count_statements(memory) as sent:
        assert ada.send(theirs).url.endswith("/pages/tea")
    assert not any("UPDATE" in one.text and "body" in one.text for one in sent.statements)
    assert ada.send(mine, body=LATE).status == 200
    assert ada.send(theirs).status == 200
    assert stored("tea") == LATE


def test_a_save_without_a_change_is_no_edit_after_a_restart_either(memory: Engine) -> None:
    """F: no seal of before holds, and the page says what was edited."""
    after = Visitor(wiki_on(memory, secret="after" * 9))
    mine, theirs = after.edit("tea"), after.edit("tea")
    theirs.fields["seal"] = "0" * 64
    assert after.send(theirs).status == 200
    assert after.send(mine, body=LATE).status == 200
    answer = after.send(theirs)  # the page has moved, so nobody knows any more
    assert (answer.status, after.edit("tea").fields["body"]) == (409, LATE)


def test_two_who_make_the_same_edit_have_nothing_to_decide(ada: Visitor, stored: Stored) -> None:
    """F: what is stored is what both want."""
    mine, theirs = ada.edit("tea"), ada.edit("tea")
    ada.send(theirs, body=LATE)
    assert ada.send(mine, body=LATE).status == 200
    assert stored("tea") == LATE
    again = ada.send(ada.open("/new").form, name="tea", body=LATE)
    assert (again.status, again.url.endswith("/pages/tea")) == (200, True)


@pytest.mark.parametrize("path", ["/pages/tea/edit", "/new"])
def test_a_form_without_its_text_empties_no_page(
    ada: Visitor, client: TestClient, stored: Stored, path: str
) -> None:
    """F: a field that was lost, or came twice, is no empty text."""
    fields = {**ada.edit("tea").fields, "name": "new"}
    del fields["body"]
    answers = [
        client.post(path, data=fields),
        client.post(path, data={**fields, "body": ["a", "b"]}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert "nothing was saved" in answers[0].text
    assert (stored("tea"), stored("new")) == (TEA, None)


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
    assert answer.box.startswith(("mine " + body, MARKS[0]))
    assert "mine" in answer.box
    assert " theirs" in answer.box
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
    assert (second.status, second.box) == (409, DIFFERING)
    assert "What both of you began from" not in second.html
    assert ada.edit("tea").fields["body"] == EARLY
    assert ada.send(second.form).status == 409
    assert ada.send(second.form, body=LATE).status == 200
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
    assert (answer.status, answer.box, stored("tea")) == (409, DIFFERING, EARLY)
    assert "What both of you began from" not in answer.html


def test_a_text_does_not_pass_with_the_tag_of_another_version(ada: Visitor) -> None:
    before = ada.edit("tea")
    ada.send(ada.edit("tea"), body=EARLY)
    now = ada.edit("tea")
    ada.send(ada.edit("tea"), body="First: " + EARLY)
    crossed = {name: before.fields[name] for name in ("base", "seal")}
    box = ada.send(now, body=LATE, **crossed).box
    assert "First: Heat the water." in box
    assert box.count(MARKS[0]) == 2  # each line that differs


def test_a_text_of_one_page_opens_no_merge_of_another(ada: Visitor) -> None:
    ada.send(ada.open("/new").form, name="coffee", body=TEA)
    crossed = ada.edit("coffee")
    crossed.action = "/pages/tea/edit"
    ada.send(ada.edit("tea"), body=EARLY)
    assert ada.send(crossed, body=LATE).box == DIFFERING


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
    assert after.send(unchanged, body=LATE).box == DIFFERING


def test_a_conflict_without_a_base_is_compared_with_what_is_stored() -> None:
    conflict = Conflict(yours="a b", theirs="a c")
    assert (conflict.merged, conflict.box) == (None, both("a b", "a c"))
    assert [(place.yours, place.theirs) for place in conflict.places] == [("a b", "a c")]
    assert [mark.kind for mark in conflict.their_marks] == ["equal"]
    assert [mark.text for mark in conflict.your_marks] == ["a ", "c", "b"]


def test_each_side_is_compared_with_the_base() -> None:
    conflict = Conflict(
        base="Boil the water.", yours="Boil the water. Wait.", theirs="Heat the water."
    )
    assert conflict.merged == "Heat the water. Wait."
    assert [mark.text for mark in conflict.their_marks if mark.kind != "equal"] == ["Boil", "Heat"]
