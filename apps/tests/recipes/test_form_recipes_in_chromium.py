"""The ten forms of docs/how-to/web/form-recipes.md as printed, and two people in Chromium.

Whatever both do, all edits are stored after at most two presses of Save.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest

from apps.tests.recipes.served_pages import served_page
from tests.support.chromium import Page, chromium, window
from tests.support.needed import needed

pytestmark = [pytest.mark.full]

#: Form -> its second field, and three values: as typed, and as stored.
FIELDS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "csrf": ("notes", ["Ä", "\nb\n", "c", "b, c"], ["Ä", "\nb\n", "c", "b, c"]),
    "select": ("kind", ["TOUR", "PARTY", "TALK"], ["TOUR", "PARTY", "TALK"]),
    "multiple": ("tags", [["cake"], [], ["tea", "music"]], [["cake"], [], ["tea", "music"]]),
    "checkbox": ("public", [True, False, True], [True, False, True]),
    "moment": (
        "begins",
        ["2030-07-01T12:00", "2030-12-01T12:00", "2030-07-02T09:30:15"],
        [
            datetime(2030, 7, 1, 10, tzinfo=UTC),
            datetime(2030, 12, 1, 11, tzinfo=UTC),
            datetime(2030, 7, 2, 7, 30, 15, tzinfo=UTC),
        ],
    ),
    "price": ("price", ["2,50", "3", "0,05"], [Decimal("2.50"), Decimal(3), Decimal("0.05")]),
    "file": ("poster", [b"first", b"second", b"third"], [b"first", b"second", b"third"]),
    "autosave": ("notes", ["1", "2", "3", "2, 3"], ["1", "2", "3", "2, 3"]),
    "htmx": ("notes", ["1", "2", "3", "2, 3"], ["1", "2", "3", "2, 3"]),
    "state": ("notes", ["1", "2", "3", "2, 3"], ["1", "2", "3", "2, 3"]),
}
#: Two people cannot both change these so that a person has to choose.
TWO_VALUES = {"checkbox"}


def htmx() -> Path:
    for one in _files_of("django-htmx"):
        if one.name == "htmx-2.min.js":
            return Path(str(one.locate()))
    raise AssertionError("django-htmx has no htmx-2.min.js")


def _files_of(package: str) -> list[Any]:
    with contextlib.suppress(ModuleNotFoundError):
        return [*(files(package) or ())]
    needed(f"{package} is not installed: python -m pip install --group browser")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("forms")
    with served_page("how-to/web/form-recipes.md", folder) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Any, program: Any) -> Iterator[Opened]:
    def person(scripts: bool = True) -> Page:
        page = window(browser, program.address, scripts=scripts)
        page.context.set_default_timeout(15_000)
        page.context.route(re.compile("^https:"), lambda route: route.fulfill(path=htmx()))
        return page

    yield person
    for context in browser.contexts:
        context.close()


def is_told(page: Page, words: str) -> None:
    """Wait for an alert with these words; a script may put them in after the answer."""
    page.get_by_role("alert").get_by_text(words).first.wait_for()


class Form:
    """One of the forms, in the windows of both."""

    def __init__(self, name: str, program: Any, scripts: bool = True) -> None:
        self.name, self._program, self.scripts = name, program, scripts
        self.field, self._typed, self.values = FIELDS[name]

    def open(self, *pages: Page) -> None:
        for page in pages:
            page.goto(f"/{self.name}")

    def fill(self, page: Page, at: int) -> None:
        value = self._typed[at]
        if self.field == "poster":
            chosen = {"name": "poster.png", "mimeType": "image/png", "buffer": value}
            page.set_input_files("[name=file]", [chosen])
            return
        field = page.locator(f"[name={self.field}]")
        if self.field == "public":
            field.set_checked(value)
        elif self.field in ("kind", "tags"):
            field.select_option(value)
        else:
            field.fill(value)

    def save(self, page: Page, title: str | None = None) -> bool:
        """Press Save, and wait for the next page; return whether it was stored."""
        if title is not None:
            page.fill("[name=title]", title)
        with self.answered(page) as sent:
            page.get_by_role("button", name="Save").click()
        status: int = sent.value.status
        return status < 400

    def answered(self, page: Page) -> Any:
        """The answer to a press of Save."""
        if self.scripts and self.name == "state":
            return page.expect_response(lambda answer: answer.request.method == "POST")
        if self.scripts and self.name == "htmx":
            return page.expect_response(
                lambda answer: answer.status != 303 and answer.request.resource_type == "xhr"
            )
        return page.expect_navigation(wait_until="load")

    def stored(self) -> tuple[str, Any]:
        with self._program.SessionLocal() as session:
            event = session.get_one(self._program.Event, 1)
            value = getattr(event, self.field)
            if self.field == "poster" and value:
                value = (self._program.POSTERS / value).read_bytes()
            if self.field == "kind":
                value = value.name
            if self.field == "begins":
                value = value.replace(tzinfo=UTC)
            return event.title, value

    def is_stored(self, title: str, at: int) -> None:
        assert self.stored() == (title, self.values[at])


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
@pytest.mark.parametrize("name", FIELDS)
def test_all_edits_of_two_people_are_stored_after_two_presses(
    program: Any, opened: Opened, name: str, scripts: bool
) -> None:
    form, ada, bob = Form(name, program, scripts), opened(scripts), opened(scripts)

    # Different fields: one press each.
    form.open(ada, bob)
    form.fill(bob, 0)
    assert form.save(ada, "Ada's")
    assert form.save(bob)
    form.is_stored("Ada's", 0)

    # The same field: the second one sees both, and what he has typed is still there.
    form.open(ada, bob)
    form.fill(ada, 1)
    form.fill(bob, 2)
    assert form.save(ada)
    settled = 1 if name == "checkbox" else 2  # which has no third value that both may set
    if settled == 2:
        assert not form.save(bob, "Bob's")
        form.is_stored("Ada's", 1)
        is_told(bob, "oth of you have changed")
        if form.field == "notes":
            settled = 3  # a text without the marks
            form.fill(bob, 3)
    assert form.save(bob, "Bob's")
    form.is_stored("Bob's", settled)

    # Back, to a page that shows what was before.
    bob.go_back(wait_until="load")
    if not bob.url.endswith(name):
        form.open(bob)
    if form.field == "notes":  # the page may have marks
        form.fill(bob, settled)
    assert form.save(bob, "Back") or form.save(bob, "Back")
    form.is_stored("Back", settled)

    # Two tabs of one person.
    tab = bob.context.new_page()
    form.open(bob, tab)
    form.fill(tab, 0)
    assert form.save(bob, "Tabs")
    assert form.save(tab)
    form.is_stored("Tabs", 0)

    # A double click.
    form.open(bob)
    form.fill(bob, 1)
    bob.fill("[name=title]", "Twice")
    with form.answered(bob):
        bob.get_by_role("button", name="Save").dblclick()
    assert not bob.title().startswith("Not saved")
    form.is_stored("Twice", 1)


def test_a_page_from_before_a_release_loses_nothing_in_either_direction(
    program: Any, opened: Opened
) -> None:
    ada, new = opened(), dict(program.FORMS)
    for name in FIELDS:
        if name in ("state", "autosave"):  # such pages go on from their answers
            continue
        form = Form(name, program)
        old = program.form_of("title")
        # The page is older than the server: its field keeps its value.
        program.FORMS[name] = old
        form.open(ada)
        program.FORMS[name] = new[name]
        before = form.stored()[1]
        assert form.save(ada, f"{name} 1")
        assert form.stored() == (f"{name} 1", before)
        # The page is newer: what was typed is shown, and the rest is stored.
        form.open(ada)
        form.fill(ada, next(at for at in (0, 1) if form.values[at] != before))
        program.FORMS[name] = old
        assert not form.save(ada, f"{name} 2")
        is_told(ada, "your page is newer than this server")
        assert form.stored() == (f"{name} 1", before)
        assert form.save(ada)
        program.FORMS[name] = new[name]
        assert form.stored() == (f"{name} 2", before)


def test_an_ended_login_keeps_what_was_typed(program: Any, opened: Opened) -> None:
    form, ada = Form("csrf", program), opened()
    form.open(ada)
    form.fill(ada, 0)
    ada.context.clear_cookies()
    assert not form.save(ada, "Later")
    is_told(ada, "your login has ended")
    assert form.save(ada)
    form.is_stored("Later", 0)


def test_a_delete_of_htmx_shows_its_412(program: Any, opened: Opened) -> None:
    form, ada, bob = Form("htmx", program), opened(), opened()
    form.open(ada, bob)
    assert form.save(ada, "Kept")
    with bob.expect_response(lambda answer: answer.status == 412):
        bob.get_by_role("button", name="Delete").click()
    is_told(bob, "Nothing is deleted")
    assert form.stored()[0] == "Kept"


def test_what_is_saved_while_typing_is_merged(program: Any, opened: Opened) -> None:
    """Bob types for a while, and Ada saves another line in the meantime."""
    form, ada, bob = Form("autosave", program), opened(), opened()
    form.open(ada)
    ada.fill("[name=notes]", "One.\nTwo.\nThree.")
    assert form.save(ada)
    form.open(ada, bob)

    def types(text: str) -> None:
        with bob.expect_response(lambda answer: answer.request.method == "POST") as sent:
            bob.fill("[name=notes]", text)
        assert sent.value.ok

    types("One!\nTwo.\nThree.")
    ada.fill("[name=notes]", "One.\nTwo.\nThree, by Ada.")
    assert form.save(ada)
    types("One!!\nTwo.\nThree.")
    types("One!!!\nTwo.\nThree.")
    assert form.save(bob)
    assert form.stored()[1] == "One!!!\nTwo.\nThree, by Ada."
