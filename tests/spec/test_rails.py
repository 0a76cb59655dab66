"""What Rails' tests demand (activerecord/test/cases/locking_test.rb)."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect, select, update
from sqlalchemy.orm import sessionmaker
from sqlalchemy.orm.attributes import set_committed_value

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    client_wins,
    etag_of,
    expect,
    touch,
)
from optilock.statements import no_bump
from optilock.testing import count_statements
from tests.spec.models import Coded, Doc, Grown
from tests.spec.steps import alive, statement, stub, told
from tests.support.models import Account, Odd, Stamped
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


def test_a_stale_row_is_not_deleted_and_a_fresh_one_is(store, watched, other, stored, refused):
    """RL-05"""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    other(Doc, 1, name="theirs")
    session.delete(doc)
    refused(session)
    session.rollback()
    assert stored(Doc, 1)["name"] == "theirs"
    session.delete(session.get_one(Doc, 1))
    session.commit()

    assert stored(Doc, 1) is None


@alive
@both
def test_a_stale_object_stays_stale_however_often_it_is_saved(
    store, watched, other, stored, refused, act
):
    """RL-06"""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    other(Doc, 1, name="theirs")
    act(session, doc)
    for _ in range(3):
        [entry] = refused(session).entries
        assert entry.original["version"] == 1
    [entry] = refused(session, session.commit).entries
    session.rollback()

    assert stored(Doc, 1)["name"] == "theirs"


def test_a_stale_object_is_still_the_object_and_not_deleted(store, watched, other, stored, refused):
    """RL-32: a refused delete marks nothing as gone."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    session.delete(doc)
    other(Doc, 1, name="theirs")
    refused(session)
    session.rollback()

    assert inspect(doc).persistent
    assert doc.name == "theirs"


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
    """RL-09: None is nothing said; a number is refused, where SQLAlchemy would ignore it."""
    tables(Doc)
    with pytest.raises(ConfigurationError):
        Doc(id=1, version=42)
    session = watched()
    session.add(Doc(id=1, version=None))
    session.commit()

    assert stored(Doc, 1)["version"] == 1


# -- keys ------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("stale", [False, True])
def test_a_row_whose_key_is_being_changed_is_found_by_its_old_one(
    store, watched, other, stored, refused, act, stale
):
    """RL-13"""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.id = 2
    act(session, doc)
    if stale:
        other(Doc, 1, name="theirs")
        [entry] = refused(session).entries
        session.rollback()
        assert entry.identity == (1,)
        assert (stored(Doc, 1)["name"], stored(Doc, 2)) == ("theirs", None)
    else:
        session.commit()
        assert stored(Doc, 1) is None
        assert stored(Doc, 2) == (
            None if act is remove else {"id": 2, "name": "ours", "other": None, "version": 2}
        )


