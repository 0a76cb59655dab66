"""Increments that commute in each kind of unit: two writers add, and nothing is lost."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from optilock import UnitOfWork, Versioned, unit_of_work
from tests.support.models import Base, key

EACH = 15
OPTIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"pipelined": True}, id="pipelined", marks=pytest.mark.engines("postgresql")),
    pytest.param({"strategy": "adaptive"}, id="adaptive"),
    pytest.param(
        {"pipelined": True, "strategy": "adaptive"},
        id="pipelined adaptive",
        marks=pytest.mark.engines("postgresql"),
    ),
    pytest.param({"strategy": "pessimistic"}, id="pessimistic"),
]


class Counted(Versioned, Base):
    __tablename__ = "counted"
    __version_commutes__ = ("pieces",)
    id: Mapped[int] = key()
    pieces: Mapped[int] = mapped_column(default=0)
    title: Mapped[str | None]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("keys", [(1,), (1, 2)])
def test_two_writers_add_and_nothing_is_lost(engine, store, stored, options, keys) -> None:
    store(*(Counted(id=n) for n in keys))
    failed: list[BaseException] = []

    @unit_of_work(engine, attempts=50, **options)
    def add(session: Session) -> None:
        rows = [session.get_one(Counted, n) for n in keys]
        for row in rows:
            row.pieces += 1

    def writer() -> None:
        try:
            for _ in range(EACH):
                add()
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=writer) for _ in range(2)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert not failed
    assert [stored(Counted, n)["pieces"] for n in keys] == [2 * EACH for _ in keys]
    assert [stored(Counted, n)["version"] for n in keys] == [2 * EACH + 1 for _ in keys]


@pytest.mark.parametrize("options", OPTIONS[:-1])  # whoever locks keeps the other one waiting
@pytest.mark.parametrize("keys", [(1,), (1, 2)])
def test_who_adds_after_another_adds_to_the_sum(
    engine, store, stored, other, options: dict[str, Any], keys
) -> None:
    store(*(Counted(id=n) for n in keys))
    with UnitOfWork(engine, **options) as session:
        rows = [session.get_one(Counted, n) for n in keys]
        other(Counted, 1, pieces=5, title="theirs")
        for row in rows:
            row.pieces += 1
    assert stored(Counted, 1) == {"id": 1, "pieces": 6, "title": "theirs", "version": 3}


@pytest.mark.parametrize("options", OPTIONS)
def test_the_object_knows_what_was_made(engine, store, stored, options: dict[str, Any]) -> None:
    store(Counted(id=1))
    sessions = sessionmaker(engine, expire_on_commit=False)
    with UnitOfWork(sessions, **options) as session:
        row = session.get_one(Counted, 1)
        row.pieces += 1
    assert (row.pieces, row.version) == (1, stored(Counted, 1)["version"])


@pytest.mark.parametrize("options", OPTIONS[:-1])
def test_it_stays_in_the_version_that_was_read_where_another_was_first(
    engine, store, stored, other, options: dict[str, Any]
) -> None:
    """So an edit that follows conflicts with what the other one did."""
    store(Counted(id=1))
    sessions = sessionmaker(engine, expire_on_commit=False)
    with UnitOfWork(sessions, **options) as session:
        row = session.get_one(Counted, 1)
        other(Counted, 1, pieces=5)
        row.pieces += 1
    assert stored(Counted, 1)["version"] == 3
    assert row.version == 1
    assert row.__dict__.get("pieces", 6) == 6  # without RETURNING it has expired
