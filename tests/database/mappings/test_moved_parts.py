"""A part that others have moved to another root: a write of it moves the root that it has now."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import ForeignKey, select
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from optilock import ConcurrencyError, Versioned, client_wins, merge_fields, store_wins
from optilock.preconditions import overwrite
from optilock.resolvers import OnDelete, Resolution
from optilock.statements import no_bump
from optilock.testing import count_statements
from tests.support.models import Base, key

alive = pytest.mark.needs("resolves-in-place")


class Hamper(Versioned, Base):
    __tablename__ = "mp_crates"
    __version_root_of__ = ("boxes", "slips")
    id: Mapped[int] = key()
    boxes: Mapped[list[Hatbox]] = relationship(back_populates="crate")
    slips: Mapped[list[Waybill]] = relationship(back_populates="crate")


class Hatbox(Versioned, Base):
    __tablename__ = "mp_boxes"
    __version_commutes__ = ("n",)
    id: Mapped[int] = key()
    text: Mapped[str | None]
    n: Mapped[int] = mapped_column(default=0)
    crate_id: Mapped[int | None] = mapped_column(ForeignKey("mp_crates.id"))
    crate: Mapped[Hamper | None] = relationship(back_populates="boxes")


class Waybill(Base):
    """A part without a version."""

    __tablename__ = "mp_slips"
    __version_token__ = None
    id: Mapped[int] = key()
    text: Mapped[str | None]
    crate_id: Mapped[int | None] = mapped_column(ForeignKey("mp_crates.id"))
    crate: Mapped[Hamper | None] = relationship(back_populates="slips")


@pytest.fixture
def crates(tables: Any, store: Any) -> None:
    tables(Hamper, Hatbox, Waybill)
    store(*(Hamper(id=n) for n in (1, 2, 3)), Hatbox(id=1, crate_id=1), Waybill(id=1, crate_id=1))


@pytest.fixture
def versions(engine: Any) -> Any:
    def versions() -> dict[int, int]:
        with Session(engine) as fresh:
            return dict(map(tuple, fresh.execute(select(Hamper.id, Hamper.version))))

    return versions


def change(session: Any, box: Hatbox) -> None:
    box.text = "mine"


def add_one(session: Any, box: Hatbox) -> None:
    box.n += 1


def overwrite_it(session: Any, box: Hatbox) -> None:
    overwrite(box)
    box.text = "mine"


def delete(session: Any, box: Any) -> None:
    session.delete(box)


def replace(session: Any, box: Hatbox) -> None:
    session.delete(box)
    session.add(Hatbox(id=1, text="new", crate_id=3))


def to_crate_3(entry: Any) -> Resolution:
    return Resolution.write({"crate_id": 3})


@alive
@pytest.mark.parametrize(
    ("act", "options", "moves"),
    [
        (change, {"on_conflict": merge_fields}, {2}),
        (change, {"on_conflict": client_wins}, {2}),
        (change, {"on_conflict": to_crate_3}, {2, 3}),
        (change, {"on_conflict": store_wins}, set()),
        (overwrite_it, {}, {2}),
        (add_one, {}, {2}),
        (delete, {"on_delete": OnDelete.IGNORE_VERSION}, {2}),
        (delete, {"on_conflict": to_crate_3}, {2, 3}),
        (replace, {"on_conflict": client_wins}, {2, 3}),
    ],
)
def test_the_root_of_the_stored_row_moves(crates, watched, other, versions, act, options, moves):
    with watched(**options) as session:
        box = session.get_one(Hatbox, 1)
        other(Hatbox, 1, crate_id=2)
        act(session, box)
        before = versions()
        session.flush()
        inside = dict(map(tuple, session.execute(select(Hamper.id, Hamper.version))))
        session.commit()
    assert {n for n in (2, 3) if versions()[n] > before[n]} == moves
    # The flush was all; what it has not written, MariaDB shows as of the snapshot.
    assert {n: versions()[n] for n in moves} == {n: inside[n] for n in moves}


@alive
def test_a_row_that_is_inserted_again_moves_the_root_that_it_comes_into(
    crates, watched, gone, versions
):
    """Both sides have deleted it, and the resolver puts it elsewhere."""
    with watched(to_crate_3) as session:
        box = session.get_one(Hatbox, 1)
        gone(Hatbox, 1)
        session.delete(box)
        before = versions()
        session.commit()
    assert versions()[3] == before[3] + 1


def test_a_root_that_was_read_is_compared_in_that_version(crates, watched, other, versions):
    """A decision about its parts was made without this one."""
    with watched() as session:
        read = session.get_one(Hamper, 2)
        box = session.get_one(Hatbox, 1)
        other(Hatbox, 1, crate_id=2)
        overwrite(box)
        box.text = "mine"
        with pytest.raises(ConcurrencyError) as refused:
            session.commit()
        assert [(entry.model, entry.identity) for entry in refused.value.entries] == [
            (Hamper, (2,))
        ]
        assert read is not None
        session.rollback()
    assert versions() == {1: 2, 2: 2, 3: 1}


@alive
def test_under_no_bump_the_root_stays(crates, watched, other, versions):
    with watched(client_wins) as session:
        box = session.get_one(Hatbox, 1)
        other(Hatbox, 1, crate_id=2)
        before = versions()
        with no_bump(session):
            box.text = "mine"
            session.commit()
    assert versions() == before


@pytest.mark.parametrize("act", [change, delete])
@pytest.mark.parametrize("kind", ["watched", "plain"])
def test_the_root_of_a_part_without_a_version_moves(
    crates, watched, engine, other, versions, act, kind
):
    with watched() if kind == "watched" else Session(engine) as session:
        slip = session.get_one(Waybill, 1)
        other(Waybill, 1, crate_id=2)
        before = versions()
        act(session, slip)
        session.commit()
    assert versions()[2] == before[2] + 1


def test_a_part_without_a_version_is_read_once_more_only_if_its_root_was_not(
    crates, watched, engine
):
    for reads_root in (True, False):
        with watched() as session:
            root = session.get_one(Hamper, 1) if reads_root else None
            session.get_one(Waybill, 1).text = f"mine {reads_root}"
            with count_statements(engine) as sent:
                session.flush()
            assert root is None or root.version > 1
            reads = [one.text for one in sent.statements if one.text.startswith("SELECT")]
            assert len(reads) == (0 if reads_root else 2)
            session.commit()


@alive
def test_a_root_that_a_resolver_leaves_as_stored_moves_for_a_part_that_is_written(
    crates, watched, other, store, versions
):
    store(Hatbox(id=2, crate_id=1))
    with watched(store_wins) as session:
        root = session.get_one(Hamper, 1)
        session.get_one(Hatbox, 1).text = "mine"
        with Session(session.get_bind()) as theirs, theirs.begin():
            theirs.get_one(Hatbox, 2).text = "theirs"
        before = versions()
        session.commit()
        assert root.version == versions()[1] == before[1] + 1
