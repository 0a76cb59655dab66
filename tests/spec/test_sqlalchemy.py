"""What SQLAlchemy's own tests of versions demand (test/orm/test_versioning.py and others)."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import ForeignKey, func, literal, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import FlushError, StaleDataError

from optilock import ConfigurationError, Versioned
from optilock.testing import count_statements
from optilock.tokens import Counter
from tests.spec.models import (
    Clock,
    Club,
    Contract,
    Doc,
    Kid,
    Member,
    Moved,
    Node,
    Own,
    OwnDog,
    Parent,
    Plain,
)
from tests.spec.steps import alive, reload, told
from tests.support.models import Dog, Odd

# -- NULL ------------------------------------------------------------------------------------------


def test_a_row_without_a_version_is_not_inserted(store, watched, stored, tables):
    """SA-01: where the application makes the versions."""
    tables(Own)
    session = watched()
    session.add(Own(id=1, name="a"))
    with pytest.raises(FlushError, match="non-NULL"):
        session.flush()
    session.rollback()

    assert stored(Own, 1) is None


def test_a_version_is_not_set_to_nothing(store, watched, stored):
    """SA-02: ours cannot be assigned at all, the application's own may not be None."""
    store(Own(id=1, name="a", version=1), Doc(id=1, name="a"))
    session = watched(autoflush=False)
    own, doc = session.get_one(Own, 1), session.get_one(Doc, 1)
    with pytest.raises(ConfigurationError):
        doc.version = None
    own.version = None
    with pytest.raises(FlushError, match="non-NULL"):
        session.flush()
    session.rollback()

    assert (stored(Own, 1)["version"], stored(Doc, 1)["version"]) == (1, 1)


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", [False, True])
def test_objects_saved_in_bulk_are_checked_and_move_their_versions(
    store, watched, other, stored, stale
):
    """SA-54"""
    store(Doc(id=1, name="a"), Doc(id=2, name="a"))
    session = watched()
    docs = session.scalars(select(Doc).order_by(Doc.id)).all()
    session.commit()
    for doc in docs:
        session.refresh(doc)
        session.expunge(doc)
        doc.name = "ours"
    session.commit()
    if stale:
        other(Doc, 2, name="theirs")
        with pytest.raises(StaleDataError):
            session.bulk_save_objects(docs)
        session.rollback()
        assert stored(Doc, 2)["name"] == "theirs"
    else:
        session.bulk_save_objects(docs)
        session.commit()
        assert [stored(Doc, n)["version"] for n in (1, 2)] == [2, 2]


@alive
def test_an_object_without_a_version_is_not_compared_on_load(store, watched, other):
    """SA-10"""
    store(Plain(id=1, name="a"))
    session = watched()
    session.get_one(Plain, 1)
    other(Plain, 1, name="theirs")

    assert session.get(Plain, 1, with_for_update=True).name == "theirs"


@pytest.mark.needs("row-locks")
def test_a_row_that_another_has_locked_is_read_after_its_commit(store, watched, engine):
    """SA-11"""
    store(Doc(id=1, name="a"))
    session = watched()
    with Session(engine) as theirs, theirs.begin():
        theirs.get(Doc, 1, with_for_update=True).name = "theirs"
        theirs.flush()
        with pytest.raises(OperationalError):
            session.get(Doc, 1, with_for_update={"nowait": True})
        session.rollback()
    doc = session.get(Doc, 1, with_for_update={"nowait": True})
    doc.name = "ours"
    session.commit()

    assert doc.version == 3


