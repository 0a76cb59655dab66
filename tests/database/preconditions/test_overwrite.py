"""The last writer wins, for one object and by name."""

from __future__ import annotations

import pytest

from optilock import ConcurrencyError, ConfigurationError, expect, verify
from optilock.preconditions import overwrite
from optilock.testing import count_statements
from tests.support.models import Tag


def test_our_columns_go_over_theirs_and_theirs_stay(account, watched, other, stored):
    session = watched()
    ada = session.get_one(account, 1)
    overwrite(ada)
    ada.balance = 11
    other(account, 1, balance=20, note="theirs")
    session.commit()
    row = stored(account, 1)
    assert (row["balance"], row["note"], row["version"]) == (11, "theirs", 3)
    assert (ada.balance, ada.note) == (11, "theirs")


def test_nobody_was_faster_and_it_costs_nothing(account, watched, engine):
    session = watched()
    ada = session.get_one(account, 1)
    ada.balance = 11
    with count_statements(engine) as sent:
        overwrite(ada)
        session.flush()
    assert sent.count == 1


def test_it_is_said_of_one_row_and_of_one_transaction(account, watched, other, refused):
    session = watched()
    ada, bob = session.get_one(account, 1), session.get_one(account, 2)
    overwrite(ada)
    bob.owner = "mine"
    other(account, 2, owner="theirs")
    assert refused(session).entries[0].identity == (2,)
    session.rollback()

    ada = session.get_one(account, 1)
    ada.owner = "mine"
    other(account, 1, owner="theirs")
    assert refused(session).entries[0].identity == (1,)


def test_it_goes_before_every_resolver(account, watched, other, stored):
    def never(entry):
        raise AssertionError("nobody is asked")

    session = watched(on_conflict=never)
    ada = session.get_one(account, 1)
    ada.owner = "mine"
    overwrite(ada)
    other(account, 1, owner="theirs")
    session.commit()
    assert stored(account, 1)["owner"] == "mine"


def test_a_row_that_is_gone_is_inserted_again(account, watched, gone, stored):
    session = watched()
    ada = session.get_one(account, 1)
    overwrite(ada)
    ada.owner = "mine"
    gone(account, 1)
    session.commit()
    assert stored(account, 1)["owner"] == "mine"


def test_a_row_that_was_changed_is_deleted(account, watched, other, stored):
    session = watched()
    ada = session.get_one(account, 1)
    overwrite(ada)
    session.delete(ada)
    other(account, 1, owner="theirs")
    session.commit()
    assert stored(account, 1) is None


@pytest.mark.parametrize(
    "promise", [verify, lambda obj: expect(obj, version=1)], ids=["verify", "expect"]
)
def test_a_promise_is_the_opposite(account, watched, other, promise):
    session = watched()
    ada = session.get_one(account, 1)
    promise(ada)
    with pytest.raises(ConfigurationError, match="Leave one of them out"):
        overwrite(ada)
    session.rollback()

    ada = session.get_one(account, 1)
    overwrite(ada)
    promise(ada)  # it counts
    ada.owner = "mine"
    other(account, 1, owner="theirs")
    with pytest.raises(ConcurrencyError):
        session.flush()


@pytest.mark.engines("sqlite-wal")
def test_rows_without_a_version_are_written_so_anyway(store, watched, other, stored):
    store(Tag(id=1, name="a"))
    session = watched()
    tag = session.get_one(Tag, 1)
    overwrite(tag)
    tag.name = "mine"
    other(Tag, 1, name="theirs")
    session.commit()
    assert stored(Tag, 1)["name"] == "mine"
