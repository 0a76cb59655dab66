"""Windows of Chromium on a wiki, for tests and for the pictures in the documentation.

::

    with chromium() as browser:
        ada, bob = window(browser, address), window(browser, address, scripts=False)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.needed import needed
from tests.wiki.programs import program

__all__ = [
    "Page",
    "back",
    "chromium",
    "conflict",
    "editor_opens",
    "holds",
    "press",
    "save",
    "window",
]

#: Playwright's page; the package is not always installed.
Page = Any

#: Milliseconds, for what a lease has to end for, also on a machine that is busy.
_LONG = 60_000


@contextmanager
def chromium() -> Iterator[Any]:
    """A Chromium without a screen."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        needed("playwright is not installed: python -m pip install --group browser")
    # Chromium's sandbox refuses root.
    words = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=words)
        try:
            yield browser
        finally:
            browser.close()


def window(browser: Any, address: str, *, scripts: bool = True, width: int = 1000) -> Page:
    """Of somebody who shares nothing with the other windows."""
    context = browser.new_context(
        base_url=address, java_script_enabled=scripts, viewport={"width": width, "height": 900}
    )
    context.set_default_timeout(_LONG)
    return context.new_page()


def save(page: Page, body: str) -> None:
    """Write into the box, and save it."""
    page.get_by_label("Text").fill(body)
    press(page, "Save")


def press(page: Page, button: str) -> None:
    """Press a button, or follow a link, until the next page is there, whole."""
    with page.expect_navigation(wait_until="load"):
        page.get_by_role("button", name=button).or_(page.get_by_role("link", name=button)).click()


def back(page: Page) -> None:
    """To the page before, until it is there again. The browser may have kept it as it was."""
    with page.expect_navigation(wait_until="commit"):
        page.evaluate("setTimeout(() => history.back())")
    page.wait_for_load_state("load")


def editor_opens(page: Page) -> None:
    """By itself, without a hand on mouse or keyboard."""
    _expect(page).to_have_title(re.compile("^Edit: "), timeout=_LONG)
    page.wait_for_load_state("load")


def holds(page: Page) -> None:
    """The editor has a lease, and says of nobody else that he edits."""
    _expect(page.locator("[name=lease]")).not_to_have_value("", timeout=_LONG)
    _expect(page.locator("#editing")).to_be_hidden(timeout=_LONG)


def _expect(of: Any) -> Any:
    from playwright.sync_api import expect

    return expect(of)


def conflict(ada: Page, bob: Page, name: str, *, mine: str, theirs: str) -> None:
    """Both open the page, Bob saves it, Ada comes second and sees the conflict."""
    for page in (ada, bob):
        page.goto(f"/pages/{name}/edit?anyway=yes")
    save(bob, theirs)
    save(ada, mine)
