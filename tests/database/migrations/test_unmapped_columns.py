"""A table has a column that the class does not have, and its guard trigger ignores another one."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.check import check
from optilock.rollout import roll_out
from optilock.tokens import Counter
from tests.support.migrating import migrate, revise, run, send

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def base(engine):
    class Base(DeclarativeBase):
        pass

    class Page(Versioned, Base):
        __tablename__ = "pages"
        __version_guard__ = "bump"
        __version_ignore__ = ("views",)
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        body: Mapped[str] = mapped_column(String(20))
        views: Mapped[int]

    send(
        engine,
        "CREATE TABLE pages (id INTEGER NOT NULL PRIMARY KEY, body VARCHAR(20) NOT NULL,"
        " views INTEGER NOT NULL, legacy INTEGER)",
        "INSERT INTO pages (id, body, views) VALUES (1, 'old', 0)",
    )
    roll_out(engine, "pages", guard="bump", ignore=["views"])
    Base.kept = Page
    return Base


def moved(engine, what: str) -> bool:
    before, _, after = send(
        engine, "SELECT version FROM pages", f"UPDATE pages SET {what}", "SELECT version FROM pages"
    )
    return before.scalar() != after.scalar()


def codes(base, engine):
    return {finding.code for finding in check(base, engine)} - {"no-snapshot-isolation"}


def keep(thing: Any, name: str, kind: str, reflected: bool, compared: Any) -> bool:
    """What an env.py says whose tables have columns of other programs."""
    return name != "legacy"


def test_the_trigger_of_a_roll_out_counts_it_and_is_the_right_one(engine, base):
    assert moved(engine, "legacy = 1")
    assert codes(base, engine) == set()
    assert revise(engine, base.metadata, include_object=keep, compare_server_default=False).empty


def test_so_is_one_that_does_not_count_it(engine, base):
    """As autogenerate writes it."""
    columns = {"ignore": ["views"], "columns": ["id", "body"]}
    migrate(engine, lambda op: op.create_guard_trigger("pages", Counter(), "bump", **columns))
    assert codes(base, engine) == set()
    assert revise(engine, base.metadata, include_object=keep, compare_server_default=False).empty


def test_one_that_lacks_a_column_of_the_class_is_another(engine, base):
    columns = {"ignore": ["views"], "columns": ["id", "legacy"]}
    migrate(engine, lambda op: op.create_guard_trigger("pages", Counter(), "bump", **columns))
    assert codes(base, engine) == {"other-trigger"}
    revision = revise(engine, base.metadata, include_object=keep, compare_server_default=False)
    run(engine, revision, revision.upgrade)
    assert codes(base, engine) == set()


def test_where_the_column_is_dropped_the_trigger_is_made_without_it(engine, base):
    revision = revise(engine, base.metadata, compare_server_default=False)
    assert "op.drop_column('pages', 'legacy')" in revision.lines
    run(engine, revision, revision.upgrade)
    assert moved(engine, "body = 'new'")
    assert codes(base, engine) == set()
    run(engine, revision, revision.downgrade)
    assert moved(engine, "body = 'newer'")