def test_a_stale_object_is_not_noticed_when_its_row_is_read_without_a_lock(
    store, watched, other, refused
):
    """SA-14: but when it is written."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    other(Doc, 1, name="theirs")
    assert session.get(Doc, 1) is doc
    assert (doc.name, doc.version) == ("a", 1)
    doc.name = "ours"

    refused(session)


# -- drivers that cannot count ---------------------------------------------------------------------


def change_all(session, rows):
    for row in rows:
        row.name = "ours"


def remove_all(session, rows):
    for row in rows:
        session.delete(row)


def test_a_driver_that_cannot_count_rows_is_refused_for_second_updates(
    store, watched, stored, engine, monkeypatch
):
    """SA-24"""
    store(Node(id=1), Node(id=2))
    session = watched()
    up, down = session.get_one(Node, 1), session.get_one(Node, 2)
    up.downs.append(down)
    monkeypatch.setattr(engine.dialect, "supports_sane_rowcount", False)
    with pytest.raises(ConfigurationError):
        session.commit()
    session.rollback()

    assert stored(Node, 2)["up_id"] is None


# -- post_update -----------------------------------------------------------------------------------


def from_above(up, down):
    up.downs.append(down)


def from_below(up, down):
    down.up = up


ends = pytest.mark.parametrize("point", [from_above, from_below])


@ends
def test_a_pointer_written_afterwards_moves_the_version_once(store, watched, stored, point):
    """SA-21"""
    store(Node(id=1), Node(id=2))
    session = watched()
    up, down = session.get_one(Node, 1), session.get_one(Node, 2)
    point(up, down)
    session.commit()

    assert stored(Node, 2)["up_id"] == 1
    assert [stored(Node, n)["version"] for n in (1, 2)] == [1, 2]
    assert down.version == 2


@ends
def test_a_pointer_written_after_an_insert_is_followed(tables, watched, stored, point):
    """SA-22: the object knows the version that is stored, and its next write matches."""
    tables(Node)
    session = watched()
    up, down = Node(id=1), Node(id=2)
    session.add_all([up, down])
    point(up, down)
    session.commit()
    first = stored(Node, 2)["version"]
    down.name = "ours"
    session.commit()

    assert stored(Node, 2)["up_id"] == 1
    assert stored(Node, 2)["version"] == down.version == first + 1
    assert stored(Node, 1)["version"] == 1


@ends
def test_a_pointer_is_not_written_to_a_stale_row(store, watched, other, stored, refused, point):
    """SA-23"""
    store(Node(id=1), Node(id=2))
    session = watched(autoflush=False)
    up, down = session.get_one(Node, 1), session.get_one(Node, 2)
    assert up.downs == []
    other(Node, 2, name="theirs")
    point(up, down)
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity) == (Node, (2,))
    assert (stored(Node, 2)["up_id"], stored(Node, 2)["name"]) == (None, "theirs")


def test_random_versions_of_many_pointers_stay_with_their_rows(store, watched, stored):
    """SA-25: sqlalchemy#12748."""
    store(*(Club(id=n) for n in (1, 2, 3)))
    store(*(Member(id=n, club_id=n) for n in (1, 2, 3)))
    session = watched()
    clubs = session.scalars(select(Club).order_by(Club.id)).all()
    before = {club.version for club in clubs}
    for club in clubs:
        club.head = session.get_one(Member, club.id)
    session.flush()
    inside = [club.version for club in clubs]
    session.commit()

    assert [stored(Club, n)["version"] for n in (1, 2, 3)] == inside
    assert len(before | set(inside)) == 6


def test_a_row_that_is_written_twice_in_one_flush_is_held_to_the_version_in_between(
    store, watched, stored, engine
):
    """SA-47: sqlalchemy#10800."""
    store(Node(id=1), Node(id=2, name="a"))
    session = watched()
    down = session.get_one(Node, 2)
    down.name, down.up = "ours", session.get_one(Node, 1)
    session.commit()

    assert (stored(Node, 2)["name"], stored(Node, 2)["up_id"]) == ("ours", 1)
    assert stored(Node, 2)["version"] == down.version == 3


@pytest.mark.parametrize("stale", [False, True])
def test_a_row_whose_pointer_is_taken_off_first_is_deleted_by_its_new_version(
    store, watched, other, stored, refused, stale
):
    """SA-48: sqlalchemy#10967."""
    store(Node(id=1), Node(id=2))
    other(Node, 2, up_id=1)
    session = watched(autoflush=False)
    down = session.get_one(Node, 2)
    assert down.up.id == 1
    session.delete(down)
    if stale:
        other(Node, 2, name="theirs")
        assert {e.identity for e in refused(session).entries} == {(2,)}
        session.rollback()
        assert (stored(Node, 2)["name"], stored(Node, 2)["up_id"]) == ("theirs", 1)
    else:
        session.commit()
        assert stored(Node, 2) is None


# -- row switch ------------------------------------------------------------------------------------


@alive
@pytest.mark.parametrize("settle", ["reload", "give up"])
@pytest.mark.parametrize("count", [1, 3])
def test_after_a_replacement_was_refused_the_transaction_goes_on(
    store, watched, other, stored, refused, settle, count
):
    """SA-28: the new object stays dirty, in the version of the old one, until it is decided."""
    store(*(Doc(id=n, name="a") for n in range(count)), Doc(id=9, name="a"))
    session = watched(autoflush=False)
    session.get_one(Doc, 9).name = "beside"
    for n in range(count):
        session.delete(session.get_one(Doc, n))
    new = [Doc(id=n, name="ours") for n in range(count)]
    session.add_all(new)
    other(Doc, 0, name="theirs")
    for _ in range(2):
        assert [e.identity for e in refused(session).entries] == [(0,)]
    if settle == "reload":
        reload(session, new[0])
        assert (new[0].name, new[0].version) == ("theirs", 2)
        new[0].name = "again"
    else:
        session.expunge(new[0])
    session.commit()

    assert [stored(Doc, n)["name"] for n in range(1, count)] == ["ours"] * (count - 1)
    assert stored(Doc, 0)["name"] == ("again" if settle == "reload" else "theirs")
    assert stored(Doc, 9)["name"] == "beside"


