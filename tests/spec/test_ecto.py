"""What Ecto's tests demand (integration_test/cases and test/ecto)."""

from __future__ import annotations

import pytest

from optilock import ConcurrencyError
from optilock.resolvers import OnDelete, Resolution
from tests.spec.models import Doc, Kid, Parent
from tests.spec.steps import alive, told


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
    [entry] = told(session).entries
    session.rollback()

    assert (entry.model, entry.action, entry.kind) == (Kid, "delete", "updated")
    assert stored(Kid, 1)["name"] == "theirs"
