"""Windows of Chromium on a wiki, for tests and for the pictures in the documentation.

::

    with chromium() as browser:
        ada, bob = window(browser, address), window(browser, address, scripts=False)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.wiki.programs import needed, program

__all__ = ["Page", "chromium", "conflict", "save", "window"]

#: Playwright's page; the package is not always installed.
Page = Any


@contextmanager
def chromium() -> Iterator[Any]:
    """A Chromium without a screen."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        needed('playwright is not installed: pip install "optilock[browser]"')
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
    context.set_default_timeout(10_000)
    return context.new_page()


def save(page: Page, body: str) -> None:
    """Write into the box, and save it."""
    page.get_by_label("Text").fill(body)
    page.get_by_role("button", name="Save").click()


def conflict(ada: Page, bob: Page, name: str, *, mine: str, theirs: str) -> None:
    """Both open the page, Bob saves it, Ada comes second and sees the conflict."""
    for page in (ada, bob):
        page.goto(f"/pages/{name}/edit")
    save(bob, theirs)
    save(ada, mine)
