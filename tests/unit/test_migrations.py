"""The Alembic environment of optilock's own tables."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from optilock.tables import table_sets
from tests.support import in_process

MIGRATIONS = Path(__file__).parents[2] / "migrations"
OWN = {
    "optilock_alembic_version",
    *(name for each in table_sets().values() for name in each.table_names()),
}


@pytest.fixture(autouse=True)
def no_url_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPTILOCK_DATABASE_URL", raising=False)


def _alembic(*arguments: str, at: Path = MIGRATIONS) -> tuple[int, str]:
    """The exit code and everything that was printed."""
    return in_process.alembic("-c", str(at / "alembic.ini"), *arguments)


def _tables(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    try:
        return {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name != "sqlite_sequence"
        }
    finally:
        connection.close()


def test_a_database_is_brought_to_the_newest_revision_by_its_url(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    code, printed = _alembic("-x", f"url=sqlite:///{path}", "upgrade", "head")
    assert (code, printed) == (0, "")
    # A table of its own: the application's alembic_version is left alone.
    assert _tables(path) == OWN


def test_the_url_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process of its own, as a shell runs it."""
    path = tmp_path / "app.db"
    monkeypatch.setenv("OPTILOCK_DATABASE_URL", f"sqlite:///{path}")
    command = [sys.executable, "-m", "alembic", "-c", MIGRATIONS / "alembic.ini", "upgrade", "head"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert _tables(path) == OWN


def test_without_a_url_the_error_says_how_to_name_one() -> None:
    code, printed = _alembic("upgrade", "head")
    assert code != 0
    assert "-x url=" in printed
    assert "OPTILOCK_DATABASE_URL" in printed
    assert "Traceback" not in printed


def test_an_async_driver_is_refused_by_name() -> None:
    code, printed = _alembic("-x", "url=sqlite+aiosqlite://", "upgrade", "head")
    assert code != 0
    assert "sqlite+aiosqlite is an async driver" in printed


def test_a_url_that_cannot_be_read_is_not_repeated() -> None:
    code, printed = _alembic("-x", "url=secret", "upgrade", "head")
    assert code != 0
    assert "cannot be read" in printed
    assert "secret" not in printed


def test_a_new_revision_can_be_written_applied_and_taken_back(tmp_path: Path) -> None:
    copy, path = tmp_path / "migrations", tmp_path / "app.db"
    shutil.copytree(MIGRATIONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code, printed = _alembic("revision", "-m", "a first step", at=copy)
    assert code == 0, printed
    database = ("-x", f"url=sqlite:///{path}")
    assert _alembic(*database, "upgrade", "head", at=copy) == (0, "")
    assert _alembic(*database, "downgrade", "base", at=copy) == (0, "")
