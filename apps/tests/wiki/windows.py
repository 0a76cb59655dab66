"""What people do in windows of Chromium on a wiki, for tests and for the pictures in the pages."""

from __future__ import annotations

import re
from typing import Any

from tests.support.chromium import LONG, Page, press

__all__ = ["back", "conflict", "editor_opens", "holds", "save"]


def save(page: Page, body: str) -> None:
    """Write into the box, and save it."""
    page.get_by_label("Text").fill(body)
    press(page, "Save")


def back(page: Page) -> None:
    """To the page before, until it is there again. The browser may have kept it as it was."""
    with page.expect_navigation(wait_until="commit"):
        page.evaluate("setTimeout(() => history.back())")
    page.wait_for_load_state("load")


def editor_opens(page: Page) -> None:
    """By itself, without a hand on mouse or keyboard."""
    _expect(page).to_have_title(re.compile("^Edit: "), timeout=LONG)
    page.wait_for_load_state("load")


def holds(page: Page) -> None:
    """The editor has a lease, and says of nobody else that he edits."""
    _expect(page.locator("[name=lease]")).not_to_have_value("", timeout=LONG)
    _expect(page.locator("#editing")).to_be_hidden(timeout=LONG)


def _expect(of: Any) -> Any:
    from playwright.sync_api import expect

    return expect(of)


def conflict(ada: Page, bob: Page, name: str, *, mine: str, theirs: str) -> None:
    """Both open the page, Bob saves it, Ada comes second and sees the conflict."""
    for page in (ada, bob):
        page.goto(f"/pages/{name}/edit?anyway=yes")
    save(bob, theirs)
    save(ada, mine)
