"""The version on an instance is read, never assigned, and followed wherever the object goes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, func, insert, select, text, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    make_transient_to_detached,
    mapped_column,
    sessionmaker,
)
from sqlalchemy.orm.attributes import (
    del_attribute,
    flag_modified,
    set_attribute,
    set_committed_value,
)
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import StaticPool

from optilock import ConcurrencyError, ConfigurationError, Versioned, watch
from optilock._watched.session.record import is_watched
from optilock.tokens import Unique


class Base(DeclarativeBase):
    pass


class Doc(Versioned, Base):
    __tablename__ = "docs"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    body: Mapped[str | None]


class Token(Versioned, Base):
    __tablename__ = "tokens"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@pytest.fixture(params=["plain", "watched"])
def sessions(request: pytest.FixtureRequest) -> Iterator[sessionmaker[Session]]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    made = sessionmaker(engine)
    with made.begin() as session:
        session.add_all([Doc(id=1, name="a"), Token(id=1, name="a")])
    yield watch(made) if request.param == "watched" else made
    engine.dispose()


def somebody_else(session: Session) -> None:
    """Another writer, on the connection that all sessions of these tests share."""
    session.execute(text("UPDATE docs SET name = 'theirs', version = version + 1 WHERE id = 1"))
    session.commit()


def stored(sessions: sessionmaker[Session]) -> tuple[Any, ...]:
    with sessions() as session:
        return tuple(session.execute(select(Doc.name, Doc.version).where(Doc.id == 1)).one())


# -- assigning -------------------------------------------------------------------------------------


ASSIGN: list[Callable[[Any], None]] = [
    lambda doc: setattr(doc, "version", 5),
    lambda doc: setattr(doc, "version", "1"),
    lambda doc: setattr(doc, "version", doc.version + 1),
    lambda doc: setattr(doc, "version", doc.version),
    lambda doc: setattr(doc, "version", None),
    lambda doc: delattr(doc, "version"),
    lambda doc: set_attribute(doc, "version", 5),
    lambda doc: del_attribute(doc, "version"),
    lambda doc: flag_modified(doc, "version"),
]


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("assign", ASSIGN)
def test_assigning_is_an_error_that_changes_nothing(sessions, assign, expired) -> None:
    """RL-14, RL-19, RL-22, EX-04"""
    with sessions() as session:
        doc = session.get_one(Doc, 1)
        if expired:
            session.expire(doc)
        if not (expired and assign is ASSIGN[-1]):  # flag_modified asks for a loaded attribute
            with pytest.raises(ConfigurationError, match=r"Doc\.version.*set_committed_value"):
                assign(doc)
        assert not session.dirty
        assert doc.version == 1
        doc.name = "b"
        session.commit()
    assert stored(sessions) == ("b", 2)


def test_the_constructor_takes_no_version() -> None:
    with pytest.raises(ConfigurationError, match=r"Doc\.version"):
        Doc(id=2, name="b", version=41)
    with pytest.raises(ConfigurationError, match=r"Doc\.version"):
        set_attribute(Doc(id=2, name="b"), "version", 41)


# -- merge -----------------------------------------------------------------------------------------


def detached(sessions: sessionmaker[Session], **values: Any) -> Any:
    """A copy that has been somewhere else, as a form or a task queue would send it."""
    with sessions() as session:
        doc = pickle.loads(pickle.dumps(session.get_one(Doc, 1)))
    for name, value in values.items():
        setattr(doc, name, value)
    return doc


def test_merge_takes_the_version_that_is_stored(sessions) -> None:
    doc = detached(sessions, name="mine")
    with sessions() as session:
        assert session.merge(doc).version == 1
        session.commit()
    assert stored(sessions) == ("mine", 2)


@pytest.mark.parametrize("held", ["not loaded", "loaded", "expired"])
def test_a_stale_copy_is_refused_by_merge_and_nothing_of_it_is_written(sessions, held) -> None:
    """SQLAlchemy alone writes it over an object that is expired, the old version included."""
    doc = detached(sessions, name="mine")
    with sessions() as session:
        here = session.get_one(Doc, 1) if held != "not loaded" else None
        somebody_else(session)
        if held == "loaded":
            session.refresh(here)
        with pytest.raises(StaleDataError, match="does not match existing version"):
            session.merge(doc)
        session.commit()
    assert stored(sessions) == ("theirs", 2)


def test_a_fresh_copy_is_merged_over_an_expired_object(sessions) -> None:
    with sessions() as session:
        here = session.get_one(Doc, 1)
        session.commit()
        merged = session.merge(detached(sessions, name="mine"))
        assert merged is here
        session.commit()
    assert stored(sessions) == ("mine", 2)


def test_merge_of_a_row_that_is_gone_does_not_bring_it_back(sessions) -> None:
    doc = detached(sessions)
    with sessions() as session:
        session.execute(delete(Doc))
        with pytest.raises(ConcurrencyError, match="deleted after the copy was read") as caught:
            session.merge(doc)
        assert not session.new
    assert caught.value.entries[0].kind == "deleted"


def test_merge_without_load_takes_the_version_over(sessions) -> None:
    doc = detached(sessions)
    with sessions() as session:
        merged = session.merge(doc, load=False)
        assert (merged.version, merged in session.dirty) == (1, False)


@pytest.mark.filterwarnings("ignore::optilock.errors.UnversionedMergeWarning")
def test_merge_of_an_object_that_never_had_a_version_checks_nothing(sessions) -> None:
    """It says "make the row so", as SQLAlchemy's manual says; the manual here says it as well."""
    with sessions() as session:
        somebody_else(session)
        session.merge(Doc(id=1, name="mine"))
        session.commit()
    assert stored(sessions) == ("mine", 3)


