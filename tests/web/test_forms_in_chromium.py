"""Each kind of field in a browser: the texts that it changes are no edits, and edits are stored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool
from werkzeug.serving import make_server

from tests.support.chromium import Page, chromium, window
from tests.web.form_pages import COLUMNS, Row, as_stored, as_written, on_flask, sessions_of

pytestmark = [pytest.mark.full]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(params=["scripts", "no scripts"])
def opened(browser: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Page, Page]]:
    """Return the sessions, and two people who have opened the form."""
    engine = sa.create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    sessions = sessions_of(engine)
    with sessions.begin() as session:
        session.add(Row(id=1, **{name: as_written(name, 0) for name in COLUMNS}))
    server = make_server("127.0.0.1", 0, on_flask(sessions))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.port}/"
    pair = [window(browser, address, scripts=request.param == "scripts") for _ in range(2)]
    for page in pair:
        page.goto(address)
    yield sessions, pair[0], pair[1]
    for context in browser.contexts:
        context.close()
    server.shutdown()
    engine.dispose()


def fill(page: Page, name: str, at: int) -> None:
    """Type a value into a field."""
    column, text = COLUMNS[name], COLUMNS[name].texts[at]
    field = page.locator(f"[name={name}]")
    match column.html:
        case "checkbox":
            field.set_checked(text == "true")
        case "select" | "multiple":
            field.select_option(text)
        case _:
            field.fill(text)


def press(page: Page) -> int:
    with page.expect_navigation() as navigation:
        page.click("button")
    status: int = navigation.value.status
    return status


def values(sessions: Any) -> dict[str, Any]:
    with sessions() as session:
        row = session.get_one(Row, 1)
        return {name: plain(getattr(row, name)) for name in (*COLUMNS, "title", "other")}


def plain(value: Any) -> Any:
    return value.replace("\r\n", "\n") if isinstance(value, str) else value


def stored(at: int) -> dict[str, Any]:
    return {name: plain(as_stored(name, at)) for name in COLUMNS}


def test_untouched_fields_are_as_they_were(opened: tuple[Any, Page, Page]) -> None:
    sessions, ada, bob = opened
    for page, name in ((ada, "title"), (bob, "other")):
        page.fill(f"[name={name}]", "mine")
        assert press(page) == 200
    assert values(sessions) == {**stored(0), "title": "mine", "other": "mine"}


def test_every_edit_of_two_people_is_stored_after_two_presses(
    opened: tuple[Any, Page, Page],
) -> None:
    sessions, ada, bob = opened
    for name in COLUMNS:
        fill(ada, name, 1)
    ada.fill("[name=other]", "Ada's")
    assert press(ada) == 200
    assert values(sessions) == {**stored(1), "title": "old", "other": "Ada's"}
    bob.fill("[name=title]", "Bob's")
    theirs = [name for name in COLUMNS if name not in ("flag", "line")]
    for name in theirs:
        fill(bob, name, 2)
    assert press(bob) == 409  # both have changed nearly all
    assert values(sessions)["title"] == "old"
    assert press(bob) == 200
    expected = {**stored(1), **{name: stored(2)[name] for name in theirs}}
    assert values(sessions) == {**expected, "title": "Bob's", "other": "Ada's"}


def test_every_field_can_be_emptied(opened: tuple[Any, Page, Page]) -> None:
    sessions, ada, _ = opened
    kept = [name for name, one in COLUMNS.items() if one.html in ("color", "range")]
    for name, one in COLUMNS.items():
        if one.html == "checkbox":
            ada.locator(f"[name={name}]").set_checked(False)
        elif one.html in ("select", "multiple"):
            ada.locator(f"[name={name}]").select_option([] if one.html == "multiple" else "")
        elif name not in kept:
            ada.locator(f"[name={name}]").fill("")
    assert press(ada) == 200
    empty = {name: one.empty for name, one in COLUMNS.items()}
    expected = {**empty, "flag": False, **{name: stored(0)[name] for name in kept}}
    assert values(sessions) == {**expected, "title": "old", "other": "old"}
