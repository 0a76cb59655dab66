"""``optilock check`` of an application whose engine is async."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from click.testing import CliRunner
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import ConfigurationError, Versioned
from optilock.check import check
from optilock.check.command import check as command


@pytest.fixture
def base():
    class Base(DeclarativeBase):
        pass

    class Note(Versioned, Base):
        __tablename__ = "ck_async_notes"
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.kept = Note
    return Base


async def create(engine, base):
    async with engine.begin() as connection:
        await connection.run_sync(base.metadata.drop_all)
        await connection.run_sync(base.metadata.create_all)
    await engine.dispose()


def codes(findings):
    return {finding.code for finding in findings}


def test_an_async_engine_is_looked_at_as_a_sync_one_is(async_engine, base):
    asyncio.run(create(async_engine, base))
    assert codes(check(base, async_engine)) <= {"no-snapshot-isolation"}
    asyncio.run(drop(async_engine, base))
    assert "no-table" in codes(check(base, async_engine))


async def drop(engine, base):
    async with engine.begin() as connection:
        await connection.run_sync(base.metadata.drop_all)
    await engine.dispose()


def test_autocommit_of_an_async_engine_is_told(async_engine, base):
    asyncio.run(create(async_engine, base))
    found = check(base, async_engine.execution_options(isolation_level="AUTOCOMMIT"))
    assert "autocommit" in codes(found)


def test_inside_of_an_event_loop_it_says_how_to_ask(async_engine, base):
    async def ask():
        await create(async_engine, base)
        with pytest.raises(ConfigurationError, match="run_sync"):
            check(base, async_engine)
        async with async_engine.connect() as connection:
            found = await connection.run_sync(lambda sync: check(base, sync.engine))
        await async_engine.dispose()
        return found

    assert codes(asyncio.run(ask())) <= {"no-snapshot-isolation"}


class TestCommand:
    def test_an_applications_async_engine_is_looked_at(self, tmp_path, monkeypatch):
        (tmp_path / "async_shop.py").write_text(
            "from sqlalchemy.ext.asyncio import create_async_engine\n"
            "from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column\n"
            "class Base(DeclarativeBase): pass\n"
            "class Page(Base):\n"
            "    __tablename__ = 'pages'\n"
            "    id: Mapped[int] = mapped_column(primary_key=True)\n"
            "engine = create_async_engine('sqlite+aiosqlite:///shop.db')\n"
        )
        (tmp_path / "shop.db").touch()
        monkeypatch.chdir(tmp_path)
        monkeypatch.delitem(sys.modules, "async_shop", raising=False)
        asked = ["async_shop:Base", "--engine", "async_shop:engine", "--json"]
        told = CliRunner().invoke(command, asked)
        assert told.exit_code == 1
        assert {found["code"] for found in json.loads(told.output)} == {"no-version", "no-table"}

    def test_an_async_engine_whose_database_is_not_there_is_bad_input(self, tmp_path, monkeypatch):
        (tmp_path / "async_gone.py").write_text(
            "from sqlalchemy.ext.asyncio import create_async_engine\n"
            "from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column\n"
            "class Base(DeclarativeBase): pass\n"
            "class Page(Base):\n"
            "    __tablename__ = 'pages'\n"
            "    id: Mapped[int] = mapped_column(primary_key=True)\n"
            "engine = create_async_engine('postgresql+asyncpg://me:hidden@127.0.0.1:1/shop')\n"
        )
        monkeypatch.chdir(tmp_path)
        told = CliRunner().invoke(command, ["async_gone:Base", "--engine", "async_gone:engine"])
        assert told.exit_code == 2
        assert "does not answer" in told.stderr
        assert "hidden" not in told.output + told.stderr
