"""The order in which rows are locked is that in which a flush writes them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import ForeignKey, MetaData, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from optilock.rows.lock_order import lock_order


class Base(DeclarativeBase):
    metadata = MetaData()


class Zoo(Base):
    __tablename__ = "zoos"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str | None]


class Animal(Base):
    __tablename__ = "animals"
    id: Mapped[int] = mapped_column(primary_key=True)
    zoo_id: Mapped[int | None] = mapped_column(ForeignKey("zoos.id"))
    mother_id: Mapped[int | None] = mapped_column(ForeignKey("animals.id"))
    name: Mapped[str | None]
    zoo: Mapped[Zoo | None] = relationship()


class Bone(Base):
    __tablename__ = "bones"
    id: Mapped[int] = mapped_column(primary_key=True)
    animal_id: Mapped[int | None] = mapped_column(ForeignKey("animals.id"))
    name: Mapped[str | None]
    animal: Mapped[Animal | None] = relationship()


class Keeper(Base):
    __tablename__ = "a_first_name"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str | None]
    elsewhere_id: Mapped[int | None] = mapped_column(ForeignKey("nobody_has_described_it.id"))


def order_of(*objects: Any) -> list[Any]:
    return sorted(objects, key=lambda one: lock_order(type(one).__mapper__, (one.id,)))


def test_it_is_the_order_of_a_flush() -> None:
    rows: list[Any] = [Bone(id=1), Zoo(id=2), Animal(id=10), Zoo(id=10), Animal(id=9), Zoo(id=1)]
    engine = create_engine("sqlite://")
    for table in (Zoo.__table__, Animal.__table__, Bone.__table__):
        table.create(engine)
    with Session(engine) as session:
        session.add_all(rows)
        session.commit()
        written: list[Any] = []
        event.listen(Base, "before_update", lambda _m, _c, one: written.append(one), propagate=True)
        for row in rows:
            row.name = "new"
        session.flush()
        assert written == order_of(*rows)
    assert [(type(one).__name__, one.id) for one in order_of(*rows)] == [
        ("Zoo", 1),
        ("Zoo", 2),
        ("Zoo", 10),
        ("Animal", 9),
        ("Animal", 10),
        ("Bone", 1),
    ]


@pytest.mark.parametrize("identity", [("a", 1), (None,), (b"x",)])
def test_any_key_has_a_place(identity: Any) -> None:
    assert lock_order(Zoo.__mapper__, identity) == lock_order(Zoo.__mapper__, identity)
    assert sorted([lock_order(Zoo.__mapper__, identity), lock_order(Zoo.__mapper__, (1,))])


def test_a_table_that_nobody_has_described_is_above_nothing() -> None:
    assert lock_order(Keeper.__mapper__, (1,)) < lock_order(Animal.__mapper__, (1,))
