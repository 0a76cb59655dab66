"""Page 3 of the tutorial in a real browser: two windows, and what they show is what it prints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apps.tests.programs import served_by
from apps.tests.tutorial.pages import blocks, files, with_get_one
from tests.support.chromium import Page, chromium, press, window

pytestmark = [pytest.mark.full, with_get_one]

PAGES = ["1-first-conflict.md", "2-settle-and-retry.md", "3-forms.md"]


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Page]]:
    folder = tmp_path_factory.mktemp("tutorial")
    files(folder, *PAGES)
    [_install, console] = blocks(PAGES[2], "console")
    _python, *words = console.removeprefix("$ ").split()
    with served_by(*words, folder=folder) as port, chromium() as browser:
        address = f"http://127.0.0.1:{port}/products/1"
        pair = window(browser, address), window(browser, address)
        for one in pair:
            one.goto(address)
        yield pair
        for context in browser.contexts:
            context.close()


def fill(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        page.get_by_label(name.title()).fill(value)


def fields(page: Page) -> tuple[str, str, str]:
    name, price, notes = (page.get_by_label(label) for label in ("Name", "Price", "Notes"))
    return name.input_value(), price.input_value(), notes.input_value()


def alert(page: Page) -> str:
    text: str = page.get_by_role("alert").inner_text()
    return text


def test_two_windows_lose_no_edit(windows: tuple[Page, Page]) -> None:
    """Edit different fields, buy in between, edit the same field, and settle it."""
    ada, bob = windows
    fill(ada, price="25")
    press(ada, "Save")
    fill(bob, notes="Blue.\nHolds one litre.")
    press(bob, "Save")
    assert fields(bob) == ("Teapot", "25", "Blue.\nHolds one litre.")
    assert alert(bob) == ""

    ada.reload()
    fill(ada, name="Small teapot")
    press(bob, "Buy one")
    assert bob.content().count("Bought. 4 left.") == 1
    press(ada, "Save")
    assert fields(ada)[0] == "Small teapot"
    assert alert(ada) == ""
    fill(ada, name="Teapot")
    press(ada, "Save")

    address = ada.url
    for one in (ada, bob):
        one.goto(address)
    fill(ada, price="26", notes="Blue and white.\nHolds one litre.")
    press(ada, "Save")
    fill(bob, price="24", notes="Green.\nHolds one litre.")
    press(bob, "Save")
    sentence, notes = blocks(PAGES[2], "text")
    assert alert(bob) == " ".join(sentence.split())
    assert fields(bob) == ("Teapot", "24", notes.rstrip("\n"))

    press(bob, "Save")  # without a change
    assert fields(bob) == ("Teapot", "24", notes.rstrip("\n"))
    ada.goto(address)
    assert fields(ada) == ("Teapot", "26", "Blue and white.\nHolds one litre.")

    fill(bob, notes="Blue, white or green.\nHolds one litre.")
    press(bob, "Save")
    ada.goto(address)
    assert fields(ada) == ("Teapot", "24", "Blue, white or green.\nHolds one litre.")
