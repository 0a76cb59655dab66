"""What EF Core's tests demand (test/EFCore.Specification.Tests), told with two sessions."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    sessionmaker,
)

from optilock import ConcurrencyError, Versioned, events, retrying, store_wins, unit_of_work
from tests.spec.models import (
    Address,
    Blob,
    Contact,
    Doc,
    Firm,
    Kid,
    Parent,
    Placed,
)
from tests.spec.steps import alive, go_on, reload, statement, stub, take, told
from tests.support.models import Animal, Dog, Note


@pytest.fixture
def heard():
    found = []
    listener = events.listen(found.append, written=False)
    yield found
    events.unlisten(listener)


# -- both changed the row --------------------------------------------------------------------------


def with_store_values(session, doc, entry):
    take(session, doc, entry.database)


def with_new_values(session, doc, entry):
    take(session, doc, entry.database)
    doc.name = "new"


def using_reload(session, doc, entry):
    reload(session, doc)


def with_client_values(session, doc, entry):
    reload(session, doc)
    entry.apply_to(doc)


@pytest.mark.parametrize(
    ("settle", "name", "version"),
    [
        (with_store_values, "theirs", 2),
        (with_new_values, "new", 3),
        (using_reload, "theirs", 2),
        (with_client_values, "ours", 3),
    ],
)
def test_a_conflict_can_be_settled_by_hand_in_every_way(
    store, watched, other, stored, refused, settle, name, version
):
    """EF-03, EF-04, EF-06: what the other did, what I did, how it was settled, what is stored."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    other(Doc, 1, name="theirs")
    doc.name = "ours"
    [entry] = refused(session).entries
    settle(session, doc, entry)
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == (name, version)
    assert (doc.name, doc.version) == (name, version)


def test_after_the_conflict_each_original_may_be_set_by_hand(
    store, watched, other, stored, refused
):
    """EF-40: the version that the entry has seen is taken for ours, and the edit is saved."""
    store(Note(id=1, text="a"))
    session = watched()
    note = session.get_one(Note, 1)
    note.text = "ours"
    other(Note, 1, text="theirs")
    [entry] = refused(session).entries
    take(session, note, {"version": entry.database["version"]})
    note.text = "ours"
    session.commit()

    assert stored(Note, 1)["text"] == "ours"
    assert stored(Note, 1)["version"] not in (
        entry.original["version"],
        entry.database["version"],
    )


