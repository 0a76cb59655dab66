"""A guard trigger counts no generated column, whoever makes the trigger."""

from __future__ import annotations

import pytest
from sqlalchemy import Computed, FetchedValue, Integer, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.check import check
from optilock.rollout import roll_out
from optilock.tokens import Counter
from tests.support.migrating import migrate, revise, run

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def boxes(engine):
    """A table with a generated column, before or after it got a version."""

    # A stored one of MariaDB refuses the online ALTER TABLE that ends a roll-out.
    kept = "VIRTUAL" if engine.dialect.name == "mysql" else "STORED"

    def boxes(version: str = "") -> None:
        with engine.begin() as connection:
            connection.execute(
                text(
                    "CREATE TABLE gen_boxes (id INTEGER NOT NULL PRIMARY KEY,"
                    " owner VARCHAR(20) NOT NULL, weight INTEGER NOT NULL, views INTEGER NOT NULL,"
                    f" twice INTEGER GENERATED ALWAYS AS (weight * 2) {kept}{version})"
                )
            )
            connection.execute(
                text("INSERT INTO gen_boxes (id, owner, weight, views) VALUES (1, 'Ada', 3, 0)")
            )

    return boxes


VERSION = ", version BIGINT NOT NULL DEFAULT 1"


def mapped(twice):
    class Base(DeclarativeBase):
        pass

    class Box(Versioned, Base):
        __tablename__ = "gen_boxes"
        __version_guard__ = "bump"
        __version_ignore__ = ("views",)
        id: Mapped[int] = mapped_column(primary_key=True)
        owner: Mapped[str] = mapped_column(String(20))
        weight: Mapped[int]
        views: Mapped[int]

    Box.twice = mapped_column(Integer, twice)
    Base.kept = Box
    return Base


#: As a class may say it, and as one may that leaves it to the database.
each_mapping = pytest.mark.parametrize(
    "twice", [Computed("weight * 2", persisted=True), FetchedValue()], ids=["computed", "fetched"]
)


#: Alembic itself cannot compare a generated column with what is none.
PLAIN = {"compare_server_default": False}


def moves(engine, what: str) -> bool:
    """Does a foreign UPDATE move the version?"""
    with engine.begin() as connection:
        before = connection.scalar(text("SELECT version FROM gen_boxes"))
        connection.execute(text(f"UPDATE gen_boxes SET {what}"))
        return connection.scalar(text("SELECT version FROM gen_boxes")) != before


def counts_what_it_should(engine) -> None:
    assert not moves(engine, "views = views + 1")
    assert not moves(engine, "owner = owner")
    assert moves(engine, "weight = weight + 1")
    assert moves(engine, "owner = 'Bob'")


def test_of_a_roll_out(engine, boxes):
    boxes()
    roll_out(engine, "gen_boxes", guard="bump", ignore=["views"])
    counts_what_it_should(engine)
    assert roll_out(engine, "gen_boxes", guard="bump", ignore=["views"]).steps == ()


def test_of_a_roll_out_that_ignores_nothing(engine, boxes):
    boxes()
    roll_out(engine, "gen_boxes", guard="bump")
    assert not moves(engine, "owner = owner")
    assert moves(engine, "views = views + 1")
    assert moves(engine, "weight = weight + 1")


def test_of_an_operation(engine, boxes):
    boxes(VERSION)
    migrate(
        engine,
        lambda op: op.create_guard_trigger("gen_boxes", Counter(), "bump", ignore=["views"]),
    )
    counts_what_it_should(engine)


@each_mapping
def test_of_autogenerate(engine, boxes, twice):
    boxes(VERSION)
    base = mapped(twice)
    revision = revise(engine, base.metadata, **PLAIN)
    run(engine, revision, revision.upgrade)
    counts_what_it_should(engine)
    assert revise(engine, base.metadata, **PLAIN).empty
    assert {f.code for f in check(base, engine)} <= {"no-snapshot-isolation"}


@each_mapping
def test_of_a_roll_out_is_the_one_that_autogenerate_and_the_check_want(engine, boxes, twice):
    boxes()
    roll_out(engine, "gen_boxes", guard="bump", ignore=["views"])
    base = mapped(twice)
    assert revise(engine, base.metadata, **PLAIN).empty
    assert {f.code for f in check(base, engine)} <= {"no-snapshot-isolation"}
