"""A guard trigger that fires at other moments than it should is replaced."""

from __future__ import annotations

import pytest

from optilock.rollout import roll_out
from tests.database.check.faults import Base, Kept, Pages, create, done, guard_on, retimed
from tests.support.migrating import revise, run

MOMENTS = {
    "of one column": guard_on("BEFORE UPDATE OF id"),
    "after": guard_on("AFTER UPDATE"),
    "never": guard_on("BEFORE UPDATE", "WHEN (false)"),
}


def is_replaced(engine, cls, plant) -> None:
    """By autogenerate, and by a roll-out with the same words."""
    create(engine)
    name, policy = cls.__tablename__, cls.__version_guard__
    done(engine, plant)
    revision = revise(engine, Base.metadata)
    assert [line.split("(")[0] for line in revision.lines] == [
        "op.drop_guard_trigger",
        "op.create_guard_trigger",
    ]
    run(engine, revision, revision.upgrade)
    assert revise(engine, Base.metadata).empty

    done(engine, plant)
    for steps in (("create the guard trigger",), ()):
        report = roll_out(engine, name, guard=policy, ignore=["views"])
        assert report.steps == steps
    assert revise(engine, Base.metadata).empty


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("plant", MOMENTS.values(), ids=MOMENTS)
def test_on_postgresql(engine, plant):
    is_replaced(engine, Pages, plant)


@pytest.mark.engines("mariadb")
def test_on_mariadb(engine):
    is_replaced(engine, Kept, retimed(Kept, "AFTER UPDATE"))
