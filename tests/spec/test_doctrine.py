"""What Doctrine's tests demand (tests/Tests/ORM/Functional/Locking and others)."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import sessionmaker

from optilock import ConcurrencyError, Isolation, UnitOfWork
from tests.models import Animal, Dog
from tests.spec.models import Doc


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


def test_a_conflict_of_a_plain_row_is_told(store, watched, other, stored, refused):
    """DT-03"""
    store(Doc(id=1, name="a"))
    session = watched()
    session.get_one(Doc, 1).name = "ours"
    other(Doc, 1, name="theirs")

    assert refused(session).entries[0].model is Doc


@pytest.mark.engines("postgresql")
def test_a_conflict_that_the_commit_reports_is_a_conflict(engine, store, stored):
    """DT-10: two units depend on each other's reads; PostgreSQL says so at the second COMMIT."""
    store(Doc(id=1, name="on"), Doc(id=2, name="on"))

    def unit():
        return UnitOfWork(sessionmaker(engine), isolation=Isolation.SERIALIZABLE)

    with pytest.raises(ConcurrencyError) as caught, unit() as one, unit() as two:
        for session, key in ((one, 1), (two, 2)):
            docs = session.scalars(select(Doc).order_by(Doc.id)).all()
            docs[key - 1].name = "off"
            session.flush()

    assert caught.value.__cause__.orig.sqlstate == "40001"
    assert sorted(stored(Doc, n)["name"] for n in (1, 2)) == ["off", "on"]
