"""``optilock check`` and ``optilock migrate``, as a shell runs them."""

from __future__ import annotations

import contextlib
import json
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from sqlalchemy.exc import NoSuchTableError

from optilock.dialects.commands import exit_codes
from optilock.errors import ConfigurationError, NotCommitted
from tests.support import in_process

PG, MY = "postgresql+psycopg://me:secret", "mysql+pymysql://me:secret"
MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from optilock import Versioned
class Base(DeclarativeBase): pass
class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
"""


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[sqlite3.Connection]:
    """Closed afterwards: a connection's own block commits, and leaves it open."""
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        yield connection


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODELS)
    (tmp_path / "ended.py").write_text("raise SystemExit(0)")
    (tmp_path / "db.py").write_text(
        "from sqlalchemy import create_engine\n"
        "plain = create_engine('sqlite:///shop.db')\n"
        "each_alone = plain.execution_options(isolation_level='AUTOCOMMIT')\n"
    )
    (tmp_path / "loose.py").write_text(
        MODELS
        + """
from sqlalchemy.orm import relationship
class Loose(Base):
    __tablename__ = "loose"
    id: Mapped[int] = mapped_column(primary_key=True)
    others = relationship("Elsewhere")
"""
    )
    with changing(tmp_path) as connection:
        connection.execute("CREATE TABLE pages (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO pages VALUES (1)")
    return tmp_path


def optilock(shop: Path, *words: str, columns: int = 120) -> Result:
    return in_process.optilock(*words, folder=shop, columns=columns)


@pytest.mark.full
def test_a_shell_sees_what_the_commands_print_and_their_exit_code(shop):
    """``python -m optilock`` was no program."""
    command = [sys.executable, "-m", "optilock", "check", "shop", "--url", "sqlite:///shop.db"]
    root = Path(__file__).parents[2]
    given = {"PYTHONPATH": f"{root}:{root / 'apps'}", "PATH": "", "COLUMNS": "120"}
    ended = subprocess.run(
        command,
        cwd=shop,
        text=True,
        capture_output=True,
        timeout=240,
        env=given,
    )
    told = optilock(shop, *command[3:])
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, told.stdout, told.stderr)


def test_check_finds_what_migrate_repairs(shop):
    url = ("--url", "sqlite:///shop.db")
    before = optilock(shop, "check", "shop", *url, "--json")
    assert before.exit_code == 1, before.stderr
    assert [finding["code"] for finding in json.loads(before.stdout)] == ["no-column"]

    done = optilock(shop, "migrate", "pages", *url)
    assert done.exit_code == 0, done.stderr
    assert "pages.version is there" in done.stdout

    after = optilock(shop, "check", "shop:Base", *url)
    assert after.exit_code == 0
    assert "Nothing found" in after.stdout


def test_migrate_knows_the_tokens_and_guards_the_table(shop):
    words = ("migrate", "pages", "--url", "sqlite:///shop.db")
    done = optilock(shop, *words, "--token", "row-version", "--column", "moves")
    assert "create its trigger" in done.stdout, done.stderr
    done = optilock(shop, *words, "--token", "timestamp", "--guard", "bump", "--ignore", "moves")
    assert "create the guard trigger, fill" in " ".join(done.stdout.split()), done.stderr
    done = optilock(shop, *words, "--token", "timestamp", "--guard", "bump", "--ignore", "moves")
    assert "nothing to do" in done.stdout


def test_check_prints_a_table_to_read(shop):
    ended = optilock(shop, "check", "shop", "--url", "sqlite:///shop.db")
    assert ended.exit_code == 1
    for word in ("error", "no-column", "pages.version", "optilock migrate"):
        assert word in ended.stdout


def test_a_warning_is_no_reason_to_stop_a_deployment(shop):
    (shop / "plain.py").write_text(MODELS.replace("(Versioned, Base)", "(Base)"))
    ended = optilock(shop, "check", "plain", "--url", "sqlite:///shop.db", "--json")
    assert ended.exit_code == 0
    [finding] = json.loads(ended.stdout)
    assert (finding["code"], finding["severity"]) == ("no-version", "warning")


