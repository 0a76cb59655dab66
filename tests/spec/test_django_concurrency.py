"""What django-concurrency's tests demand (tests/*.py)."""

from __future__ import annotations

import datetime
import decimal
import threading
import uuid

import pytest
from sqlalchemy import delete, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, load_only, mapped_column, sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Versioned,
    client_wins,
    reject,
    retrying,
    store_wins,
    unit_of_work,
)
from optilock.check import check
from optilock.statements import unchanged
from optilock.tokens import RowVersion
from tests.spec.models import Address, Doc, Moved, Node, Placed
from tests.spec.steps import alive, statement, told
from tests.support.migrating import migrate
from tests.support.models import Colour, Kinds, Note

KINDS = {
    "big": (1, 2**40, 3),
    "flag": (None, True, False),
    "real": (0.1, 0.2, 0.3),
    "price": tuple(decimal.Decimal(n) for n in ("0.10", "0.20", "0.30")),
    "short": ("a", "b", "c"),
    "upper": ("a", "b", "c"),
    "blob": (b"a", b"\0", b"c"),
    "day": tuple(datetime.date(2020, 1, n) for n in (1, 2, 3)),
    "clock": tuple(datetime.time(n) for n in (1, 2, 3)),
    "moment": tuple(datetime.datetime(2020, 1, 1, n) for n in (1, 2, 3)),
    "span": tuple(datetime.timedelta(n) for n in (1, 2, 3)),
    "token": tuple(uuid.UUID(int=n) for n in (1, 2, 3)),
    "tag": tuple(uuid.UUID(int=n) for n in (1, 2, 3)),
    "colour": (None, Colour.red, Colour.green),
    "word": (None, Colour.red, Colour.green),
    "data": ({"a": 1}, {"a": 2}, {"a": [3]}),
}


def test_a_column_of_any_type_may_be_the_one_that_both_change(store, watched, engine, refused):
    """DJ-01: one row a type, and each entry has the three values."""
    store(*(Kinds(id=n, **{name: v[0]}) for n, (name, v) in enumerate(KINDS.items())))
    session, theirs = watched(), watched()
    mine = session.scalars(select(Kinds).order_by(Kinds.id)).all()
    yours = theirs.scalars(select(Kinds).order_by(Kinds.id)).all()
    for ours_row, their_row, (name, values) in zip(mine, yours, KINDS.items(), strict=True):
        setattr(their_row, name, values[1])
        setattr(ours_row, name, values[2])
    theirs.commit()
    entries = sorted(refused(session).entries, key=lambda entry: entry.identity)

    assert [e.conflicting for e in entries] == [{name} for name in KINDS]
    for entry, (name, values) in zip(entries, KINDS.items(), strict=True):
        assert (entry.original[name], entry.database[name], entry.current[name]) == values


