"""What Rails' tests demand (activerecord/test/cases/locking_test.rb)."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm.attributes import set_committed_value

from optilock import (
    ConfigurationError,
    etag_of,
    touch,
)
from tests.spec.models import Coded, Doc
from tests.spec.steps import stub, told
from tests.support.models import Account, Stamped
from tests.support.tags import version_text

# -- rows that exist -------------------------------------------------------------------------------


def edit(session, row):
    row.name = "ours"


def remove(session, row):
    session.delete(row)


both = pytest.mark.parametrize("act", [edit, remove])


@both
def test_a_row_whose_key_is_a_text_is_checked(store, watched, other, stored, refused, act):
    """RL-03: its update and its delete."""
    store(Coded(code="a", name="a"))
    session = watched()
    act(session, session.get_one(Coded, "a"))
    other(Coded, "a", name="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.identity, stored(Coded, "a")["name"]) == (("a",), "theirs")


# -- new rows --------------------------------------------------------------------------------------


def test_a_new_row_has_a_version_and_moves_it(tables, watched, other, stored, refused):
    """RL-07, RL-17: the first is 1, also where the table has no default for it."""
    tables(Doc)
    assert Doc.__table__.c.version.server_default is None
    session = watched()
    doc = Doc(id=1, name="a")
    session.add(doc)
    session.commit()
    assert doc.version == 1
    doc.name = "b"
    session.commit()
    assert doc.version == 2
    other(Doc, 1, name="theirs")
    set_committed_value(doc, "version", 2)
    doc.name = "ours"
    told(session)
    session.rollback()

    assert stored(Doc, 1)["name"] == "theirs"


def test_the_version_of_a_new_row_is_not_chosen(tables, watched, stored):
    """RL-09, trap 14: None says nothing; a number is refused, where SQLAlchemy ignores it."""
    tables(Doc)
    with pytest.raises(ConfigurationError):
        Doc(id=1, version=42)
    session = watched()
    session.add(Doc(id=1, version=None))
    session.commit()

    assert stored(Doc, 1)["version"] == 1


# -- the column ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", [False, True])
def test_a_version_goes_to_a_form_and_comes_back(store, watched, other, stored, stale):
    """RL-16: as text, to a program that has read nothing in between."""
    store(Doc(id=1, name="a"))
    session = watched()
    form = {"version": version_text(etag_of(session.get_one(Doc, 1))), "name": "ours"}
    session.close()
    if stale:
        other(Doc, 1, name="theirs")
    stub(session, Doc, int(form["version"]), id=1).name = form["name"]
    if stale:
        told(session)
        session.rollback()
    session.commit()

    assert stored(Doc, 1)["name"] == ("theirs" if stale else "ours")


# -- rollbacks -------------------------------------------------------------------------------------


def test_after_a_rollback_the_object_has_the_stored_version(store, watched, stored):
    """RL-33: rails#57363; its next save is no conflict with itself."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = "b"
    session.flush()
    assert doc.version == 2
    session.rollback()
    assert (doc.version, doc.name) == (1, "a")
    doc.name = "c"
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("c", 2)


def test_a_new_object_whose_insert_was_rolled_back_can_be_saved(tables, watched, stored):
    """RL-33"""
    tables(Doc)
    session = watched()
    doc = Doc(id=1, name="a")
    session.add(doc)
    session.flush()
    session.rollback()
    session.add(doc)
    session.commit()
    doc.name = "b"
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("b", 2)


@pytest.mark.parametrize("before", [0, 1])
def test_after_a_savepoint_the_object_has_the_version_that_it_had_there(
    store, watched, stored, before
):
    """RL-34, RL-35: rails#57400, rails#58001: the savepoint's, not that of the beginning."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    if before:
        doc.name = "before"
        session.flush()
    savepoint = session.begin_nested()
    doc.name = "inside"
    session.flush()
    assert doc.version == 2 + before
    savepoint.rollback()
    assert doc.version == 1 + before
    doc.name = "after"
    session.commit()

    assert doc.version == stored(Doc, 1)["version"] == 2 + before
    assert stored(Doc, 1)["name"] == "after"


@pytest.mark.parametrize("autoflush", [True, False])
@pytest.mark.parametrize(
    "lock",
    [
        lambda session: session.get(Doc, 1, with_for_update=True),
        lambda session: session.scalars(select(Doc).with_for_update()).one(),
    ],
)
def test_a_row_that_is_locked_while_it_is_dirty_keeps_its_edits(
    store, watched, stored, lock, autoflush
):
    """RL-36: Rails raises. Only ``refresh`` drops edits, which is what it says."""
    store(Doc(id=1, name="a"))
    session = watched(autoflush=autoflush)
    doc = session.get_one(Doc, 1)
    doc.name = "ours"
    lock(session)
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("ours", 2)


@pytest.mark.parametrize("step", [1, -1])
def test_counters_that_are_moved_by_a_statement_move_the_version(
    store, watched, stored, refused, step
):
    """RL-30: one column or two; who holds the row as it was must look again."""
    store(Account(id=1, balance=5), Account(id=2, balance=5))
    session, theirs = watched(), watched()
    held = session.get_one(Account, 2)
    theirs.execute(update(Account).values(balance=Account.balance + step))
    theirs.execute(
        update(Account).where(Account.id == 2).values(balance=Account.balance + step, note="b")
    )
    theirs.commit()
    held.note = "ours"
    refused(session)
    session.rollback()

    assert (stored(Account, 1)["balance"], stored(Account, 1)["version"]) == (5 + step, 2)
    assert (stored(Account, 2)["balance"], stored(Account, 2)["version"]) == (5 + 2 * step, 3)


# -- touch -----------------------------------------------------------------------------------------


def test_a_touch_moves_the_version_and_what_goes_with_every_write(store, watched, other, stored):
    """RL-10: and the object knows it, so its next save is no conflict."""
    store(Stamped(id=1, name="a"))
    session = watched()
    row = session.get_one(Stamped, 1)
    touch(row)
    session.commit()
    assert (stored(Stamped, 1)["version"], stored(Stamped, 1)["scalar"]) == (2, 7)
    row.name = "b"
    session.commit()

    assert stored(Stamped, 1)["version"] == row.version == 3
