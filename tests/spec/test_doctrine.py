"""What Doctrine's tests demand (tests/Tests/ORM/Functional/Locking and others)."""

from __future__ import annotations

import datetime

import pytest
from sqlalchemy import select
from sqlalchemy.orm import sessionmaker

from optilock import ConcurrencyError, Isolation, UnitOfWork
from tests.spec.models import Clock, Doc
from tests.spec.steps import stub, told
from tests.support.models import Animal, Dog


@pytest.mark.parametrize("model", [Dog, Animal])
def test_a_joined_row_begins_with_the_first_version(tables, watched, stored, model):
    """DT-01: of the child and of the parent."""
    tables(Dog)
    session = watched()
    row = model(id=1)
    session.add(row)
    session.commit()

    assert row.version == stored(Animal, 1)["version"] == 1


@pytest.mark.parametrize("change", ["name", "tricks"])
def test_the_conflict_of_a_joined_row_is_told_as_that_class(
    store, watched, engine, stored, refused, change
):
    """DT-02, DT-03: the version of the base has moved, the child's columns were changed."""
    store(Dog(id=1, name="a", tricks="a"))
    session = watched()
    dog = session.get_one(Dog, 1)
    with engine.begin() as theirs:
        theirs.execute(Animal.__table__.update().values(name="theirs", version=2))
    setattr(dog, change, "ours")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity, entry.kind) == (Dog, (1,), "updated")
    assert entry.changes == {change: "ours"}
    assert stored(Dog, 1) == {
        "id": 1, "kind": "dog", "name": "theirs", "tricks": "a", "version": 2,
    }  # fmt: skip


@pytest.mark.engines("postgresql")
def test_a_conflict_that_the_commit_reports_is_a_conflict(engine, store, stored):
    """DT-10: two units depend on each other's reads; PostgreSQL says so at the second COMMIT."""
    store(Doc(id=1, name="on"), Doc(id=2, name="on"))

    def unit():
        return UnitOfWork(
            sessionmaker(engine), isolation=Isolation.SERIALIZABLE, propagation="independent"
        )

    with pytest.raises(ConcurrencyError) as caught, unit() as one, unit() as two:
        for session, key in ((one, 1), (two, 2)):
            docs = session.scalars(select(Doc).order_by(Doc.id)).all()
            docs[key - 1].name = "off"
            session.flush()

    assert caught.value.__cause__.orig.sqlstate == "40001"
    assert sorted(stored(Doc, n)["name"] for n in (1, 2)) == ["off", "on"]


# -- times as versions -----------------------------------------------------------------------------


def test_a_row_gets_the_time_of_its_insert(tables, watched, stored):
    """DT-06: as an aware time, equal by value to what is stored."""
    tables(Clock)
    session = watched(expire_on_commit=False)
    clock = Clock(id=1)
    session.add(clock)
    session.commit()

    assert clock.version.utcoffset() == datetime.timedelta(0)
    assert clock.version == stored(Clock, 1)["version"]


@pytest.mark.parametrize("count", [1, 3])
def test_writes_within_one_tick_have_different_times(store, watched, other, stored, refused, count):
    """DT-06: so the second writer is noticed, however fast the first was."""
    store(*(Clock(id=n) for n in range(count)))
    session = watched()
    for clock in session.scalars(select(Clock)):
        clock.name = "ours"
    for _ in range(3):
        other(Clock, 0, name=f"theirs {_}")
    [entry] = refused(session).entries
    session.rollback()

    assert entry.original["version"] < entry.database["version"]
    assert stored(Clock, 0)["name"] == "theirs 2"


def test_a_time_that_was_seen_is_compared_by_its_value(store, watched, stored):
    """DT-06: GH8499; another object, in another zone."""
    store(Clock(id=1))
    seen = stored(Clock, 1)["version"]
    elsewhere = seen.astimezone(datetime.timezone(datetime.timedelta(hours=5)))
    session = watched()
    stub(session, Clock, elsewhere, id=1).name = "ours"
    session.commit()

    assert stored(Clock, 1)["name"] == "ours"
    session.expunge_all()
    stub_of_the_old = stub(session, Clock, seen - datetime.timedelta(microseconds=1), id=1)
    stub_of_the_old.name = "again"
    told(session)
