"""Two windows of a real browser, with and without JavaScript, and a keyboard without a mouse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from apps.tests.programs import visitor, wiki_at
from apps.tests.wiki.wikis import both
from apps.tests.wiki.windows import back, conflict, editor_opens, holds, save
from tests.support.chromium import Page, chromium, press, window

pytestmark = pytest.mark.full

TEA = "Boil the water.\nPut in the leaves.\nWait three minutes.\n"
EARLY, LATE = TEA.replace("Boil", "Heat"), TEA.replace("three", "five")
CLASH = TEA.replace("three", "four")

#: Seconds. An open editor renews it three times in them.
LEASE = "5"

Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with wiki_at("--lease", LEASE, folder=tmp_path_factory.mktemp("wiki")) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """Opens windows, which are closed afterwards."""
    yield partial(window, browser, address)
    for context in browser.contexts:
        context.close()


@pytest.fixture
def name(request: pytest.FixtureRequest, address: str) -> str:
    """A page of the test's own."""
    name = "".join(letter for letter in request.node.name if letter.isalnum() or letter == "_")
    with visitor(address) as somebody:
        somebody.send(somebody.open("/new").form, name=name, body=TEA)
    return name


scripts = pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])


@scripts
def test_two_edits_of_one_page_are_merged(opened: Opened, name: str, scripts: bool) -> None:
    ada, bob = opened(scripts=scripts), opened(scripts=scripts)
    conflict(ada, bob, name, mine=LATE, theirs=EARLY)
    assert ada.title() == f"Conflict: {name} · Wiki"
    assert ada.get_by_text("Nothing of yours is lost, and nothing was saved.").is_visible()
    box = ada.get_by_label("Text")
    assert box.input_value() == EARLY.replace("three", "five")
    assert ada.locator("textarea:focus").count() == 1

    press(ada, "Save the text in the box")
    assert ada.url.endswith(f"/pages/{name}")
    bob.reload()
    assert bob.locator("main .text").text_content() == EARLY.replace("three", "five")


@scripts
def test_words_that_clash_are_marked_and_settled_by_hand(
    opened: Opened, name: str, scripts: bool
) -> None:
    ada, bob = opened(scripts=scripts), opened(scripts=scripts)
    conflict(ada, bob, name, mine=LATE, theirs=CLASH)
    place = both("Wait five minutes.", "Wait four minutes.")
    assert ada.get_by_label("Text").input_value() == TEA.replace("Wait three minutes.\n", place)
    theirs, yours = ada.get_by_label("Theirs, stored now"), ada.get_by_label("Yours, not saved")
    for side, word in ((theirs, "four"), (yours, "five")):
        assert side.locator("del").text_content() == "deleted: three (end) "
        assert side.locator("ins").text_content() == f"inserted: {word} (end) "
    left, right = theirs.bounding_box(), yours.bounding_box()
    assert left["x"] + left["width"] < right["x"]
    assert left["y"] == right["y"]

    save(ada, TEA.replace("three", "four to five"))
    bob.reload()
    assert "Wait four to five minutes." in bob.locator("main .text").text_content()


LONG = "".join(f"line {number}\n" for number in range(60))


def edited(text: str, **edits: str) -> str:
    """With other lines: ``l3="mine"`` is line 3."""
    for name, line in edits.items():
        text = text.replace(f"line {name[1:]}\n", f"{line}\n")
    return text


@scripts
def test_two_places_of_a_long_text_are_stored_after_two_presses_of_save(
    opened: Opened, name: str, scripts: bool
) -> None:
    """A5, A6: the second one looks at the merge, and saves it."""
    ada, bob = opened(scripts=scripts), opened(scripts=scripts)
    ada.goto(f"/pages/{name}/edit?anyway=yes")
    save(ada, LONG)
    theirs, mine = edited(LONG, l1="ADA 1", l50="ADA 50"), edited(LONG, l25="BOB 25")
    conflict(bob, ada, name, mine=mine, theirs=theirs)
    press(bob, "Save the text in the box")
    merged = edited(LONG, l1="ADA 1", l25="BOB 25", l50="ADA 50")
    assert bob.locator("main .text").text_content() == merged