def test_the_settings_of_the_applications_own_engine_are_looked_at(shop):
    assert optilock(shop, "migrate", "pages", "--url", "sqlite:///shop.db").exit_code == 0
    assert optilock(shop, "check", "shop", "--engine", "db:plain").exit_code == 0
    ended = optilock(shop, "check", "shop", "--engine", "db:each_alone", "--json")
    assert ended.exit_code == 1
    assert [finding["code"] for finding in json.loads(ended.stdout)] == ["autocommit"]


def test_nothing_is_made_where_there_is_no_database(shop):
    for words in (("check", "shop"), ("migrate", "pages")):
        ended = optilock(shop, *words, "--url", "sqlite:///typo.db")
        assert (ended.exit_code, "no database file" in ended.stderr) == (2, True)
        assert not list(shop.glob("typo*"))


@pytest.mark.parametrize(
    "words",
    [("--rate", "inf"), ("--rate", "nan"), ("--share", "2"), ("--batch", "0"), ("--column", "id")],
    ids=" ".join,
)
@pytest.mark.parametrize("way", [(), ("--dry-run",)], ids=["run", "shown"])
def test_what_makes_no_sense_is_refused_in_one_sentence(shop, words, way):
    before = (shop / "shop.db").read_bytes()
    ended = optilock(shop, "migrate", "pages", "--url", "sqlite:///shop.db", *words, *way)
    assert ended.exit_code == 2
    assert ended.stderr.strip().startswith("optilock migrate: ")
    assert "Traceback" not in ended.stderr
    assert "Nothing was changed" in " ".join(ended.stderr.split())
    assert (shop / "shop.db").read_bytes() == before


def test_a_dry_run_prints_sql_that_could_be_sent(shop):
    words = ("migrate", "pages", "--url", "sqlite:///shop.db", "--token", "unique", "--dry-run")
    before = (shop / "shop.db").read_bytes()
    shown = optilock(shop, *words, "--guard", "bump")
    assert shown.exit_code == 0, shown.stderr
    assert "ALTER TABLE pages ADD COLUMN version" in shown.stdout
    assert "CREATE TRIGGER" in shown.stdout
    assert (shop / "shop.db").read_bytes() == before
    assert optilock(shop, *words[:-1]).exit_code == 0
    assert "nothing to do" in optilock(shop, *words).stdout


def test_a_roll_out_is_taken_back(shop):
    words = ("migrate", "pages", "--url", "sqlite:///shop.db", "--token", "unique", "--abort")
    assert "nothing to do" in optilock(shop, *words).stdout
    with changing(shop) as connection:
        connection.execute("ALTER TABLE pages ADD COLUMN version CHAR(32)")
    done = optilock(shop, *words)
    assert (done.exit_code, "drop the column" in done.stdout) == (0, True), done.stderr
    assert optilock(shop, *words, "--dry-run").exit_code == 2
    assert optilock(shop, *words[:-1]).exit_code == 0
    assert "its roll-out is over" in " ".join(optilock(shop, *words).stderr.split())


def test_a_file_uri_is_a_file_like_any_other(shop):
    done = optilock(shop, "migrate", "pages", "--url", "sqlite:///file:shop.db?mode=rw&uri=true")
    assert done.exit_code == 0, done.stderr
    assert not list(shop.glob("*rollout*"))


def test_the_command_that_check_names_settles_what_it_found(shop):
    """Also for a version with another name, another token, and a guard trigger."""
    names = "'row version'"
    (shop / "shop.py").write_text(
        MODELS.replace("Versioned\n", "Versioned\nfrom optilock.tokens import Unique\n", 1)
        + f"    views: Mapped[int | None]\n    __version_token__ = Unique('ver', column={names})\n"
        "    __version_guard__ = 'bump'\n    __version_ignore__ = ('views',)\n"
    )
    with changing(shop) as connection:
        connection.execute("ALTER TABLE pages ADD COLUMN views INTEGER")
    url = ("--url", "sqlite:///shop.db")
    found = json.loads(optilock(shop, "check", "shop", *url, "--json").stdout)
    [advice] = [one["advice"] for one in found if one["code"] == "no-column"]
    called = shlex.split(advice[advice.index("migrate") : advice.index(", or")])
    done = optilock(shop, *(url[1] if word == "…" else word for word in called))
    assert done.exit_code == 0, done.stderr
    after = optilock(shop, "check", "shop", *url)
    assert "Nothing found" in after.stdout, after.stdout


