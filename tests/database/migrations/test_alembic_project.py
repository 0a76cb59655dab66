"""A project with Alembic: one line in its env.py, and ``alembic revision --autogenerate``."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.support import in_process
from tests.support.migrating import shape

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]
ROOT = Path(__file__).parents[3]

_ENV = """
import os
from alembic import context
from sqlalchemy import NullPool, create_engine
from models import Base

engine = create_engine(os.environ["PROJECT_URL"], poolclass=NullPool)
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_server_default=True,
        render_as_batch=connection.dialect.name == "sqlite",
        autogenerate_plugins=["alembic.autogenerate.*", "optilock"],
    )
    with context.begin_transaction():
        context.run_migrations()
"""
_MODELS = """
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from optilock import Versioned
from optilock.tokens import Counter, RowVersion, Timestamp, Unique

class Base(DeclarativeBase):
    pass
"""
_BEFORE = """
class Page(Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str] = mapped_column(String(20))
    views: Mapped[int]

class Note(Versioned, Base):
    __tablename__ = "notes"
    __version_token__ = Timestamp()
    id: Mapped[int] = mapped_column(primary_key=True)

class Item(Versioned, Base):
    __tablename__ = "items"
    __version_token__ = RowVersion()
    id: Mapped[int] = mapped_column(primary_key=True)
"""
_AFTER = """
class Page(Versioned, Base):
    __tablename__ = "pages"
    __version_guard__ = "bump"
    __version_ignore__ = ("views",)
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str] = mapped_column(String(20))
    views: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(20))

class Note(Versioned, Base):
    __tablename__ = "notes"
    __version_token__ = Unique()
    __version_guard__ = "reject"
    id: Mapped[int] = mapped_column(primary_key=True)

class Item(Base):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)
"""


class Project:
    """Its folder, its commands, and optilock installed as far as Alembic can tell."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.folder, self.real = folder, real
        (folder / "migrations" / "versions").mkdir(parents=True)
        (folder / "migrations" / "env.py").write_text(_ENV)
        template = ROOT / "migrations" / "script.py.mako"
        (folder / "migrations" / "script.py.mako").write_text(template.read_text())
        (folder / "alembic.ini").write_text(
            "[alembic]\nscript_location = %(here)s/migrations\npath_separator = os\n"
        )
        self._install()

    def _install(self) -> None:
        about = self.folder / "optilock-0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: optilock\nVersion: 0\n")
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        [(name, module)] = project["entry-points"]["alembic.plugins"].items()
        (about / "entry_points.txt").write_text(f"[alembic.plugins]\n{name} = {module}\n")

    def models(self, body: str) -> None:
        (self.folder / "models.py").write_text(_MODELS + body)

    def alembic(self, *arguments: str) -> None:
        """In this process, or where Alembic has to find optilock's plug-in in one of its own."""
        code, printed = (self._as_process if self.real else self._in_process)(arguments)
        assert code == 0, printed

    def _as_process(self, arguments: tuple[str, ...]) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "alembic", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT), *_inherited()]),
            },
            capture_output=True,
            text=True,
            timeout=240,
        )
        return done.returncode, done.stdout + done.stderr

    def _in_process(self, arguments: tuple[str, ...]) -> tuple[int, str]:
        with contextlib.chdir(self.folder), in_process.modules_of(self.folder):
            sys.path.insert(0, str(self.folder))
            return in_process.alembic(*arguments)

    def revise(self, name: str) -> str:
        """The body of the new script's upgrade."""
        before = set(self._scripts())
        self.alembic("revision", "--autogenerate", "-m", name)
        [script] = set(self._scripts()) - before
        body = script.read_text().partition("def upgrade()")[2].partition("def downgrade()")[0]
        return body

    def _scripts(self) -> list[Path]:
        return list((self.folder / "migrations" / "versions").glob("*.py"))


def _inherited() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]


def test_models_change_and_the_scripts_follow(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("PROJECT_URL", engine.url.render_as_string(hide_password=False))
    project = Project(tmp_path / "project", real=engine.dialect.name == "sqlite")
    project.models(_BEFORE)
    project.revise("first")
    project.alembic("upgrade", "head")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO pages (id, body, views) VALUES (1, 'old', 0)"))
    before = shape(engine, "pages", "notes", "items")

    project.models(_AFTER)
    second = project.revise("second")
    assert "op.add_version_column('pages'" in second
    assert "op.change_version_column('notes'" in second
    assert "op.drop_version_trigger('items'" in second
    assert second.count("op.create_guard_trigger(") == 2
    project.alembic("upgrade", "head")
    after = shape(engine, "pages", "notes", "items")
    project.real = False
    assert "op." not in project.revise("third")

    project.alembic("downgrade", "-1")
    project.alembic("upgrade", "head")
    assert shape(engine, "pages", "notes", "items") == after
    with engine.begin() as connection:
        connection.execute(text("UPDATE pages SET body = 'new'"))
        assert connection.scalar(text("SELECT version FROM pages")) == 2

    project.alembic("downgrade", "base")
    project.alembic("upgrade", "+1")
    assert shape(engine, "pages", "notes", "items") == before
