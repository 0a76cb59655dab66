"""A reader follows the tutorial: the commands as printed, and the output as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from apps.tests.tutorial.pages import (
    ENVIRONMENT,
    FOLDER,
    ROOT,
    Terminal,
    blocks,
    edit,
    files,
    with_get_one,
)

pytestmark = with_get_one

PAGES = ["1-first-conflict.md", "2-settle-and-retry.md", "3-forms.md", "4-test-it.md"]

_LOADED = any(one.name == "optilock" for one in entry_points(group="pytest11"))
#: The words that run pytest, with the plug-in if it is not installed.
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
PYTEST += [] if _LOADED else ["-p", "optilock.pytest_plugin"]

#: Prints the statement that an editor sends.
LAST_STATEMENT = """
from optilock.testing import count_statements
from shop import Product, SessionLocal, engine
with count_statements(engine) as sent, SessionLocal.begin() as session:
    session.get_one(Product, 1).price = 25
print(sent.statements[-1].text)
"""

#: Sends page 3 the forms of its last table, and prints the statuses.
WRONG_REQUESTS = """
import re
from fastapi.testclient import TestClient
from shop import Product, SessionLocal
from web import app
client = TestClient(app)
seen = re.search('name="seen" value="(.+?)"', client.get("/products/1").text)[1]
good = {"seen": seen, "name": "Teapot", "price": "20", "notes": "Blue."}
for edits in ({"seen": None}, {"seen": seen[:-1]}, {"price": "cheap"}):
    sent = {name: text for name, text in {**good, **edits}.items() if text is not None}
    print(client.post("/products/1", data=sent).status_code)
bought = [client.post("/products/1/buy").status_code for _ in range(6)]
with SessionLocal.begin() as session:
    session.delete(session.get_one(Product, 1))
gone = client.post("/products/1", data={**good, "notes": "Green."})
assert "Green." in gone.text and "Save</button>" not in gone.text
print(gone.status_code)
print(client.get("/products/9").status_code)
print(bought)
"""

Open = Callable[[str], Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """Starts the command of a block in the reader's folder."""
    opened: list[Terminal] = []

    def start(console: str) -> Terminal:
        opened.append(Terminal(console, tmp_path))
        return opened[-1]

    yield start
    for one in opened:
        one.stop()


def run(folder: Path, *words: str) -> str:
    """Run a program to its end: its output."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readmes_program_prints_the_conflict_each_time_that_it_runs(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program, expected = re.findall(
        r"^```(?:python|text)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    )
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"```python\n{program}```\n\n```text\n{expected}```\n" in home
    (tmp_path / "conflict.py").write_text(program, encoding="utf-8")
    for _ in range(2):
        assert run(tmp_path, "conflict.py") == expected


@pytest.mark.full
def test_page_1_two_editors_make_a_conflict_and_without_a_version_lose_an_update(
    tmp_path: Path, terminal: Open
) -> None:
    files(tmp_path, *PAGES[:1])
    [sql] = blocks(PAGES[0], "sql")
    assert run(tmp_path, "-c", LAST_STATEMENT) == sql
    (tmp_path / "shop.db").unlink()
    _install, first, second, third = blocks(PAGES[0], "console")
    stored, conflict, lost = blocks(PAGES[0], "text")
    ada, bob = terminal(first), terminal(second)
    ada.ends(stored)
    bob.ends(conflict)

    [diff] = blocks(PAGES[0], "diff")
    edit(tmp_path / "shop.py", diff)
    (tmp_path / "shop.db").unlink()
    ada, bob = terminal(first), terminal(second)
    ada.ends(lost)
    bob.ends(lost)
    terminal(third)  # it prints the price that it has read


@pytest.mark.full
def test_page_2_different_columns_are_merged_and_sales_are_repeated(
    tmp_path: Path, terminal: Open
) -> None:
    files(tmp_path, PAGES[0])
    price, notes, new_price, new_notes, buy, again = blocks(PAGES[1], "console")
    refused, stored, same, bought, asks, last, sold_out = blocks(PAGES[1], "text")
    ada, bob = terminal(price), terminal(notes)
    ada.ends("Stored.\n")
    bob.ends(refused)

    files(tmp_path, PAGES[1])
    ada, bob = terminal(new_price), terminal(new_notes)
    ada.ends(stored)
    bob.ends(stored)
    ada = terminal("$ python edit.py price 30\nprice: 28 -> 30 (Enter commits)")
    bob = terminal("$ python edit.py price 35\nprice: 28 -> 35 (Enter commits)")
    ada.ends(stored)
    bob.ends(same)

    ada, bob = terminal(buy), terminal(buy)
    ada.ends(bought)
    bob.enter()
    bob.prompts(asks)
    bob.ends(last)
    terminal(again).ends(sold_out)


@pytest.mark.full
def test_page_3_wrong_requests_get_the_statuses_of_its_table(tmp_path: Path) -> None:
    files(tmp_path, *PAGES[:3])
    page = (FOLDER / PAGES[2]).read_text(encoding="utf-8")
    table = page.split("\n## Responses to wrong requests\n")[1].split("\n## ")[0]
    statuses = re.findall(r"\| (\d{3})\b[^|]*\|$", table, re.MULTILINE)
    *said, bought = run(tmp_path, "-c", WRONG_REQUESTS).splitlines()
    assert said == statuses
    assert len(statuses) == 5
    assert bought == "[200, 200, 200, 200, 200, 409]"


@pytest.mark.full
def test_page_4_its_tests_pass_and_its_script_is_the_one_that_is_found(tmp_path: Path) -> None:
    files(tmp_path, *PAGES)
    said = run(tmp_path, *PYTEST, "-s")
    [script] = blocks(PAGES[3], "text")
    assert script in said
    [_install, console] = blocks(PAGES[3], "console")
    assert "4 passed" in console
    assert "4 passed" in said


@pytest.mark.full
def test_page_4_without_a_version_its_tests_fail(tmp_path: Path) -> None:
    files(tmp_path, *PAGES)
    [diff] = blocks(PAGES[0], "diff")
    edit(tmp_path / "shop.py", diff)
    with pytest.raises(AssertionError) as failed:
        run(tmp_path, *PYTEST)
    for name in ("the_second_price_is_a_conflict", "no_sale_is_lost"):
        assert f"FAILED test_shop.py::test_{name}" in str(failed.value)
