"""A batch locks its own rows: others write the rows beside it meanwhile, however small the table.

A server that scans a table to find some of its rows would lock all of them.
"""

from __future__ import annotations

import random

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned

pytestmark = pytest.mark.engines("postgresql", "mariadb")
#: Where MariaDB rather scans: half of a small table, and a list of 1,000 keys.
SIZES = [(20, 10), (60, 30), (1500, 1000)]


class Base(DeclarativeBase):
    pass


class Bed(Versioned, Base):
    __tablename__ = "beds"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    guest: Mapped[int] = mapped_column(default=0)
    meal: Mapped[int] = mapped_column(default=0)

    @classmethod
    def nth(cls, n):
        return cls(id=n)


class Chair(Versioned, Base):
    """The first column of the key is the same for many rows, and the key out of order."""

    __tablename__ = "chairs"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hall: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    guest: Mapped[int] = mapped_column(default=0)
    meal: Mapped[int] = mapped_column(default=0)

    @classmethod
    def nth(cls, n):
        return cls(number=n // 7, hall=n % 7)


class Named(Versioned, Base):
    """A name that needs quotes, and looks like a parameter."""

    __tablename__ = "od:d `tables` :guest"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    guest: Mapped[int] = mapped_column(default=0)
    meal: Mapped[int] = mapped_column(default=0)

    @classmethod
    def nth(cls, n):
        return cls(id=n)


def key_of(row):
    return tuple(row.__mapper__.primary_key_from_instance(row))


@pytest.fixture
def held(engine):
    """The keys of the rows that somebody has locked."""

    def held(model):
        keys = model.__table__.primary_key.columns
        with engine.connect() as other:
            everything = set(map(tuple, other.execute(select(*keys))))
            free = select(*keys).with_for_update(skip_locked=True)
            return everything - set(map(tuple, other.execute(free)))

    return held


def write(rows):
    """Neighbours set different columns."""
    for n, row in enumerate(rows):
        setattr(row, "meal" if n % 2 else "guest", 1)


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize(("size", "batch"), SIZES)
@pytest.mark.parametrize("model", [Bed, Chair, Named])
def test_a_batch_holds_its_own_rows(store, watched, held, model, size, batch, deleting):
    store(*(model.nth(n) for n in range(size)))
    session = watched()
    rows = random.Random(size).sample(session.scalars(select(model)).all(), batch)
    mine = {key_of(row) for row in rows}
    session.commit()
    rows = [session.get_one(model, key) for key in sorted(mine, reverse=True)]
    if deleting:
        for row in rows:
            session.delete(row)
    else:
        write(rows)
    session.flush()

    assert held(model) == mine


@pytest.mark.parametrize("before", [0, 3000])
def test_statistics_of_another_day_change_nothing(
    store, watched, held, engine, tables, database, before
):
    """The server believes that the table is empty, or large."""
    tables(Bed)
    store(*(Bed.nth(n) for n in range(10_000, 10_000 + before)))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as server:
        if database.family == "mariadb":
            server.execute(text("ALTER TABLE beds STATS_AUTO_RECALC = 0"))
            server.execute(text("ANALYZE TABLE beds"))
        else:
            server.execute(text("ALTER TABLE beds SET (autovacuum_enabled = off)"))
            server.execute(text("ANALYZE beds"))
        server.execute(text("DELETE FROM beds"))
    store(*(Bed.nth(n) for n in range(40)))
    session = watched()
    rows = session.scalars(select(Bed).where(Bed.id < 20)).all()
    write(rows)
    session.flush()

    assert held(Bed) == {(n,) for n in range(20)}


def test_others_write_what_the_batch_did_not(store, watched, engine, database):
    store(*(Bed.nth(n) for n in range(20)))
    session = watched()
    write(session.scalars(select(Bed).where(Bed.id < 10)).all())
    session.flush()
    wait = {"mariadb": "SET innodb_lock_wait_timeout = 1", "postgresql": "SET lock_timeout = 1000"}
    with engine.begin() as other:
        other.execute(text(wait[database.family]))
        for n in range(10, 20):
            other.execute(Bed.__table__.update().where(Bed.id == n).values(guest=2))
