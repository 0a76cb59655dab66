"""What Ecto's tests demand (integration_test/cases and test/ecto)."""

from __future__ import annotations

import pickle

import pytest
from sqlalchemy.exc import IntegrityError

from optilock import ConcurrencyError, ConfigurationError
from optilock.resolvers import OnDelete, Resolution
from optilock.testing import count_statements
from tests.spec.models import Counted, Doc, Grown, Kid, Parent
from tests.spec.steps import alive, statement, told


def edit(session, row):
    row.name = "ours"


def remove(session, row):
    session.delete(row)


both = pytest.mark.parametrize("act", [edit, remove])


@both
def test_updates_and_deletes_are_checked(store, watched, other, stored, refused, act):
    """EC-01: with the version that was read they succeed, with an older one they do not."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.other = "first"
    session.commit()
    assert doc.version == 2
    act(session, doc)
    other(Doc, 1, name="theirs")
    refused(session)
    session.rollback()
    assert stored(Doc, 1)["name"] == "theirs"
    session.refresh(doc)
    act(session, doc)
    session.commit()

    assert stored(Doc, 1) == (
        None if act is remove else {"id": 1, "name": "ours", "other": "first", "version": 4}
    )


def test_a_row_without_a_version_is_not_deleted(store, watched, stored, engine):
    """EC-03: Ecto reads nil as 1."""
    store(Grown(id=1, name="a"))
    statement(engine, Grown, 1, version=None)
    session = watched()
    session.delete(session.get_one(Grown, 1))
    with pytest.raises(ConfigurationError, match="Grown"):
        session.commit()
    session.rollback()

    assert stored(Grown, 1)["name"] == "a"


@alive
def test_the_new_version_appears_when_the_statement_runs(store, watched, other, refused):
    """EC-04: not before, and not when it was refused."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = "ours"
    assert doc.version == 1
    other(Doc, 1, name="theirs")
    [entry] = refused(session).entries

    assert (entry.original["version"], doc.version, doc.name) == (1, 1, "ours")


def test_a_version_may_count_in_another_way(store, watched, stored):
    """EC-06: downwards."""
    store(Counted(id=1))
    session = watched()
    row = session.get_one(Counted, 1)
    row.name = "ours"
    session.commit()

    assert (row.version, stored(Counted, 1)["version"]) == (0, 0)


def test_without_a_change_there_is_no_update(store, watched, stored, engine):
    """EC-09: ecto#3744."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = "b"
    doc.name = "a"
    with count_statements(engine) as sent:
        session.commit()

    assert sent.count == 0
    assert stored(Doc, 1)["version"] == 1


@both
def test_the_error_has_what_was_to_be_written(store, watched, other, refused, act):
    """EC-10: as plain values that survive a pickle."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    act(session, doc)
    other(Doc, 1, name="theirs")
    [entry] = pickle.loads(pickle.dumps(refused(session))).entries

    assert (entry.model, entry.identity, entry.kind) == (Doc, (1,), "updated")
    assert entry.action == ("update" if act is edit else "delete")
    assert entry.changes == ({"name": "ours"} if act is edit else {})


def test_an_insert_of_a_key_that_exists_is_no_stale_entry(store, watched):
    """EC-10: Ecto's stale insert is the database's integrity error here."""
    store(Doc(id=1, name="a"))
    session = watched()
    session.add(Doc(id=1))
    with pytest.raises(IntegrityError) as caught:
        session.commit()

    assert not isinstance(caught.value, ConcurrencyError)


@alive
def test_a_conflict_may_be_told_in_ones_own_words(store, watched, other):
    """EC-12: the reason of a resolver is a note on the error."""
    store(Doc(id=1, name="a"))
    session = watched(lambda entry: Resolution.reject(reason="somebody else has this open"))
    session.get_one(Doc, 1).name = "ours"
    other(Doc, 1, name="theirs")
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()

    assert any("somebody else has this open" in note for note in caught.value.__notes__)


# -- deletes that do not mind ----------------------------------------------------------------------


def a_family(store):
    store(Parent(id=1, name="a", kids=[Kid(id=1), Kid(id=2)]))


@alive
@pytest.mark.parametrize("policy", [None, OnDelete.IGNORE_GONE])
def test_a_delete_of_a_row_that_is_gone_succeeds_where_it_may(store, watched, gone, stored, policy):
    """EC-13: and what the delete cascades to goes as well."""
    a_family(store)
    session = watched(None, policy)
    session.delete(session.get_one(Parent, 1))
    gone(Parent, 1)
    if policy is None:
        told(session)
    else:
        session.commit()
        assert [stored(Parent, 1), stored(Kid, 1), stored(Kid, 2)] == [None] * 3


@alive
@pytest.mark.parametrize("policy", [None, OnDelete.IGNORE_GONE])
def test_a_kid_that_is_taken_away_and_was_gone_is_a_conflict_unless_that_is_ignored(
    store, watched, gone, stored, policy
):
    """EC-14: ``on_replace: :delete`` and ``:delete_if_exists``."""
    a_family(store)
    session = watched(None, policy)
    parent = session.get_one(Parent, 1)
    parent.kids.remove(parent.kids[0])
    gone(Kid, 1)
    if policy is None:
        [entry] = told(session).entries
        assert (entry.model, entry.action, entry.kind) == (Kid, "delete", "deleted")
    else:
        session.commit()
        assert [kid.id for kid in parent.kids] == [2]
        assert stored(Kid, 1) is None


@alive
def test_a_delete_that_may_find_nothing_still_minds_a_change(store, watched, other, stored):
    """EC-14"""
    a_family(store)
    session = watched(None, OnDelete.IGNORE_GONE)
    parent = session.get_one(Parent, 1)
    parent.kids.remove(parent.kids[0])
    other(Kid, 1, name="theirs")
    told(session)
    session.rollback()

    assert stored(Kid, 1)["name"] == "theirs"