def test_names_to_type_are_not_cut_off(shop):
    (shop / "shop.py").write_text(MODELS + "    __version_guard__ = 'bump'\n")
    ended = optilock(shop, "check", "shop", "--url", "sqlite:///shop.db", columns=60)
    assert "…" not in ended.stdout.replace("--url …", "")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_f_names_are_not_broken_in_a_narrow_terminal(shop, columns):
    """A table of 80 columns broke the names of findings, columns and commands."""
    found = optilock(shop, "check", "shop", "--url", "sqlite:///shop.db", "--json")
    shown = optilock(shop, "check", "shop", "--url", "sqlite:///shop.db", columns=columns).stdout
    for finding in json.loads(found.stdout):
        assert finding["code"] in shown
        for word in f"{finding['message']} {finding['advice']}".split():
            assert columns == 120 or len(word) > columns - 2 or word in shown, word


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "nowhere", "--url", "sqlite://"), "cannot be imported"),
        (("check", "shop:Nothing", "--url", "sqlite://"), "has nothing called"),
        (("check", "json", "--url", "sqlite://"), "no mapped classes"),
        (("check", "shop", "--url", "me:secret@x"), "cannot be read"),
        (("check", "shop"), "Say which database"),
        (("check", "shop", "--url", "sqlite://", "--engine", "db:plain"), "not both"),
        (("check", "shop", "--engine", "shop:Base"), "not an Engine"),
        (("check", "shop", "--engine", "db:nothing"), "has nothing called"),
        (("check", "shop", "--url", "sqlite:///typo.db"), "There is no database file 'typo.db'"),
        (("check", "ended", "--url", "sqlite://"), "SystemExit"),
        (("check", "shop/models.py", "--url", "sqlite://"), "name a module"),
        (("check", "..", "--url", "sqlite://"), "cannot be imported"),
        (("check", "loose", "--url", "sqlite:///shop.db"), "The models cannot be used"),
        (("check", "shop", "--url", f"{PG}@127.0.0.1:9/x"), "does not answer"),
        (("check", "shop", "--url", f"{PG}@127.0.0.1:9/x?password=secret&a=1"), "does not answer"),
        (("check", "shop", "--url", f"{MY}@127.0.0.1:9/x"), "does not answer"),
        (("check", "shop", "--url", f"{MY}@127.0.0.1:9/x?port=1&nothing=2"), "does not answer"),
        (("check", "shop", "--url", f"{PG}@127.0.0.1:seven/x"), "cannot be read"),
        (("check", "shop", "--url", "nosuch://me:secret@x/y"), "cannot be read"),
        (("check", "shop", "--url", "postgresql+asyncpg://me:secret@x/y"), "async driver"),
        (("migrate", "pages", "--url", "postgresql+asyncpg://me:secret@x/y"), "async driver"),
        (("migrate", "nothing", "--url", "sqlite:///shop.db"), "no table 'nothing'"),
        (("migrate", "pages", "--url", "sqlite:///shop.db", "--rate", "0"), "rate"),
        (("purge", "--url", "sqlite:///shop.db", "--batch", "0"), "batch"),
        (("purge", "--url", f"{PG}@127.0.0.1:seven/x"), "cannot be read"),
        (("queue", "purge", "a", "--url", "sqlite:///shop.db"), "--yes"),
        (("queue", "ls", "--url", f"{PG}@127.0.0.1:seven/x"), "cannot be read"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(shop, words, says):
    ended = optilock(shop, *words)
    assert ended.exit_code == 2
    assert says in ended.stderr.replace("\n", " ")
    assert "Traceback" not in ended.stderr
    assert "secret" not in ended.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigurationError("Write it so."), 2, "Write it so."),
        (NotCommitted("It is not stored."), 1, "It is not stored."),
        (NoSuchTableError("one\n[SQL: SELECT secret]"), 1, "The database failed: one"),
        (KeyboardInterrupt(), 1, "Interrupted. What was done stays done; run it again"),
    ],
)
def test_commands_on_a_database_share_their_exit_codes(capsys, error, code, said):
    with pytest.raises(SystemExit) as ended, exit_codes("purge"):
        raise error
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (code, "")
    assert shown.err.startswith(f"optilock purge: {said}")
    assert "secret" not in shown.err