@scripts
def test_one_press_of_save_drops_nothing_where_words_clash(
    opened: Opened, name: str, scripts: bool
) -> None:
    """A5: the box has the edits elsewhere, and both sides of what clashes; open it is not saved."""
    ada, bob = opened(scripts=scripts), opened(scripts=scripts)
    ada.goto(f"/pages/{name}/edit?anyway=yes")
    save(ada, LONG)
    theirs = edited(LONG, l40="ADA 40", l50="ADA 50", l58="ADA 58")
    conflict(bob, ada, name, mine=edited(LONG, l40="BOB 40", l58="BOB 58"), theirs=theirs)
    box, places = bob.get_by_label("Text"), bob.get_by_label("Changed by both of you: 2 places")
    assert places.bounding_box()["y"] < box.bounding_box()["y"]
    assert "ADA 40" in places.inner_text()
    assert "BOB 58" in places.inner_text()
    open_ = theirs.replace("ADA 40\n", both("BOB 40", "ADA 40"))
    open_ = open_.replace("ADA 58\n", both("BOB 58", "ADA 58"))
    assert box.input_value() == open_
    assert bob.evaluate("scrollY") == 0  # the places come first

    next_ = bob.get_by_role("button", name="Next change")
    assert next_.is_visible() is scripts
    if scripts:
        chosen = "box => box.value.slice(box.selectionStart, box.selectionEnd)"
        for line in ("40", "58", "40"):
            next_.click()
            assert box.evaluate(chosen) == both(f"BOB {line}", f"ADA {line}").rstrip("\n")
        assert box.evaluate("box => box.scrollTop") > 0
    bob.get_by_role("link", name="Next change").first.click()
    assert bob.url.endswith("#place-2")

    press(bob, "Save the text in the box")
    assert bob.get_by_role("alert").inner_text().startswith("Some places are still open")
    assert box.input_value() == open_
    ada.goto(f"/pages/{name}")
    assert ada.locator("main .text").text_content() == theirs

    settled = edited(LONG, l40="BOTH 40", l50="ADA 50", l58="BOTH 58")
    save(bob, settled)
    assert bob.locator("main .text").text_content() == settled


@scripts
def test_a_second_conflict_keeps_the_box(opened: Opened, name: str, scripts: bool) -> None:
    ada, bob = opened(scripts=scripts), opened(scripts=scripts)
    conflict(ada, bob, name, mine=LATE, theirs=CLASH)
    bob.goto(f"/pages/{name}/edit?anyway=yes")
    save(bob, EARLY.replace("three", "four"))
    save(ada, LATE + "Drink.\n")
    assert ada.title().startswith("Conflict: ")
    assert ada.get_by_label("Text").input_value() == LATE.replace("Boil", "Heat") + "Drink.\n"
    press(ada, "Keep theirs")
    assert "Wait four minutes." in ada.locator("main .text").text_content()


@scripts
def test_a_page_that_was_deleted_is_made_again(opened: Opened, name: str, scripts: bool) -> None:
    ada, bob = opened(scripts=scripts), opened(scripts=scripts)
    ada.goto(f"/pages/{name}/edit")
    bob.goto(f"/pages/{name}")
    bob.get_by_text("Delete this page").click()
    press(bob, "Delete")
    save(ada, LATE)
    assert ada.title() == f"Conflict: {name} was deleted · Wiki"
    press(ada, "Make the page again")
    assert ada.locator("main .text").text_content() == LATE


def test_a_conflict_is_settled_by_the_keyboard_alone(opened: Opened, name: str) -> None:
    ada, bob = opened(scripts=False), opened(scripts=False)

    def type_(*keys: str) -> None:
        for key in keys:
            ada.keyboard.press(key)

    def focused() -> str:
        return str(ada.locator(":focus").inner_text())

    ada.goto(f"/pages/{name}")
    type_("Tab")
    assert focused() == "Skip to the content"
    assert ada.get_by_text("Skip to the content").bounding_box()["x"] >= 0
    type_("Enter", "Tab")
    assert focused() == "Edit"
    type_("Enter")
    ada.wait_for_url("**/edit")
    bob.goto(f"/pages/{name}/edit?anyway=yes")
    type_("Control+End")
    ada.keyboard.type("Drink.")
    save(bob, EARLY)
    type_("Tab")
    assert focused() == "Save"
    type_("Enter")
    ada.wait_for_selector("#conflict")
    assert ada.locator("textarea:focus").get_attribute("aria-describedby") == "conflict"
    type_("Control+Home")
    ada.keyboard.type("First: ")
    type_("Tab")
    assert focused() == "Save the text in the box"
    type_("Tab")
    assert focused() == "Keep theirs"
    type_("Tab")
    assert focused() == "What both of you began from"
    type_("Enter")
    assert ada.locator("details .text").is_visible()
    type_("Shift+Tab", "Shift+Tab")
    type_("Enter")
    ada.wait_for_url(f"**/pages/{name}")
    assert ada.locator("main .text").text_content() == "First: " + EARLY + "Drink."