@pytest.mark.parametrize("act", ["update", "delete"])
def test_a_token_that_was_null_is_compared_as_null(store, watched, engine, stored, refused, act):
    """EF-01: the other has set it in the meantime; NULL is found by IS NULL."""
    store(Placed(id=1, name="a", address=Address("a", None)))
    session = watched()
    placed = session.get_one(Placed, 1)
    placed.name = "b"
    session.commit()
    assert placed.address.city is None
    if act == "update":
        placed.name = "ours"
    else:
        session.delete(placed)
    statement(engine, Placed, 1, city="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.original["city"], entry.database["city"]) == (None, "theirs")
    assert stored(Placed, 1)["name"] == "b"


def test_a_part_of_a_composite_may_be_the_token(store, watched, engine, refused):
    """EF-14: efcore#13890; the entry names the parts of the value, and a reload takes them."""
    store(Placed(id=1, address=Address("a", "a")))
    session = watched()
    placed = session.get_one(Placed, 1)
    assert placed.address.city == "a"
    statement(engine, Placed, 1, city="theirs")
    placed.address = Address("ours", "ours")
    [entry] = refused(session).entries
    reload(session, placed)

    assert (entry.model, entry.conflicting) == (Placed, {"street", "city"})
    assert placed.address == Address("a", "theirs")


# -- relationships ---------------------------------------------------------------------------------


def test_conflicts_of_a_kid_and_its_parent_come_together(store, watched, other, stored, refused):
    """EF-08: the other changed the kid and then the parent; one error names both."""
    store(Parent(id=1, name="a", kids=[Kid(id=1, name="a")]))
    session = watched(autoflush=False)
    kid, parent = session.get_one(Kid, 1), session.get_one(Parent, 1)
    other(Kid, 1, name="theirs")
    other(Parent, 1, name="theirs")
    kid.name = parent.name = "ours"
    entries = refused(session).entries
    reload(session, kid)
    reload(session, parent)
    kid.name = "again"
    session.commit()

    assert {(e.model, e.identity) for e in entries} == {(Kid, (1,)), (Parent, (1,))}
    assert (stored(Kid, 1)["name"], stored(Parent, 1)["name"]) == ("again", "theirs")


def test_a_relationship_that_both_point_elsewhere_is_a_conflict_of_its_owner(
    store, watched, engine, refused
):
    """EF-10"""
    store(*(Parent(id=n) for n in (1, 2, 3)), Kid(id=1, parent_id=1))
    session = watched(autoflush=False)
    kid, ours = session.get_one(Kid, 1), session.get_one(Parent, 2)
    with Session(engine) as theirs, theirs.begin():
        theirs.get_one(Kid, 1).parent = theirs.get_one(Parent, 3)
    kid.parent = ours
    [entry] = refused(session).entries
    reload(session, kid)

    assert (entry.model, entry.conflicting) == (Kid, {"parent_id"})
    assert (entry.original["parent_id"], entry.current["parent_id"]) == (1, 2)
    assert entry.database["parent_id"] == 3
    assert kid.parent.id == 3


# -- deletes ---------------------------------------------------------------------------------------


def undelete_by_reload(session, doc, entry):
    go_on(session)
    session.add(doc)
    session.refresh(doc, with_for_update=True)


def undelete_with_store_values(session, doc, entry):
    go_on(session)
    session.add(doc)
    take(session, doc, entry.database)


@pytest.mark.parametrize("settle", [undelete_by_reload, undelete_with_store_values])
def test_a_row_that_the_other_changed_is_not_deleted_and_can_be_kept(
    store, watched, other, stored, refused, settle
):
    """EF-17, EF-18"""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    other(Doc, 1, name="theirs")
    session.delete(doc)
    [entry] = refused(session).entries
    settle(session, doc, entry)
    assert not session.deleted
    session.commit()

    assert (entry.action, entry.kind) == ("delete", "updated")
    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("theirs", 2)
    assert doc.name == "theirs"


# -- reload ----------------------------------------------------------------------------------------


def test_a_new_object_is_not_reloaded_and_stays_new(store, watched, stored):
    """EF-21: SQLAlchemy says that there is nothing to reload."""
    store(Doc(id=1))
    session = watched()
    doc = Doc(id=2, name="ours")
    session.add(doc)
    with session.no_autoflush, pytest.raises(InvalidRequestError):
        session.refresh(doc)
    assert doc in session.new
    session.commit()

    assert stored(Doc, 2)["name"] == "ours"


def test_the_reload_of_a_row_that_is_gone_says_so(store, watched, gone, stored):
    """EF-22: EF detaches; SQLAlchemy raises, and the object is taken out by hand."""
    store(Doc(id=1))
    session = watched()
    doc = session.get_one(Doc, 1)
    session.commit()
    gone(Doc, 1)
    with pytest.raises(InvalidRequestError):
        session.refresh(doc)
    session.expunge(doc)
    session.commit()

    assert inspect(doc).detached
    assert stored(Doc, 1) is None


def test_a_detached_object_whose_row_is_gone_stays_detached(store, watched, gone, stored):
    """EF-25"""
    store(Doc(id=1))
    session = watched()
    doc = session.get_one(Doc, 1)
    session.expunge(doc)
    gone(Doc, 1)
    with pytest.raises(InvalidRequestError):
        session.refresh(doc)

    assert inspect(doc).detached


@alive
def test_a_reload_drops_the_delete_mark_once_it_is_taken_back(store, watched, other, stored):
    """EF-27: ``session.add`` takes the mark off; the refresh alone would flush the delete first."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    session.delete(doc)
    other(Doc, 1, name="theirs")
    session.add(doc)
    reload(session, doc)
    session.commit()

    assert not session.deleted
    assert stored(Doc, 1)["name"] == doc.name == "theirs"


def test_a_detached_object_is_reloaded_once_it_is_back(store, watched, other):
    """EF-29"""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    session.expunge(doc)
    session.commit()
    doc.name = "ours"
    other(Doc, 1, name="theirs")
    session.add(doc)
    with session.no_autoflush:
        session.refresh(doc)

    assert inspect(doc).persistent
    assert doc not in session.dirty
    assert (doc.name, doc.version) == ("theirs", 2)


def test_a_reload_takes_the_parts_of_a_composite_too(store, watched, other, refused):
    """EF-31"""
    store(Contact(id=1, address=Address("a", "a")))
    session = watched()
    contact = session.get_one(Contact, 1)
    other(Contact, 1, address=Address("theirs", "b"))
    contact.address = Address("ours", "a")
    [entry] = refused(session).entries
    reload(session, contact)

    assert contact.address == Address("theirs", "b")
    assert entry.changes == {"street": "ours"}
    assert entry.conflicting == {"street", "city"}
    assert (entry.database["street"], entry.database["city"]) == ("theirs", "b")


# -- parts of a row --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Contact, Firm])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"name": "theirs"}, {"address": Address("ours", "ours")}),
        ({"address": Address("theirs", "theirs")}, {"name": "ours"}),
    ],
)
def test_a_change_of_the_composite_alone_conflicts_with_one_of_its_owner(
    store, watched, other, stored, refused, model, theirs, ours
):
    """EF-33: there is one version, whichever part moves it."""
    store(model(id=1, name="a", address=Address("a", "a")))
    session = watched()
    contact = session.get_one(model, 1)
    other(model, 1, **theirs)
    [(name, value)] = ours.items()
    setattr(contact, name, value)
    [entry] = refused(session).entries
    reload(session, contact)
    setattr(contact, name, value)
    session.commit()

    assert (entry.model, entry.conflicting) == (model, frozenset())
    assert (stored(model, 1)["version"], contact.version) == (3, 3)
    assert getattr(contact, next(iter(theirs))) == next(iter(theirs.values()))


def test_a_composite_that_is_replaced_keeps_the_version_that_was_loaded(
    store, watched, other, stored, refused
):
    """EF-38: efcore#14539."""
    store(Contact(id=1, address=Address("a", "a")))
    session = watched()
    contact = session.get_one(Contact, 1)
    other(Contact, 1, name="theirs")
    contact.address = Address("b", "a")
    contact.address = Address("c", "c")
    [entry] = refused(session).entries
    session.rollback()

    assert entry.original["version"] == 1
    assert entry.changes == {"street": "c", "city": "c"}
    assert stored(Contact, 1)["street"] == "a"


# -- keys and stubs --------------------------------------------------------------------------------


@pytest.mark.parametrize("between", [lambda session: None, lambda session: session.flush()])
def test_a_row_can_be_deleted_and_made_again_under_its_key(store, watched, stored, between):
    """EF-41: in one flush and in two; one object is tracked."""
    store(Doc(id=1, name="a"))
    session = watched()
    session.delete(session.get_one(Doc, 1))
    between(session)
    new = Doc(id=1, name="new")
    session.add(new)
    session.commit()

    assert session.get(Doc, 1) is new
    assert [obj for obj in session if isinstance(obj, Doc)] == [new]
    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("new", new.version)


def test_of_a_row_that_was_not_read_only_the_column_that_was_set_is_written(store, watched, stored):
    """EF-42"""
    store(Doc(id=1, name="a", other="b"))
    session = watched()
    doc = stub(session, Doc, 1, id=1)
    doc.name = "ours"
    session.commit()

    assert {k: v for k, v in stored(Doc, 1).items() if k != "id"} == {
        "name": "ours", "other": "b", "version": 2,
    }  # fmt: skip


def test_a_row_that_was_not_read_is_held_to_the_version_that_is_named(
    store, watched, other, stored
):
    """EF-44"""
    store(Doc(id=1, name="a"))
    other(Doc, 1, name="theirs")
    session = watched()
    stub(session, Doc, 1, id=1).name = "ours"
    [entry] = told(session).entries
    session.rollback()

    assert (entry.original, entry.database["version"]) == ({"id": 1, "version": 1}, 2)
    assert entry.conflicting == {"name"}
    assert stored(Doc, 1)["name"] == "theirs"


@pytest.mark.parametrize("act", ["update", "delete"])
@pytest.mark.parametrize("matches", [True, False])
def test_bytes_are_compared_by_value(store, watched, stored, act, matches):
    """EF-45, EF-46: an equal copy matches, another value does not, and the row is intact."""
    store(Blob(id=1, name="a"))
    version = stored(Blob, 1)["version"]
    seen = bytes(bytearray(version)) if matches else bytes(8)
    session = watched()
    blob = stub(session, Blob, seen, id=1)
    if act == "update":
        blob.name = "ours"
    else:
        session.delete(blob)
    if matches:
        session.commit()
        assert (stored(Blob, 1) or {"name": None})["name"] == ("ours" if act == "update" else None)
    else:
        [entry] = told(session).entries
        session.rollback()
        assert entry.database["version"] == version
        assert stored(Blob, 1) == {"id": 1, "name": "a", "version": version}


def test_a_stub_of_a_row_that_is_gone_is_not_deleted_in_silence(store, watched):
    """EF-47"""
    store(Doc(id=1))
    session = watched()
    session.delete(stub(session, Doc, 1, id=7))
    [entry] = told(session).entries

    assert (entry.identity, entry.action, entry.kind) == ((7,), "delete", "deleted")


# -- hooks -----------------------------------------------------------------------------------------


@alive
def test_what_a_listener_hears_comes_in_order(engine, store, other, stored, heard):
    """EF-51, EF-52: conflict, resolved, committed; and no error reaches the caller."""
    store(Doc(id=1, name="a"))

    @unit_of_work(sessionmaker(engine), on_conflict=store_wins)
    def edit(session):
        doc = session.get_one(Doc, 1)
        other(Doc, 1, name="theirs")
        doc.name = "ours"

    edit()

    assert [type(e) for e in heard] == [events.Conflict, events.Resolved, events.Committed]
    assert heard[0].entries == heard[1].entries
    assert stored(Doc, 1)["name"] == "theirs"


# -- transactions and retries ----------------------------------------------------------------------


def test_after_a_failed_save_in_a_transaction_a_corrected_one_succeeds(
    store, watched, other, stored, refused
):
    """EF-53: what was saved before is kept, unless the database has ended the transaction."""
    store(Doc(id=1, name="a"), Doc(id=2, name="a"))
    session = watched()
    one, two = session.get_one(Doc, 1), session.get_one(Doc, 2)
    one.name = "ours"
    other(Doc, 2, name="theirs")
    if session.bind.dialect.name != "sqlite":  # where one writer at a time writes
        session.flush()
    two.name = "ours"
    ended = refused(session).__cause__ is not None
    reload(session, two)
    two.name = "corrected"
    session.commit()

    assert stored(Doc, 1)["name"] == ("a" if ended else "ours")
    assert stored(Doc, 2)["name"] == "corrected"


def test_the_question_whether_to_retry_gets_the_real_error(engine, store, other, stored):
    """EF-54: and the unit runs twice."""
    store(Doc(id=1, name="a"))
    asked, ran = [], []

    def ask(error):
        asked.append(error)
        return isinstance(error, ConcurrencyError)

    @unit_of_work(sessionmaker(engine), retry=retrying(on=ask, wait_initial=0))
    def edit(session):
        ran.append(session)
        doc = session.get_one(Doc, 1)
        if len(ran) == 1:
            other(Doc, 1, other="theirs")
        doc.name = "ours"

    edit()

    assert [e.entries[0].identity for e in asked] == [(1,)]
    assert len(ran) == 2
    assert ran[0] is not ran[1]
    assert (stored(Doc, 1)["name"], stored(Doc, 1)["other"]) == ("ours", "theirs")


# -- who has the version ---------------------------------------------------------------------------


def test_classes_that_share_a_table_share_its_version(store, watched, engine, stored, refused):
    """EF-56: single-table classes have the base's column, joined ones none of their own."""

    class Base(DeclarativeBase):
        pass

    class Order(Versioned, Base):
        __tablename__ = "spec_orders"
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        name: Mapped[int | None]

    class Detail(Versioned, Base):
        __table__ = Order.__table__

    store(Order(id=1))
    session = watched()
    detail = session.get_one(Detail, 1)
    with Session(engine) as theirs, theirs.begin():
        theirs.get_one(Order, 1).name = 2
    detail.name = 1

    assert refused(session).entries[0].model is Detail
    assert "version" in Animal.__table__.c
    assert "version" not in Dog.__table__.c
    assert Firm.__mapper__.version_id_col is Contact.__table__.c.version
