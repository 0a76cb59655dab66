"""Copies of rows whose values are compared come back by ``session.merge()``."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy import ForeignKey, delete, update
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from optilock import ConcurrencyError, ConfigurationError, UnitOfWork, Versioned
from optilock.testing import count_statements
from optilock.tokens import CompareValues, Counter
from tests.support.models import Base, key


class Leaflet(Versioned, Base):
    __tablename__ = "mcv_leaflets"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    title: Mapped[str | None]
    body: Mapped[str | None]
    pages: Mapped[list[LeafletPage]] = relationship(cascade="all, delete-orphan")


class LeafletPage(Versioned, Base):
    __tablename__ = "mcv_pages"
    __version_token__ = CompareValues.changed()
    id: Mapped[int] = key()
    leaflet_id: Mapped[int] = mapped_column(ForeignKey("mcv_leaflets.id"))
    text: Mapped[str | None]


class Parcel(Versioned, Base):
    """A version, and a value that programs change which know of no version."""

    __tablename__ = "mcv_parcels"
    __version_token__ = (Counter(), CompareValues("state"))
    id: Mapped[int] = key()
    state: Mapped[str | None]
    owner: Mapped[str | None]


@pytest.fixture
def copy_of(engine):
    def copy_of(model, key, *loaded):
        with Session(engine) as session:
            found = session.get_one(model, key)
            for name in loaded:
                getattr(found, name)
            return pickle.loads(pickle.dumps(found))

    return copy_of


@pytest.fixture
def directly(engine):
    """Another program, which knows nothing of optilock."""

    def directly(model: Any, key: int, **values: Any) -> None:
        table = model.__table__
        with engine.begin() as connection:
            connection.execute(update(table).where(table.c.id == key).values(values))

    return directly


def refused_merge(session, copy):
    with pytest.raises(ConcurrencyError) as caught:
        session.merge(copy)
    assert not session.new
    assert not session.dirty
    return caught.value


def test_a_copy_of_what_is_stored_is_written(store, watched, copy_of, stored):
    store(Leaflet(id=1, title="a", body="b"))
    copy = copy_of(Leaflet, 1)
    copy.body = "mine"
    session = watched()
    session.merge(copy)
    session.commit()
    assert stored(Leaflet, 1)["body"] == "mine"


def test_a_stale_copy_is_an_entry_with_all_three_sides(store, watched, copy_of, directly, stored):
    store(Leaflet(id=1, title="a", body="b"))
    copy = copy_of(Leaflet, 1)
    copy.body = "mine"
    directly(Leaflet, 1, title="theirs")
    session = watched()
    [entry] = refused_merge(session, copy).entries
    assert (entry.kind, entry.changes) == ("updated", {"body": "mine"})
    assert entry.original["title"] == "a"
    assert entry.database["title"] == "theirs"
    session.commit()
    assert (stored(Leaflet, 1)["title"], stored(Leaflet, 1)["body"]) == ("theirs", "b")


def test_a_merge_would_write_unchanged_values_back_so_all_of_them_are_compared(
    store, watched, copy_of, directly, stored
):
    store(Leaflet(id=1), LeafletPage(id=5, leaflet_id=1, text="a"))
    copy = copy_of(LeafletPage, 5)
    directly(LeafletPage, 5, text="theirs")
    refused_merge(watched(), copy)
    assert stored(LeafletPage, 5)["text"] == "theirs"


def test_a_copy_of_a_row_that_is_gone_does_not_bring_it_back(
    store, watched, copy_of, engine, stored
):
    store(Leaflet(id=1, title="a"))
    copy = copy_of(Leaflet, 1)
    with engine.begin() as connection:
        connection.execute(delete(Leaflet.__table__))
    session = watched()
    [entry] = refused_merge(session, copy).entries
    assert (entry.kind, entry.database) == ("deleted", None)
    session.commit()
    assert stored(Leaflet, 1) is None


def test_one_stale_child_takes_back_the_whole_merge(store, watched, copy_of, directly, stored):
    store(Leaflet(id=1, title="a"), LeafletPage(id=5, leaflet_id=1, text="a"))
    copy = copy_of(Leaflet, 1, "pages")
    copy.title = "mine"
    copy.pages[0].text = "mine"
    copy.pages.append(LeafletPage(id=6, text="new"))
    directly(LeafletPage, 5, text="theirs")
    session = watched()
    [entry] = refused_merge(session, copy).entries
    assert entry.model is LeafletPage
    session.commit()
    assert stored(Leaflet, 1)["title"] == "a"
    assert stored(LeafletPage, 5)["text"] == "theirs"
    assert stored(LeafletPage, 6) is None


def test_an_expired_copy_carries_the_values_that_were_seen(store, watched, directly, stored):
    store(Leaflet(id=1, title="a"))
    session = watched()
    copy = session.get_one(Leaflet, 1)
    session.commit()
    session.expunge(copy)
    directly(Leaflet, 1, title="theirs")
    copy.title = "mine"
    refused_merge(watched(), copy)
    assert stored(Leaflet, 1)["title"] == "theirs"


def test_beside_a_version_the_values_are_compared_too(store, watched, copy_of, directly, stored):
    store(Parcel(id=1, state="sent", owner="Ada"))
    copy = copy_of(Parcel, 1)
    copy.owner = "Eve"
    directly(Parcel, 1, state="lost")
    refused_merge(watched(), copy)
    assert (stored(Parcel, 1)["state"], stored(Parcel, 1)["owner"]) == ("lost", "Ada")


@pytest.mark.filterwarnings("ignore::optilock.errors.UnversionedMergeWarning")
def test_a_new_object_says_nothing_about_what_was_seen(store, watched, directly, stored):
    store(Leaflet(id=1, title="a"))
    session = watched()
    session.merge(Leaflet(id=1, title="b"))
    session.merge(Leaflet(id=2, title="new"))
    session.commit()
    assert (stored(Leaflet, 1)["title"], stored(Leaflet, 2)["title"]) == ("b", "new")


def test_the_comparison_sends_nothing_of_its_own(store, watched, copy_of, engine):
    store(Leaflet(id=1, title="a"), LeafletPage(id=5, leaflet_id=1, text="a"))
    copy = copy_of(Leaflet, 1, "pages")
    copy.title = "mine"
    session = watched()
    with count_statements(engine) as sent:
        session.merge(copy)
    assert sent.count == 2  # the row, and its pages: as in a plain session


def test_what_has_no_version_cannot_be_verified_by_reading_it(store, engine):
    store(Leaflet(id=1, title="a"))
    with (
        pytest.raises(ConfigurationError, match="compares values"),
        UnitOfWork(engine, verify_reads=True) as session,
    ):
        session.get(Leaflet, 1)


def test_a_refused_merge_leaves_what_was_read_of_an_expired_object(
    store, watched, copy_of, directly, stored
):
    """Only the merge has read the row since; the author of the edit has not."""
    store(Leaflet(id=1, title="a"))
    copy = copy_of(Leaflet, 1)
    session = watched()
    mine = session.get_one(Leaflet, 1)
    mine.body = "mine"
    session.commit()
    directly(Leaflet, 1, title="theirs")
    refused_merge(session, copy)
    mine.title = "Eve"
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert stored(Leaflet, 1)["title"] == "theirs"
