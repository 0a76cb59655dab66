"""The order of docs/how-to/web/form-lines.md as printed, and two people with a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.tests.recipes.served_pages import served_page
from tests.support.chromium import Page, chromium, press, window

pytestmark = [pytest.mark.full]


@pytest.fixture(params=[True, False], ids=["scripts", "no scripts"])
def windows(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Page, Page]]:
    folder = tmp_path_factory.mktemp("orders")
    with served_page("how-to/web/form-lines.md", folder) as program, chromium() as browser:
        pair = [window(browser, program.address, scripts=request.param) for _ in range(2)]
        for page in pair:
            page.goto("/")
        yield pair[0], pair[1]


def line(page: Page, at: int) -> Any:
    return page.locator("fieldset").nth(at)


def products(page: Page) -> list[str]:
    page.goto("/")
    found = page.get_by_label("Product").all()
    return [f"{one.input_value()}" for one in found]


def test_two_people_edit_the_lines_of_one_order(windows: tuple[Page, Page]) -> None:
    ada, bob = windows
    # Each adds a line; Ada removes one and moves one; Bob changes what she moves.
    line(ada, 3).get_by_label("Position").fill("4")
    line(ada, 3).get_by_label("Product").fill("Milk")
    line(ada, 3).get_by_label("Count").fill("1")
    line(ada, 0).get_by_label("Remove").check()
    line(ada, 1).get_by_label("Position").fill("9")
    press(ada, "Save")
    line(bob, 3).get_by_label("Position").fill("5")
    line(bob, 3).get_by_label("Product").fill("Cake")
    line(bob, 3).get_by_label("Count").fill("2")
    line(bob, 1).get_by_label("Product").fill("Mug")
    with bob.expect_navigation(wait_until="load"):
        bob.get_by_role("button", name="Save").dblclick()
    assert products(ada) == ["Pot", "Milk", "Cake", "Mug", ""]

    # Both touch one line: the second one sees it, and decides.
    bob.goto("/")
    line(ada, 0).get_by_label("Count").fill("7")
    press(ada, "Save")
    line(bob, 0).get_by_label("Remove").check()
    line(bob, 1).get_by_label("Product").fill("Oat milk")
    press(bob, "Save")
    assert "Another user has changed a line" in bob.get_by_role("alert").inner_text()
    assert line(bob, 0).get_by_label("Count").input_value() == "7"
    assert products(ada) == ["Pot", "Milk", "Cake", "Mug", ""]
    press(bob, "Save")
    assert products(ada) == ["Oat milk", "Cake", "Mug", ""]