# -- other ways ------------------------------------------------------------------------------------


def test_a_version_that_was_seen_before_can_be_demanded(sessions) -> None:
    """A form carries key and version; no row needs to be read before the write."""
    for seen, expected in ((9, StaleDataError), (1, None)):
        with sessions() as session:
            doc = Doc(id=1)
            make_transient_to_detached(doc)
            session.add(doc)
            set_committed_value(doc, "version", seen)
            doc.name = "mine"
            if expected is None:
                session.commit()
            else:
                with pytest.raises(expected):
                    session.commit()
    assert stored(sessions) == ("mine", 2)


def test_copies_keep_the_version(sessions) -> None:
    with sessions() as session:
        doc = session.get_one(Doc, 1)
        assert pickle.loads(pickle.dumps(doc)).version == 1
        assert copy.deepcopy(doc).version == 1


def test_refresh_and_expire_follow_the_row(sessions) -> None:
    with sessions() as session:
        doc = session.get_one(Doc, 1)
        somebody_else(session)
        session.refresh(doc)
        assert doc.version == 2
        somebody_else(session)
        session.expire(doc, ["version"])
        assert doc.version == 3


def test_an_attribute_that_is_refreshed_alone_does_not_make_the_rest_look_fresh(sessions) -> None:
    with sessions() as session:
        session.expire_on_commit = False
        doc = session.get_one(Doc, 1)
        somebody_else(session)
        session.refresh(doc, ["body"])
        doc.name = "mine"
        with pytest.raises(StaleDataError):
            session.commit()


@pytest.mark.parametrize("model", [Doc, Token])
def test_every_way_to_insert_gives_the_first_version(sessions, model) -> None:
    table = model.__table__
    with sessions() as session:
        session.add(model(id=2, name="b"))
        session.bulk_insert_mappings(model, [{"id": 3, "name": "b"}])
        session.bulk_save_objects([model(id=4, name="b")])
        session.execute(insert(model), [{"id": 5, "name": "b"}, {"id": 6, "name": "b"}])
        session.execute(insert(model).values(id=7, name="b"))
        session.execute(insert(model).values([{"id": 8, "name": "b"}, {"id": 9, "name": "b"}]))
        session.execute(table.insert(), [{"id": 10, "name": "b"}, {"id": 11, "name": "b"}])
        session.commit()
        versions = session.scalars(select(model.version)).all()
    assert len(versions) == 11
    assert set(versions) == {1} if model is Doc else len(set(versions)) == 11


def test_rows_updated_in_bulk_must_say_their_version_and_are_checked(sessions) -> None:
    ways: list[Callable[[Session, Any], Any]] = [
        lambda session, row: session.bulk_update_mappings(Doc, [row]),
        lambda session, row: session.execute(update(Doc), [row]),
    ]
    for way in ways:
        with sessions() as session, pytest.raises((KeyError, ConfigurationError), match="version"):
            way(session, {"id": 1, "name": "mine"})
        with sessions() as session, pytest.raises(StaleDataError):
            way(session, {"id": 1, "name": "mine", "version": 9})
    for version, way in enumerate(ways, start=1):
        with sessions() as session:
            way(session, {"id": 1, "name": "mine", "version": version})
            session.commit()
    assert stored(sessions) == ("mine", 3)


def test_objects_saved_in_bulk_are_checked(sessions) -> None:
    doc = detached(sessions, name="mine")
    with sessions() as session:
        somebody_else(session)
        with pytest.raises(StaleDataError) as caught:
            session.bulk_save_objects([doc])
        assert isinstance(caught.value, ConcurrencyError) == is_watched(session)
    assert stored(sessions) == ("theirs", 2)


def test_the_version_can_be_used_in_queries(sessions) -> None:
    other = aliased(Doc)
    with sessions() as session:
        assert session.scalars(select(Doc.id).where(Doc.version == 1)).all() == [1]
        assert session.scalars(select(Doc.id).where(Doc.version == 2)).all() == []
        assert session.scalars(select(Doc).order_by(Doc.version.desc())).one().id == 1
        assert session.scalar(select(other.version).where(other.version.in_([1, 2]))) == 1
        assert session.scalar(select(func.max(Doc.version))) == 1