# -- the column ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 2, 42, "1"])
def test_a_version_that_is_assigned_is_refused_at_once(store, watched, stored, value):
    """RL-14, RL-22: Rails demands it, SQLAlchemy writes it; nothing is guessed here."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = "ours"
    with pytest.raises(ConfigurationError, match="assigning"):
        doc.version = value
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("ours", 2)


def test_the_column_of_the_version_may_have_another_name(store, watched, other, stored, refused):
    """RL-15"""
    store(Odd(id=1, name="a"))
    session = watched()
    session.get_one(Odd, 1).name = "ours"
    other(Odd, 1, name="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert Odd.__mapper__.version_id_col.name == "_version%id"
    assert (entry.original["version"], entry.database["version"]) == (1, 2)
    assert stored(Odd, 1)["name"] == "theirs"


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


# -- NULL in the table -----------------------------------------------------------------------------


@both
def test_a_row_without_a_version_is_refused_with_the_repair(store, watched, stored, engine, act):
    """RL-18, RL-20, RL-21: Rails reads NULL as 0; the object keeps its edit."""
    store(Grown(id=1, name="a"))
    statement(engine, Grown, 1, version=None)
    session = watched()
    row = session.get_one(Grown, 1)
    act(session, row)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="SET version = 1 WHERE version IS NULL"):
            session.flush()
    assert row in (session.dirty if act is edit else session.deleted)
    session.rollback()

    assert stored(Grown, 1) == {"id": 1, "name": "a", "version": None}


@pytest.mark.parametrize("take_away", ["assign", "delete"])
def test_a_version_is_not_taken_away(store, watched, stored, take_away):
    """RL-19"""
    store(Grown(id=1, name="a"))
    session = watched()
    row = session.get_one(Grown, 1)
    with pytest.raises(ConfigurationError):
        if take_away == "assign":
            row.version = None
        else:
            del row.version
    row.name = "ours"
    session.commit()

    assert stored(Grown, 1) == {"id": 1, "name": "ours", "version": 2}


def test_a_write_sends_no_statement_more(engine, tables, watched):
    """RL-23: one INSERT, one UPDATE, one DELETE, and no SELECT beside them."""
    tables(Doc)
    session = watched(expire_on_commit=False)
    doc = Doc(id=1, name="a")
    session.add(doc)
    with count_statements(engine) as sent:
        session.commit()
        doc.name = "b"
        session.commit()
        session.delete(doc)
        session.commit()

    assert [s.text.split()[0] for s in sent.statements] == ["INSERT", "UPDATE", "DELETE"]


def test_a_save_without_changes_writes_nothing(engine, store, watched, stored):
    """RL-25"""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = "a"
    with count_statements(engine) as sent:
        session.commit()

    assert sent.count == 0
    assert stored(Doc, 1)["version"] == 1


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


def test_a_touch_of_a_stale_row_is_a_conflict(store, watched, other, stored, refused):
    """RL-10"""
    store(Doc(id=1, name="a"))
    session = watched()
    touch(session.get_one(Doc, 1))
    other(Doc, 1, name="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.action, entry.changes) == ("update", {})
    assert stored(Doc, 1)["version"] == 2


def test_bookkeeping_does_not_move_the_version_inside_its_block(store, watched, stored):
    """RL-12: nor outside of it is anything held still."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = "before"
    with no_bump(session):
        doc.other = "inside"
    assert doc.version == 2
    doc.name = "after"
    session.commit()

    assert stored(Doc, 1) == {"id": 1, "name": "after", "other": "inside", "version": 3}


def test_bookkeeping_on_a_stale_row_is_a_conflict_all_the_same(
    store, watched, other, stored, refused
):
    """RL-12: Rails lets it pass; what does not move the version still must not overwrite."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    other(Doc, 1, name="theirs")
    with pytest.raises(ConcurrencyError), no_bump(session):
        doc.name = "ours"
    session.rollback()

    assert stored(Doc, 1)["name"] == "theirs"


@pytest.mark.parametrize("stale", [False, True])
def test_a_form_brings_back_the_etag_that_it_was_shown(store, engine, other, stored, stale):
    """RL-16: and its edit is made for that version or not at all."""
    store(Doc(id=1, name="a"))
    with UnitOfWork(sessionmaker(engine)) as session:
        form = {"etag": etag_of(session.get_one(Doc, 1)), "name": "ours"}
    if stale:
        other(Doc, 1, other="theirs")
    sessions = sessionmaker(engine)
    if stale:
        with (
            pytest.raises(PreconditionFailed) as caught,
            UnitOfWork(sessions, on_conflict=client_wins) as session,
        ):
            submit(session, form)
        assert caught.value.entries[0].database["other"] == "theirs"
    else:
        with UnitOfWork(sessions) as session:
            submit(session, form)

    assert stored(Doc, 1)["name"] == ("a" if stale else "ours")


def submit(session, form):
    doc = session.get_one(Doc, 1)
    expect(doc, form["etag"])
    doc.name = form["name"]