@pytest.mark.parametrize("stale", [False, True])
def test_a_kid_that_is_replaced_under_its_key_is_a_checked_update(
    store, watched, other, stored, refused, stale
):
    """SA-28: the kid is an orphan, and the new one has its key."""
    store(Parent(id=1, kids=[Kid(id=1, name="a")]))
    session = watched(autoflush=False)
    session.get_one(Parent, 1).kids = [Kid(id=1, name="ours")]
    if stale:
        other(Kid, 1, name="theirs")
        assert [e.model for e in refused(session).entries] == [Kid]
        session.rollback()
        assert stored(Kid, 1)["name"] == "theirs"
    else:
        session.commit()
        assert stored(Kid, 1) == {"id": 1, "name": "ours", "parent_id": 1, "version": 2}


# -- inheritance -----------------------------------------------------------------------------------


def test_a_second_version_in_the_joined_table_is_refused():
    """SA-32, SA-33: SQLAlchemy warns that it will not fill one of the two."""

    class Base(DeclarativeBase):
        pass

    class Top(Versioned, Base):
        __tablename__ = "tops"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ConfigurationError, match="two version columns"):

        class Under(Top):
            __tablename__ = "unders"
            __version_token__ = Counter(name="revision")
            id: Mapped[int] = mapped_column(ForeignKey("tops.id"), primary_key=True)

    with pytest.raises(ConfigurationError):

        class Again(Top):
            __tablename__ = "agains"
            id: Mapped[int] = mapped_column(ForeignKey("tops.id"), primary_key=True)
            version: Mapped[int]


@alive
def test_a_stale_joined_row_is_noticed_when_read_with_a_lock_and_when_written(
    store, watched, other, refused
):
    """SA-49: after a refresh it can be written."""
    store(Dog(id=1, name="a"))
    session = watched(autoflush=False)
    dog = session.get_one(Dog, 1)
    other(Dog, 1, name="theirs")
    with pytest.raises(StaleDataError):
        session.get(Dog, 1, with_for_update=True)
    dog.tricks = "ours"
    refused(session)
    session.rollback()
    session.refresh(dog)
    dog.tricks = "again"
    session.commit()

    assert (dog.name, dog.tricks, dog.version) == ("theirs", "again", 3)


def test_a_joined_row_that_is_gone_is_not_written(store, watched, gone, stored, refused):
    """SA-50"""
    store(Dog(id=1, name="a", tricks="a"))
    session = watched()
    session.get_one(Dog, 1).tricks = "ours"
    gone(Dog, 1)
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.kind) == (Dog, "deleted")
    assert stored(Dog, 1) is None


# -- values that the database computes -------------------------------------------------------------


@pytest.mark.parametrize("beside", [{}, {"other": "b"}])
def test_an_expression_moves_the_version_like_a_value(store, watched, stored, beside):
    """SA-36: alone, and beside a plain value."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = func.upper("ours")
    for name, value in beside.items():
        setattr(doc, name, value)
    session.commit()
    doc.name = func.upper("again")
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("AGAIN", 3)
    assert (doc.name, doc.version) == ("AGAIN", 3)


def test_an_expression_is_not_written_over_a_stale_row(store, watched, other, stored, refused):
    """SA-36"""
    store(Doc(id=1, name="a"))
    session = watched()
    session.get_one(Doc, 1).name = Doc.name + literal("!")
    other(Doc, 1, name="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert entry.conflicting == {"name"}
    assert stored(Doc, 1)["name"] == "theirs"


# -- versions that the application makes -----------------------------------------------------------


def test_a_version_of_the_application_is_stored_as_it_says(tables, watched, stored):
    """SA-41: at the INSERT, and at the UPDATE; by SQLAlchemy's own setting."""
    tables(Own)
    session = watched()
    own = Own(id=1, name="a", version=7)
    session.add(own)
    session.commit()
    own.name, own.version = "b", 20
    session.commit()

    assert stored(Own, 1) == {"id": 1, "name": "b", "version": 20}


