"""A strict session leaves no guarded row to a foreign key for which no trigger fires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import ForeignKey, delete, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import (
    Mapped,
    Session,
    mapped_column,
    relationship,
    sessionmaker,
)

from optilock import ConfigurationError, Versioned, bulk_delete, entities, watch
from optilock.errors import UnguardedStatement
from optilock.statements import unchanged
from tests.support.models import key, own_base

pytestmark = pytest.mark.engines("mariadb")

BY_DATABASE = {"ondelete": "SET NULL", "onupdate": "CASCADE"}

Base = own_base()


class Room(Versioned, Base):
    __tablename__ = "si_rooms"
    id: Mapped[int] = key()
    shelves: Mapped[list[Shelf]] = relationship(cascade="all, delete-orphan")


class Shelf(Versioned, Base):
    """Its jars are left to the database."""

    __tablename__ = "si_shelves"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    room_id: Mapped[int | None] = mapped_column(ForeignKey("si_rooms.id"))


class Jar(Versioned, Base):
    __tablename__ = "si_jars"
    __version_guard__ = "reject"
    id: Mapped[int] = key()
    shelf_id: Mapped[int | None] = mapped_column(ForeignKey("si_shelves.id", **BY_DATABASE))


class Rack(Versioned, Base):
    """Its pots are changed by the session first."""

    __tablename__ = "si_racks"
    id: Mapped[int] = key()
    pots: Mapped[list[Pot]] = relationship(passive_updates=False)


class Pot(Versioned, Base):
    __tablename__ = "si_pots"
    __version_guard__ = "reject"
    id: Mapped[int] = key()
    rack_id: Mapped[int | None] = mapped_column(ForeignKey("si_racks.id", **BY_DATABASE))


class Hook(Versioned, Base):
    """Its rows have no trigger, so nothing more is promised of them."""

    __tablename__ = "si_hooks"
    id: Mapped[int] = key()


class Cup(Versioned, Base):
    __tablename__ = "si_cups"
    id: Mapped[int] = key()
    hook_id: Mapped[int | None] = mapped_column(ForeignKey("si_hooks.id", **BY_DATABASE))


@pytest.fixture
def make(engine: Any, tables: Any, store: Any) -> Any:
    tables(Room, Shelf, Jar, Rack, Pot, Hook, Cup)
    store(Room(id=1))
    store(Shelf(id=1, room_id=1), Rack(id=1), Hook(id=1))
    store(Jar(id=1, shelf_id=1), Pot(id=1, rack_id=1), Cup(id=1, hook_id=1))
    return watch(sessionmaker(engine), strict=True)


def let_go(session: Session) -> None:
    room = session.get_one(Room, 1)
    room.shelves.clear()
    session.flush()


def new_key(session: Session) -> None:
    session.get_one(Shelf, 1).id = 2
    session.flush()


WAYS: dict[str, Callable[[Session], object]] = {
    "object": lambda s: s.delete(s.get_one(Shelf, 1)) or s.flush(),
    "orphan": let_go,
    "key of the object": new_key,
    "delete": lambda s: s.execute(delete(Shelf).where(unchanged(s.get_one(Shelf, 1)))),
    "update": lambda s: s.execute(update(Shelf).where(Shelf.version == 1).values(id=2)),
    "table": lambda s: s.connection().execute(
        delete(Shelf.__table__).where(Shelf.__table__.c.version == 1)
    ),
    "text": lambda s: s.execute(text("DELETE FROM si_shelves WHERE version = 1")),
    "bulk": lambda s: bulk_delete(s, Shelf, [{"id": 1, "version": 1}]),
    "entity": lambda s: entities.delete(s, Shelf, 1, if_match="*"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_row_whose_end_changes_guarded_rows_is_kept(make, stored, way):
    """No cell is silent: MariaDB sets the jar's shelf itself, and its version would stay."""
    with make() as session:
        with pytest.raises(ConfigurationError, match=r"Jar\.shelf_id") as caught:
            way(session)
        assert "fires no trigger" in str(caught.value)
        session.rollback()
    assert (stored(Jar, 1)["shelf_id"], stored(Shelf, 1)["version"]) == (1, 1)


def test_a_replaced_row_is_refused_before_it_ends(make, stored):
    replace = text("REPLACE INTO si_shelves (id, version) VALUES (1, 1)")
    with make() as session, pytest.raises(UnguardedStatement, match="REPLACE"):
        session.execute(replace)
    assert (stored(Jar, 1)["shelf_id"], stored(Shelf, 1)["version"]) == (1, 1)


def test_rows_that_the_session_changes_first_move_their_versions(make, stored):
    with make() as session:
        session.get_one(Rack, 1).id = 2
        session.commit()
        assert (stored(Pot, 1)["rack_id"], stored(Pot, 1)["version"]) == (2, 2)
        session.delete(session.get_one(Rack, 2))
        session.commit()
    assert (stored(Pot, 1)["rack_id"], stored(Pot, 1)["version"]) == (None, 3)


def test_other_edits_of_the_parent_and_tables_without_a_trigger_pass(make, stored):
    with make() as session:
        session.get_one(Shelf, 1).name = "top"
        session.execute(update(Hook).where(Hook.version == 1).values(id=2))
        session.flush()
        session.execute(update(Shelf).where(Shelf.version == 2).values(name="low"))
        session.delete(session.get_one(Hook, 2))
        session.commit()
    assert stored(Cup, 1)["hook_id"] is None


@pytest.mark.engines("postgresql")
def test_where_triggers_fire_the_trigger_decides(make):
    """The session sends the DELETE, and the trigger of the jars refuses it."""
    with make() as session:
        session.delete(session.get_one(Shelf, 1))
        with pytest.raises(DBAPIError, match="version"):
            session.flush()
