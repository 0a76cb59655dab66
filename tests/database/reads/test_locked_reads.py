"""Reads that lock the row of an object which is older than it."""

from __future__ import annotations

import pytest

from optilock import ConcurrencyError
from optilock.testing import count_statements
from tests.support.models import Account, Seat


@pytest.fixture
def older(store, watched, other):
    """An object whose row has moved since it was read, in a new transaction."""
    store(Account(id=1, owner="Ada"))
    session = watched()
    account = session.get_one(Account, 1)
    session.expunge(account)
    session.rollback()
    other(Account, 1, owner="theirs")
    session.add(account)
    return account, session


@pytest.mark.parametrize(
    "read",
    [
        lambda session, obj: session.get(Account, 1, with_for_update=True),
        lambda session, obj: session.get(Account, {"id": 1}, with_for_update={"read": True}),
        lambda session, obj: session.get_one(Account, (1,), with_for_update=True),
    ],
    ids=["get", "get by name", "get_one"],
)
def test_an_older_object_is_told_with_an_entry(older, read):
    """SA-09"""
    obj, session = older
    with pytest.raises(ConcurrencyError) as caught:
        read(session, obj)
    [entry] = caught.value.entries
    assert (entry.action, entry.identity) == ("verify", (1,))
    assert (entry.original["owner"], entry.database["owner"]) == ("Ada", "theirs")
    session.refresh(obj, with_for_update=True)
    obj.owner = "mine"
    session.commit()


def test_an_attribute_that_is_locked_and_read_again_leaves_the_object_to_conflict(older, refused):
    """The other attributes are as old as before."""
    obj, session = older
    session.refresh(obj, ["owner"], with_for_update=True)
    assert obj.owner == "theirs"
    obj.balance = 5
    assert refused(session).entries[0].original["version"] == 1


def test_an_attribute_of_a_row_as_it_was_read_can_be_locked_and_read(store, watched, engine):
    store(Account(id=1, owner="Ada"), Seat(show="a", number=1))
    session = watched()
    account, seat = session.get_one(Account, 1), session.get_one(Seat, ("a", 1))
    with count_statements(engine) as sent:
        session.refresh(account, ["owner"], with_for_update=True)
        assert session.get(Seat, ("a", 1), with_for_update=True) is seat
        assert session.get(Seat, ("b", 1), with_for_update=True) is None
    assert sent.count == 3
    account.owner = "mine"
    session.commit()