@pytest.mark.parametrize("moved", [True, False])
def test_a_version_of_the_application_is_checked_whether_it_moves_or_not(
    store, watched, other, stored, refused, moved
):
    """SA-42, SA-43"""
    store(Own(id=1, name="a", version=1))
    session = watched()
    own = session.get_one(Own, 1)
    other(Own, 1, name="theirs", version=2)
    own.name = "ours"
    if moved:
        own.version = 3
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.original["version"], entry.database["version"]) == (1, 2)
    assert stored(Own, 1) == {"id": 1, "name": "theirs", "version": 2}


@pytest.mark.parametrize("moved", [True, False])
def test_a_manual_token_is_checked_whether_it_moves_or_not(
    store, watched, other, stored, refused, moved
):
    """SA-41, SA-42, SA-43: and stored as it is assigned."""
    first, ours, theirs = (uuid.UUID(int=n) for n in (1, 2, 3))
    store(Contract(id=1, name="a", version=first))
    session = watched()
    contract = session.get_one(Contract, 1)
    contract.name = "b"
    session.commit()
    assert stored(Contract, 1)["version"] == first
    assert contract.name == "b"
    other(Contract, 1, name="theirs", version=theirs)
    contract.name = "ours"
    if moved:
        contract.version = ours
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.original["version"], entry.database["version"]) == (first, theirs)
    assert stored(Contract, 1)["name"] == "theirs"


@pytest.mark.parametrize("stale", [False, True])
def test_a_version_of_the_application_is_checked_for_the_joined_table_alone(
    store, watched, other, stored, refused, stale
):
    """SA-44: nothing of the base changes, and it is checked all the same."""
    store(OwnDog(id=1, tricks="a", version=1))
    session = watched()
    session.get_one(OwnDog, 1).tricks = "ours"
    if stale:
        other(OwnDog, 1, version=2)
        refused(session)
        session.rollback()
        assert stored(OwnDog, 1)["tricks"] == "a"
    else:
        session.commit()
        assert (stored(OwnDog, 1)["tricks"], stored(OwnDog, 1)["version"]) == ("ours", 1)


# -- versions that the database makes --------------------------------------------------------------


made = pytest.mark.parametrize("model", [Clock, Moved])


@made
@pytest.mark.parametrize("count", [1, 3])
def test_a_version_of_the_database_is_known_after_the_insert(
    tables, watched, stored, engine, count, model
):
    """SA-34: it comes with the INSERT, or is asked for at once; reading it sends nothing."""
    tables(model)
    session = watched()
    clocks = [model(id=n) for n in range(count)]
    session.add_all(clocks)
    session.flush()
    with count_statements(engine) as sent:
        versions = [clock.version for clock in clocks]
    session.commit()

    assert sent.count == 0
    assert versions == [stored(model, n)["version"] for n in range(count)]


@made
@pytest.mark.parametrize("count", [1, 3])
def test_a_version_of_the_database_is_known_after_the_update(
    store, watched, stored, engine, count, model
):
    """SA-35, SA-40: in the flush; read later it might be another writer's."""
    store(*(model(id=n) for n in range(count)))
    session = watched(expire_on_commit=False)
    clocks = session.scalars(select(model).order_by(model.id)).all()
    before = [clock.version for clock in clocks]
    for clock in clocks:
        clock.name = "a"
    session.flush()
    with count_statements(engine) as sent:
        versions = [clock.version for clock in clocks]
    session.commit()

    assert sent.count == 0
    assert versions == [stored(model, n)["version"] for n in range(count)]
    assert all(old < new for old, new in zip(before, versions, strict=True))


@made
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("act", [change_all, remove_all])
def test_a_version_of_the_database_is_checked_without_reading_the_row_again(
    store, watched, other, stored, count, act, model
):
    """SA-38, SA-40: for objects that no commit has expired."""
    store(*(model(id=n) for n in range(count)))
    session = watched(expire_on_commit=False)
    clocks = session.scalars(select(model).order_by(model.id)).all()
    for clock in clocks:
        clock.name = "a"
    session.commit()
    other(model, 0, name="theirs")
    act(session, clocks)

    assert [e.identity for e in told(session).entries] == [(0,)]
    session.rollback()
    assert stored(model, 0)["name"] == "theirs"


# -- names, and rows without a version -------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_a_version_may_have_a_name_that_looks_like_a_parameter(
    store, watched, other, stored, refused, count
):
    """SA-46: ``_version%id``, sqlalchemy#8056."""
    store(*(Odd(id=n) for n in range(count)))
    session = watched()
    odds = session.scalars(select(Odd).order_by(Odd.id)).all()
    for odd in odds:
        odd.name = "a"
    session.commit()
    assert [odd.version for odd in odds] == [2] * count
    session.delete(odds[0])
    other(Odd, 0, name="theirs")
    refused(session)
    session.rollback()

    assert stored(Odd, 0)["name"] == "theirs"
