"""Windows of Chromium, for tests of forms and of applications.

::

    with chromium() as browser:
        ada, bob = window(browser, address), window(browser, address, scripts=False)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.needed import needed, program

__all__ = ["LONG", "Page", "chromium", "press", "window"]

#: Playwright's page; the package is not always installed.
Page = Any

#: Milliseconds, for what a lease has to end for, also on a machine that is busy.
LONG = 60_000


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
    context.set_default_timeout(LONG)
    return context.new_page()


def press(page: Page, button: str) -> None:
    """Press a button, or follow a link, until the next page is there, whole."""
    with page.expect_navigation(wait_until="load"):
        page.get_by_role("button", name=button).or_(page.get_by_role("link", name=button)).click()
