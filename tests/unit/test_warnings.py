"""A warning names the line of the application, wherever it and the library are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import optilock
from optilock import Versioned, watch

APPLICATION = """
import warnings
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool
from optilock import UnitOfWork

engine = create_engine("sqlite://", poolclass=StaticPool)

def first():
    with UnitOfWork(engine), UnitOfWork(sessionmaker(engine)): pass

def second():
    with UnitOfWork(engine), UnitOfWork(sessionmaker(engine)): pass

with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("default")  # once for each line
    for function in (first, second, first):
        function()
print([one.lineno for one in heard if one.filename == __file__])
"""


@pytest.mark.parametrize(
    ("library", "application"), [("tests/site", "shop"), ("site", "optilock"), ("s", "sqlalchemy")]
)
def test_a_warning_names_the_line_of_the_application(tmp_path, library, application):
    (tmp_path / library).mkdir(parents=True)
    (tmp_path / library / "optilock").symlink_to(Path(optilock.__file__).parent)
    (tmp_path / application).mkdir()
    program = tmp_path / application / "app.py"
    program.write_text(APPLICATION)
    done = subprocess.run(
        [sys.executable, program],
        env={"PYTHONPATH": str(tmp_path / library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[11, 14]\n", done.stderr


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "warnings_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]


@pytest.mark.anyio
async def test_a_warning_names_the_line_that_awaits(recwarn, tmp_path):
    """SQLAlchemy runs an AsyncSession in a greenlet, whose stack ends before that line."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'file.db'}")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    sessions = watch(async_sessionmaker(engine))
    async with sessions.begin() as session:
        session.add(Page(id=1, title="Home"))
    async with sessions.begin() as session:
        await session.merge(Page(id=1, title="Start"))
    await engine.dispose()
    (warning,) = [one for one in recwarn if issubclass(one.category, UserWarning)]
    assert warning.filename == __file__
    assert "session.merge(" in Path(__file__).read_text().splitlines()[warning.lineno - 1]