def test_the_focus_is_seen_and_what_is_for_screen_readers_is_not(opened: Opened, name: str) -> None:
    ada, bob = opened(), opened()
    conflict(ada, bob, name, mine=LATE, theirs=CLASH)
    style = "(element, name) => getComputedStyle(element)[name]"
    for element, line in (("del", "line-through"), ("ins", "underline")):
        assert ada.locator(element).first.evaluate(style, "textDecorationLine") == line
    for unseen in ada.locator(".unseen").all():
        assert unseen.bounding_box()["width"] <= 1
    for _ in range(3):
        assert ada.locator(":focus").evaluate(style, "outlineStyle") == "solid"
        ada.keyboard.press("Tab")


def test_in_a_narrow_window_yours_stands_below_theirs(opened: Opened, name: str) -> None:
    ada, bob = opened(width=400), opened()
    conflict(ada, bob, name, mine=LATE, theirs=CLASH)
    theirs = ada.get_by_label("Theirs, stored now").bounding_box()
    yours = ada.get_by_label("Yours, not saved").bounding_box()
    assert theirs["y"] + theirs["height"] < yours["y"]
    assert ada.evaluate("document.documentElement.scrollWidth") <= 400


def test_after_a_conflict_the_browsers_back_overwrites_nothing(opened: Opened, name: str) -> None:
    ada, bob = opened(), opened()
    conflict(ada, bob, name, mine=LATE, theirs=CLASH)
    back(ada)
    assert ada.get_by_label("Text").input_value() in (LATE, TEA)  # as the browser has kept it
    save(ada, LATE)
    assert ada.title().startswith("Conflict: ")  # the old tag came back with the old text
    assert bob.reload().ok
    assert "Wait four minutes." in bob.locator("main .text").text_content()


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_blocked(
    opened: Opened, name: str, address: str
) -> None:
    ada, bob = opened(), opened()
    asked: list[str] = []
    said: list[str] = []
    ada.on("request", lambda request: asked.append(request.url))
    ada.on("console", lambda message: said.append(message.text))
    conflict(ada, bob, name, mine=LATE, theirs=CLASH)
    assert asked
    assert [url for url in asked if not url.startswith(address)] == []
    assert [text for text in said if "409" not in text] == []


def test_a_form_on_a_page_of_another_site_saves_nothing(
    opened: Opened, name: str, address: str, tmp_path: Path
) -> None:
    ada = opened()
    ada.goto(f"/pages/{name}/edit")
    tag = ada.locator("input[name=tag]").get_attribute("value")
    trap = tmp_path / "trap.html"
    trap.write_text(
        f"<form method=post action='{address}pages/{name}/edit'><input name=tag value='{tag}'>"
        "<input name=body value=trapped><button>Win a prize</button></form>"
    )
    ada.goto(trap.as_uri())
    press(ada, "Win a prize")
    assert "A page of another site has sent this" in ada.locator("main").text_content()
    ada.goto(f"/pages/{name}")
    assert ada.locator("main .text").text_content() == TEA


# -- somebody saves the page while it is edited here ---------------------------------------------


