"""Deletes of rows that have no version, only values that are compared."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, delete, update
from sqlalchemy.orm import Mapped, mapped_column, relationship

from optilock import Versioned, client_wins, store_wins
from optilock.resolvers import OnDelete
from optilock.tokens import CompareValues
from tests.support.models import Base, key

alive = pytest.mark.needs("resolves-in-place")


class Bill(Versioned, Base):
    """Its lines go with it, so it is looked at before the flush."""

    __tablename__ = "compared_orders"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    state: Mapped[str | None]
    lines: Mapped[list[BillLine]] = relationship(cascade="all, delete-orphan")


class BillLine(Versioned, Base):
    __tablename__ = "compared_lines"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    text: Mapped[str | None]
    order_id: Mapped[int] = mapped_column(ForeignKey("compared_orders.id"))


@pytest.fixture
def other(engine):
    """A program that knows nothing of optilock."""

    def other(model, key, **values):
        with engine.begin() as connection:
            connection.execute(update(model.__table__).filter_by(id=key).values(values))

    return other


@pytest.fixture
def gone(engine):
    def gone(model, key):
        with engine.begin() as connection:
            if model is Bill:
                connection.execute(delete(BillLine.__table__).filter_by(order_id=key))
            connection.execute(delete(model.__table__).filter_by(id=key))

    return gone


def orders(store, count):
    lines = {n: [BillLine(id=n, text="a")] for n in range(count)}
    store(*(Bill(id=n, state="new", lines=lines[n]) for n in range(count)))


def doomed(session, model, count):
    rows = [session.get_one(model, n) for n in range(count)]
    for row in rows:
        session.delete(row)
    return rows


@pytest.mark.parametrize("model", [Bill, BillLine])
@pytest.mark.parametrize("count", [1, 3])
@alive
def test_a_row_that_was_changed_is_not_deleted(
    store, watched, other, refused, stored, model, count
):
    orders(store, count)
    session = watched(autoflush=False)
    doomed(session, model, count)
    other(model, 0, **{"state" if model is Bill else "text": "theirs"})
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity, entry.action) == (model, (0,), "delete")
    assert all(stored(model, n) for n in range(count))


@alive
@pytest.mark.parametrize("model", [Bill, BillLine])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "rule",
    [{"on_conflict": client_wins}, {"on_delete": OnDelete.IGNORE_VERSION}],
    ids=["resolver", "policy"],
)
def test_a_row_that_was_changed_may_be_deleted_all_the_same(
    store, watched, other, stored, model, count, rule
):
    orders(store, count)
    session = watched(autoflush=False, **rule)
    doomed(session, model, count)
    other(model, 0, **{"state" if model is Bill else "text": "theirs"})
    session.commit()

    assert not any(stored(model, n) for n in range(count))


@alive
@pytest.mark.parametrize("model", [Bill, BillLine])
@pytest.mark.parametrize("count", [1, 3])
def test_a_row_that_was_changed_may_be_kept(store, watched, other, stored, model, count):
    orders(store, count)
    session = watched(store_wins, autoflush=False)
    rows = doomed(session, model, count)
    name = "state" if model is Bill else "text"
    other(model, 0, **{name: "theirs"})
    session.commit()

    assert stored(model, 0)[name] == getattr(rows[0], name) == "theirs"
    assert not any(stored(model, n) for n in range(1, count))


@alive
@pytest.mark.parametrize("model", [Bill, BillLine])
@pytest.mark.parametrize("count", [1, 3])
def test_a_row_that_is_gone_may_be_ignored(store, watched, gone, stored, model, count):
    orders(store, count)
    session = watched(on_delete=OnDelete.IGNORE_GONE, autoflush=False)
    rows = doomed(session, model, count)
    if model is Bill:
        assert len(rows[0].lines) == 1
    gone(model, 0)
    session.commit()

    assert not any(stored(model, n) for n in range(count))