def test_zero_is_a_version_like_any_other(store, watched, other, refused, stored, engine):
    """DJ-02: django-concurrency may take it for "no version"; nothing switches the check off."""
    store(Doc(id=1, name="a"))
    statement(engine, Doc, 1, version=0)
    session = watched()
    session.get_one(Doc, 1).name = "ours"
    other(Doc, 1, name="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.original["version"], entry.database["version"]) == (0, 1)
    assert stored(Doc, 1)["name"] == "theirs"


@pytest.mark.parametrize("stale", [False, True])
def test_a_save_of_one_column_checks_and_moves_the_version(
    store, watched, other, stored, refused, stale
):
    """DJ-03: django-concurrency#213; also where nothing else was read."""
    store(Doc(id=1, name="a", other="a"))
    session = watched()
    doc = session.scalars(select(Doc).options(load_only(Doc.name))).one()
    doc.name = "ours"
    if stale:
        other(Doc, 1, other="theirs")
        refused(session)
        session.rollback()
    else:
        session.commit()

    assert stored(Doc, 1) == {
        "id": 1,
        "name": "a" if stale else "ours",
        "other": "theirs" if stale else "a",
        "version": 2,
    }


def test_only_named_columns_may_be_compared(store, watched, stored, engine, refused):
    """DJ-05: a change of another one is no conflict, of a named one it is."""
    store(Placed(id=1, name="a", address=Address("a", "a")))
    session = watched()
    placed = session.get_one(Placed, 1)
    statement(engine, Placed, 1, street="theirs")
    if session.bind.url.get_backend_name() != "mysql":  # whose snapshot would be the news
        placed.name = "ours"
        session.commit()
        assert (stored(Placed, 1)["name"], stored(Placed, 1)["street"]) == ("ours", "theirs")
        assert placed.address.street == "theirs"
    statement(engine, Placed, 1, city="theirs")
    placed.name = "again"
    [entry] = refused(session).entries

    assert (entry.original["city"], entry.database["city"]) == ("a", "theirs")


def test_a_class_that_refers_to_itself_is_checked(store, watched, other, stored, refused):
    """DJ-05"""
    store(Node(id=1, name="a"), Node(id=2, name="a", up_id=1))
    session = watched(autoflush=False)
    up, down = session.get_one(Node, 1), session.get_one(Node, 2)
    up.name = down.name = "ours"
    other(Node, 1, name="theirs")

    assert [e.identity for e in refused(session).entries] == [(1,)]


@alive
def test_the_check_is_relaxed_for_one_class_and_one_session_only(store, watched, other, stored):
    """DJ-10: there is no switch for all; other classes and sessions are still checked."""
    store(Doc(id=1, name="a"), Note(id=1, text="a"))
    session = watched({Doc: client_wins})
    doc, note = session.get_one(Doc, 1), session.get_one(Note, 1)
    other(Doc, 1, name="theirs")
    other(Note, 1, text="theirs")
    doc.name = "ours"
    session.commit()
    assert stored(Doc, 1)["name"] == "ours"
    assert note.text == "theirs"
    other(Note, 1, text="again")
    note.text = "ours"
    told(session)
    session.rollback()
    elsewhere = watched()
    doc = elsewhere.get_one(Doc, 1)
    other(Doc, 1, name="theirs")
    doc.name = "mine"
    told(elsewhere)


@pytest.mark.parametrize("way", ["token", "mapper_args"])
def test_a_subclass_cannot_leave_the_check(way):
    """DJ-11: a row that may be either class would be protected by chance."""

    class Base(DeclarativeBase):
        pass

    class Top(Versioned, Base):
        __tablename__ = "tops"
        id: Mapped[int] = mapped_column(primary_key=True)

    if way == "token":
        with pytest.raises(ConfigurationError):

            class Loose(Top):
                __version_token__ = None

    else:

        class Kept(Top):
            __mapper_args__ = {"version_id_col": None}

        assert Kept.__mapper__.version_id_col is Top.__table__.c.version


@alive
@pytest.mark.parametrize("policy", [store_wins, reject])
def test_of_rows_edited_as_a_list_the_others_are_saved_or_none(
    engine, store, other, stored, policy
):
    """DJ-15: silently without the changed row, or nothing at all: by the unit's resolver."""
    store(*(Doc(id=n, name="a") for n in (1, 2, 3)))

    @unit_of_work(sessionmaker(engine), attempts=1, on_conflict=policy)
    def edit_all(session):
        for doc in session.scalars(select(Doc).order_by(Doc.id)).all():
            if doc.id == 2:
                other(Doc, 2, name="theirs")
            doc.name = "ours"
            hold.append(doc)

    hold = []
    if policy is reject:
        with pytest.raises(ConcurrencyError):
            edit_all()
    else:
        edit_all()

    expected = ["a", "theirs", "a"] if policy is reject else ["ours", "theirs", "ours"]
    assert [stored(Doc, n)["name"] for n in (1, 2, 3)] == expected


def test_of_many_threads_that_count_no_step_is_lost(engine, store, stored):
    """DJ-17"""
    store(Doc(id=1, name="0"))
    threads, steps, failed = 10, 5, []

    @unit_of_work(
        sessionmaker(engine), retry=retrying(attempts=200, wait_initial=0.001, wait_max=0.01)
    )
    def count(session):
        doc = session.get_one(Doc, 1)
        doc.name = str(int(doc.name) + 1)

    def work():
        try:
            for _ in range(steps):
                count()
        except Exception as error:
            failed.append(error)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()

    assert failed == []
    assert stored(Doc, 1) == {"id": 1, "name": "50", "other": None, "version": 51}


def test_rows_are_loaded_from_a_dump_with_their_versions(tables, watched, other, stored, refused):
    """DJ-18: an INSERT into the table stores what it says, and the check goes on from there."""
    tables(Doc)
    session = watched()
    session.execute(insert(Doc.__table__), [{"id": 1, "name": "a", "version": 7}])
    session.commit()
    session.get_one(Doc, 1).name = "ours"
    other(Doc, 1, name="theirs")
    [entry] = refused(session).entries

    assert (entry.original["version"], entry.database["version"]) == (7, 8)


def test_a_trigger_that_is_missing_is_found(tables, engine):
    """DJ-18: by ``optilock check``; operations of a migration make and drop it."""
    tables(Moved)
    codes = {f.code for f in check(Moved, engine) if f.subject == "spec_moved"}
    assert "no-trigger" not in codes
    migrate(engine, lambda op: op.drop_version_trigger("spec_moved", RowVersion()))
    [missing] = [f for f in check(Moved, engine) if f.code == "no-trigger"]

    assert missing.subject == "spec_moved"


@pytest.mark.parametrize("checked", [True, False])
def test_an_action_by_a_statement_skips_rows_that_were_changed_if_it_is_told_what_was_seen(
    store, watched, other, stored, checked
):
    """DJ-16: a DELETE by a condition checks nothing but the condition."""
    store(*(Doc(id=n, name="a") for n in (1, 2, 3)))
    session = watched(expire_on_commit=False)
    docs = session.scalars(select(Doc)).all()
    session.commit()
    other(Doc, 2, name="theirs")
    action = delete(Doc).where(unchanged(*docs)) if checked else delete(Doc)
    session.execute(action)
    session.commit()

    left = [n for n in (1, 2, 3) if stored(Doc, n)]
    assert left == ([2] if checked else [])
