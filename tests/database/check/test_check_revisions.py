"""Revisions that import the models of today break on a fresh database, and are named before."""

from __future__ import annotations

import contextlib
import json
import sys
import types
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import ConfigurationError, Versioned
from optilock.check import check
from tests.support import in_process

_MODELS = """
import enum
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from optilock import Versioned

class State(enum.Enum):
    draft = "draft"

class Base(DeclarativeBase):
    pass

class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(20))

metadata, pages = Base.metadata, Page.__table__
"""
_ENV = """
from alembic import context
from sqlalchemy import NullPool, create_engine
import live_shop

with create_engine("sqlite:///shop.db", poolclass=NullPool).connect() as connection:
    context.configure(connection=connection, target_metadata=live_shop.Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
"""
_HEAD = "revision, down_revision = {0!r}, {1!r}\nfrom alembic import op\nimport sqlalchemy as sa\n"
_TABLE = """
def upgrade():
    columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("title", sa.String(20))
    op.create_table("pages", *columns)
    op.execute("INSERT INTO pages (id, title) VALUES (1, 'a')")
"""
_LIVE = """
from sqlalchemy.orm import Session
from live_shop import Page

def upgrade():
    with Session(op.get_bind()) as session:
        for page in session.query(Page):
            page.title = page.title.upper()
        session.commit()
"""
_OWN = """
pages = sa.table("pages", sa.column("id"), sa.column("title"))

def upgrade():
    op.execute(pages.update().values(title=sa.func.upper(pages.c.title)))
"""
_VERSION = """
import optilock.alembic
import optilock.tokens

def upgrade():
    op.add_version_column("pages", optilock.tokens.Counter())
"""


@pytest.fixture
def project(tmp_path: Path):
    """A project whose second revision changes data, and whose third one adds the version."""
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    (tmp_path / "live_shop.py").write_text(_MODELS)
    (tmp_path / "migrations" / "env.py").write_text(_ENV)
    (tmp_path / "alembic.ini").write_text(
        "[alembic]\nscript_location = %(here)s/migrations\nprepend_sys_path = .\n"
        "path_separator = os\n"
    )
    (tmp_path / "shop.db").touch()

    def write(number: int, body: str) -> None:
        head = _HEAD.format(str(number), str(number - 1) if number > 1 else None)
        (versions / f"{number}_change.py").write_text(head + body)

    write(1, _TABLE)
    write(3, _VERSION)
    return tmp_path, write


def upgrade(folder: Path) -> None:
    with contextlib.chdir(folder), in_process.modules_of(folder):
        code, said = in_process.alembic("upgrade", "head")
    assert code == 0, said


def told(folder: Path, *words: str):
    ended = in_process.optilock(
        "check", "live_shop", "--url", "sqlite:///shop.db", "--json", *words, folder=folder
    )
    return json.loads(ended.stdout), ended.exit_code


def test_a_revision_with_live_models_breaks_a_fresh_database_and_is_named(project):
    folder, write = project
    write(2, _LIVE)
    with pytest.raises(Exception, match=r"no such column: pages\.version"):
        upgrade(folder)

    findings, _ = told(folder)
    [finding] = [one for one in findings if one["code"] == "live-models"]
    assert finding["subject"] == "versions/2_change.py:6"
    assert finding["severity"] == "warning"
    assert "live_shop.Page" in finding["message"]
    assert "sa.table(" in finding["advice"]


def test_a_revision_that_says_its_own_columns_runs_and_is_sound(project):
    folder, write = project
    write(2, _OWN)
    upgrade(folder)
    assert told(folder) == ([], 0)
    with create_engine(f"sqlite:///{folder / 'shop.db'}").connect() as connection:
        assert connection.execute(text("SELECT title, version FROM pages")).all() == [("A", 1)]
    connection.engine.dispose()


def test_the_revisions_are_found_by_each_way_to_name_them(project):
    folder, write = project
    write(2, _LIVE)
    (folder / "elsewhere").mkdir()
    (folder / "alembic.ini").rename(folder / "elsewhere" / "other.ini")
    (folder / "elsewhere" / "other.ini").write_text(
        "[alembic]\nscript_location = nothing\nversion_path_separator = space\n"
        "version_locations = %(here)s/none %(here)s/../migrations/versions\n"
    )
    ways = ["migrations", "migrations/versions", "elsewhere/other.ini"]
    for way in ways:
        findings, _ = told(folder, "--alembic", way)
        assert "live-models" in {one["code"] for one in findings}, way
    assert "live-models" not in {one["code"] for one in told(folder)[0]}
    (folder / "pyproject.toml").write_text(
        '[tool.alembic]\nscript_location = "%(here)s/migrations"\n'
    )
    assert "live-models" in {one["code"] for one in told(folder)[0]}


def test_a_path_without_revisions_is_bad_input(project):
    folder, _ = project
    words = ("check", "live_shop", "--url", "sqlite:///shop.db", "--alembic", "no.ini")
    ended = in_process.optilock(*words, folder=folder)
    assert ended.exit_code == 2
    assert "leads to no revisions" in ended.stderr


# -- which imports count -------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "lm_pages"
    id: Mapped[int] = mapped_column(primary_key=True)


HERE, STATE, METADATA = __name__, "a state", Base.metadata

COUNTS = {
    "a class": f"from {HERE} import Page",
    "a class under another name": f"from {HERE} import Page as P",
    "a class inside of a function": f"def upgrade():\n    from {HERE} import Page",
    "all": f"from {HERE} import *",
    "the module": f"import {HERE} as models",
    "the module of its package": "from lm_package import models",
    "a package that shows the class": "import lm_package",
    "the base": f"from {HERE} import Base",
    "the metadata": f"from {HERE} import METADATA",
    "by its name": f"import importlib\nmodels = importlib.import_module({HERE!r})",
}
PASSES = {
    "something else of the module": f"from {HERE} import STATE",
    "only for type checkers": "from typing import TYPE_CHECKING\n"
    f"if TYPE_CHECKING:\n    from {HERE} import Page",
    "in a text": f'"""from {HERE} import Page"""',
    "optilock": "import optilock, optilock.alembic\nfrom optilock import Versioned, Counter",
    "sqlalchemy": "import sqlalchemy as sa\nfrom sqlalchemy.orm import Session",
    "a table of its own": 'import sqlalchemy as sa\npages = sa.table("lm_pages", sa.column("id"))',
}


@pytest.fixture
def codes(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'sound.db'}")
    Base.metadata.create_all(engine)

    def codes(source: str):
        (tmp_path / "versions").mkdir(exist_ok=True)
        (tmp_path / "versions" / "a.py").write_text(source + "\nraise SystemExit('was run')\n")
        return [finding.code for finding in check(Base, engine, alembic=tmp_path / "versions")]

    yield codes
    engine.dispose()


@pytest.mark.parametrize("source", COUNTS.values(), ids=COUNTS)
def test_an_import_that_counts(codes, source, monkeypatch):
    package = types.ModuleType("lm_package")
    package.models, package.Page = sys.modules[HERE], Page
    monkeypatch.setitem(sys.modules, "lm_package", package)
    assert codes(source) == ["live-models"]


@pytest.mark.parametrize("source", PASSES.values(), ids=PASSES)
def test_an_import_that_does_not(codes, source):
    assert codes(source) == []


def test_a_file_that_cannot_be_read_is_told(codes):
    assert codes("def upgrade(:") == ["unreadable"]


def test_no_revisions_at_all_is_an_error(tmp_path):
    engine = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match="leads to no revisions"):
        check(Base, engine, alembic=tmp_path / "gone")
