"""``optilock check`` and ``optilock migrate``, as a shell runs them."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from optilock import Versioned
class Base(DeclarativeBase): pass
class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODELS)
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE pages (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO pages VALUES (1)")
    return tmp_path


def optilock(shop: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from optilock.cli import main; main()", *words]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command,
        cwd=shop,
        text=True,
        capture_output=True,
        timeout=60,
        env={"PYTHONPATH": str(root), "PATH": "", "COLUMNS": "120"},
    )


def test_check_finds_what_migrate_repairs(shop):
    url = ("--url", "sqlite:///shop.db")
    before = optilock(shop, "check", "shop", *url, "--json")
    assert before.returncode == 1, before.stderr
    assert [finding["code"] for finding in json.loads(before.stdout)] == ["no-column"]

    done = optilock(shop, "migrate", "pages", *url)
    assert done.returncode == 0, done.stderr
    assert "pages.version is there" in done.stdout

    after = optilock(shop, "check", "shop:Base", *url)
    assert after.returncode == 0
    assert "Nothing found" in after.stdout


def test_migrate_knows_the_tokens_and_guards_the_table(shop):
    words = ("migrate", "pages", "--url", "sqlite:///shop.db")
    done = optilock(shop, *words, "--token", "row-version", "--column", "moves")
    assert "create its trigger" in done.stdout, done.stderr
    done = optilock(shop, *words, "--token", "timestamp", "--guard", "bump", "--ignore", "moves")
    assert "create the guard trigger, fill" in " ".join(done.stdout.split()), done.stderr
    done = optilock(shop, *words, "--token", "timestamp", "--guard", "bump", "--ignore", "moves")
    assert "nothing to do" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "nowhere", "--url", "sqlite://"), "cannot be imported"),
        (("check", "shop:Nothing", "--url", "sqlite://"), "has nothing called"),
        (("check", "json", "--url", "sqlite://"), "no mapped classes"),
        (("check", "shop", "--url", "me:secret@x"), "cannot be read"),
        (("migrate", "pages", "--url", "postgresql+asyncpg://me:secret@x/y"), "async driver"),
        (("migrate", "nothing", "--url", "sqlite:///shop.db"), "no table 'nothing'"),
        (("migrate", "pages", "--url", "sqlite:///shop.db", "--rate", "0"), "rate"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(shop, words, says):
    ended = optilock(shop, *words)
    assert ended.returncode == 2
    assert says in ended.stderr.replace("\n", " ")
    assert "Traceback" not in ended.stderr
    assert "secret" not in ended.stderr
