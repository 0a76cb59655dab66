"""The applications of docs/tutorial/web.md as printed, and two people with a real browser.

Whatever both do: after at most two presses of Save all edits are stored, and nothing is dropped
that its author has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from apps.tests.programs import ROOT, served_by
from tests.support.chromium import Page, chromium, press, window

pytestmark = pytest.mark.full

LINES = [f"line {number}" for number in range(60)]
#: The tutorial -> its file, the words that serve it, and the page to edit.
TUTORIALS = {
    "FastAPI": ("app.py", ["-m", "uvicorn", "app:app"], "/pages/1"),
    "Flask, with Flask-SQLAlchemy": (
        "hello.py",
        ["-m", "flask", "--app", "hello:flask_app", "run"],
        "/notes/1",
    ),
}

Opened = Callable[..., Page]


@contextmanager
def served(title: str, folder: Path) -> Iterator[str]:
    """The address of the page that the tutorial of this title has."""
    name, words, path = TUTORIALS[title]
    page = (ROOT / "docs" / "tutorial" / "web.md").read_text(encoding="utf-8")
    code = page.split(f"\n## {title}\n")[1].split("```python\n")[1].split("```")[0]
    (folder / name).write_text(code)
    with served_by(*words, folder=folder) as port:
        yield f"http://127.0.0.1:{port}{path}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module", params=[*TUTORIALS])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with served(request.param, tmp_path_factory.mktemp("tutorial")) as address:
        yield address


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """Opens windows on the page, whose text is :data:`LINES`; they are closed afterwards."""
    first = window(browser, address)
    first.goto(address)
    fill(first, title="Title", text="\n".join(LINES))
    press(first, "Save")

    def another() -> Page:
        page = window(browser, address)
        page.goto(address)
        return page

    yield another
    for context in browser.contexts:
        context.close()


def fill(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        page.get_by_label(name.title()).fill(value)


def said(page: Page) -> tuple[str, str]:
    return page.get_by_label("Title").input_value(), page.get_by_label("Text").input_value()


def with_lines(**edits: str) -> str:
    """The text with other lines: ``l3="mine"`` is line 3."""
    numbered = {int(name[1:]): line for name, line in edits.items()}
    return "\n".join(numbered.get(number, line) for number, line in enumerate(LINES))


def test_two_fields_of_one_form_are_both_stored(opened: Opened) -> None:
    """A4, A6: with one press of Save each."""
    ada, bob = opened(), opened()
    fill(ada, title="Ada's title")
    fill(bob, text=with_lines(l3="Bob's line"))
    press(ada, "Save")
    press(bob, "Save")
    assert said(opened()) == ("Ada's title", with_lines(l3="Bob's line"))


def test_two_places_of_one_long_text_are_both_stored(opened: Opened) -> None:
    """A5, A6: also beside another field."""
    ada, bob = opened(), opened()
    fill(ada, title="Ada's title", text=with_lines(l1="Ada 1", l50="Ada 50"))
    fill(bob, text=with_lines(l25="Bob 25"))
    press(ada, "Save")
    press(bob, "Save")
    assert said(opened()) == ("Ada's title", with_lines(l1="Ada 1", l25="Bob 25", l50="Ada 50"))


def test_where_both_change_the_same_the_second_one_sees_both(opened: Opened) -> None:
    """A4, A5: his next Save drops nothing of hers that he has not touched."""
    ada, bob = opened(), opened()
    fill(ada, title="Ada's title", text=with_lines(l1="Ada 1", l50="Ada 50"))
    fill(bob, text=with_lines(l1="Bob 1", l25="Bob 25"))
    press(ada, "Save")
    press(bob, "Save")
    assert "Nothing is saved yet" in bob.get_by_role("alert").inner_text()
    title, text = said(bob)
    assert title == "Ada's title"
    assert {"Ada 1", "Bob 1", "Bob 25", "Ada 50"} <= {*text.split("\n")}
    assert said(opened())[1] == with_lines(l1="Ada 1", l50="Ada 50")

    press(bob, "Save")  # as it came, without a look: nothing is stored, and nothing dropped
    assert said(bob) == (title, text)
    assert said(opened())[1] == with_lines(l1="Ada 1", l50="Ada 50")

    settled = with_lines(l1="Ada 1 and Bob 1", l25="Bob 25", l50="Ada 50")
    fill(bob, text=settled)
    press(bob, "Save")
    assert said(opened()) == ("Ada's title", settled)


def test_a_field_that_both_change_has_mine_and_theirs_beside_it(opened: Opened) -> None:
    """A4: the second press of Save is a decision, and about this field alone."""
    ada, bob = opened(), opened()
    fill(ada, title="Ada's title", text=with_lines(l1="Ada 1"))
    fill(bob, title="Bob's title")
    press(ada, "Save")
    press(bob, "Save")
    assert "Ada's title" in bob.get_by_role("alert").inner_text()
    assert said(bob) == ("Bob's title", with_lines(l1="Ada 1"))
    press(bob, "Save")
    assert said(opened()) == ("Bob's title", with_lines(l1="Ada 1"))


def test_a_save_without_a_change_changes_nothing(opened: Opened) -> None:
    """A6: a browser's line ends are no edit, and an empty first line is kept."""
    one = opened()
    text = "\n\n" + with_lines(l7="") + "\n"
    fill(one, text=text)
    press(one, "Save")
    ada, bob = opened(), opened()
    assert said(ada) == ("Title", text)
    before = ada.locator("[name=seen]").get_attribute("value")
    press(ada, "Save")
    assert ada.locator("[name=seen]").get_attribute("value") == before
    fill(bob, text=text + "Bob's\n")
    press(bob, "Save")
    assert said(opened()) == ("Title", text + "Bob's\n")