def test_a_save_of_another_is_seen_while_typing_and_merged_with_one_press(
    opened: Opened, name: str
) -> None:
    ada, bob, carol = opened(), opened(), opened(scripts=False)
    for page in (ada, bob, carol):
        page.goto(f"/pages/{name}/edit?anyway=yes")
    note, box = bob.locator("#changed"), bob.get_by_label("Text")
    assert note.is_hidden()
    box.press("Control+End")
    bob.keyboard.type("Dri")
    ada.get_by_label("Your signature").fill("Ada")
    save(ada, EARLY)
    note.wait_for(timeout=60_000)
    assert note.inner_text().startswith("Ada has changed this page just now. Your edits are kept")
    bob.keyboard.type("nk.")
    assert box.input_value() == TEA + "Drink."
    assert carol.locator("#changed").is_hidden()

    press(bob, "Save")
    assert box.input_value() == EARLY + "Drink."
    assert note.is_hidden()
    press(bob, "Save the text in the box")
    assert bob.locator("main .text").text_content() == EARLY + "Drink."


# -- somebody edits the page -----------------------------------------------------------------------

NOTICE = "Somebody has been editing this page since"


@scripts
def test_who_comes_second_is_told_and_can_edit_anyway_and_nothing_is_lost(
    opened: Opened, name: str, scripts: bool
) -> None:
    ada, bob = opened(), opened(scripts=scripts, width=400)
    ada.goto(f"/pages/{name}/edit")
    holds(ada)
    for _ in range(4):  # longer than the lease lasts without heartbeats
        with ada.expect_response("**/editing", timeout=60_000):
            pass
    bob.goto(f"/pages/{name}/edit")
    assert bob.get_by_text(NOTICE).is_visible()
    assert bob.locator("main .text").text_content() == TEA
    assert bob.get_by_text("the editor opens here").is_visible() is scripts
    assert bob.evaluate("document.documentElement.scrollWidth") <= 400

    for focused in ("Skip to the content", "All pages", "New page", "Look again", "Edit anyway"):
        bob.keyboard.press("Tab")
        assert bob.locator(":focus").inner_text() == focused
    with bob.expect_navigation(wait_until="load"):
        bob.keyboard.press("Enter")
    assert bob.get_by_text(NOTICE).is_visible()
    save(bob, EARLY)
    save(ada, LATE)
    assert ada.title().startswith("Conflict: ")
    assert ada.get_by_label("Text").input_value() == EARLY.replace("three", "five")
    holds(ada)


@pytest.mark.parametrize(("how", "text"), [("Save", LATE), ("Cancel", TEA)], ids=["save", "cancel"])
def test_who_waits_gets_the_editor_when_the_other_one_is_done(
    opened: Opened, name: str, how: str, text: str
) -> None:
    ada, bob = opened(), opened()
    ada.goto(f"/pages/{name}/edit")
    holds(ada)
    bob.goto(f"/pages/{name}/edit")
    assert bob.get_by_text(NOTICE).is_visible()
    ada.get_by_label("Text").fill(LATE)
    press(ada, how)
    editor_opens(bob)
    holds(bob)
    assert bob.get_by_label("Text").input_value() == text


def test_the_notice_in_an_editor_goes_away_when_the_other_one_is_done(
    opened: Opened, name: str
) -> None:
    ada, bob = opened(), opened()
    ada.goto(f"/pages/{name}/edit")
    holds(ada)
    bob.goto(f"/pages/{name}/edit?anyway=yes")
    assert bob.get_by_text(NOTICE).is_visible()
    bob.get_by_label("Text").fill(EARLY)
    press(ada, "Cancel")
    holds(bob)
    assert bob.get_by_label("Text").input_value() == EARLY


def test_the_lease_of_a_window_that_is_cut_off_ends_by_itself(opened: Opened, name: str) -> None:
    ada, bob = opened(), opened()
    ada.goto(f"/pages/{name}/edit")
    holds(ada)
    bob.goto(f"/pages/{name}/edit")
    assert bob.get_by_text(NOTICE).is_visible()
    ada.context.set_offline(True)
    ada.context.close()
    editor_opens(bob)
    holds(bob)


def test_who_reloads_his_own_editor_or_comes_back_to_it_gets_it_again(
    opened: Opened, name: str
) -> None:
    ada = opened()
    ada.goto(f"/pages/{name}/edit")
    holds(ada)
    ada.reload()
    editor_opens(ada)
    holds(ada)
    press(ada, "Cancel")
    back(ada)
    editor_opens(ada)
    holds(ada)
