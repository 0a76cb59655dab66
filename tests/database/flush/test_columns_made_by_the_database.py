"""Columns that nobody but the database can write, where a resolver wants a deleted row back."""

from __future__ import annotations

import pytest
from sqlalchemy import Computed, Engine, Identity, text
from sqlalchemy.orm import Mapped, mapped_column

from optilock import Versioned, client_wins
from tests.support.models import Base, key
from tests.support.two_writers import Do

pytestmark = pytest.mark.needs("resolves-in-place")


class Parcel(Versioned, Base):
    __tablename__ = "computed_parcels"
    id: Mapped[int] = key()
    weight: Mapped[int]
    twice: Mapped[int] = mapped_column(Computed("weight * 2", persisted=True))


class Numbered(Versioned, Base):
    __tablename__ = "always_numbered"
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    text: Mapped[str | None]


def test_a_computed_column_is_computed_again(store: Do, watched: Do, gone: Do, stored: Do) -> None:
    store(Parcel(id=1, weight=1))
    session = watched(client_wins)
    parcel = session.get_one(Parcel, 1)
    gone(Parcel, 1)
    parcel.weight = 5
    session.flush()
    assert (parcel.weight, parcel.twice) == (5, 10)
    session.commit()

    assert stored(Parcel, 1)["twice"] == 10


def test_a_key_that_only_the_database_makes_cannot_come_back(
    engine: Engine, store: Do, watched: Do, gone: Do, refused: Do
) -> None:
    """On PostgreSQL; the others know no such columns, and take the key."""
    store(Numbered(text="a"))
    session = watched(client_wins)
    numbered = session.get_one(Numbered, 1)
    gone(Numbered, 1)
    numbered.text = "mine"
    if engine.dialect.supports_identity_columns:
        error = refused(session)
        assert "id is always made by the database" in error.__notes__[0]
        with session.no_autoflush:  # the transaction is alive
            assert session.scalar(text("SELECT 1")) == 1
    else:
        session.commit()
        assert numbered.text == "mine"
