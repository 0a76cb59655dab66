"""What a conflict tells: three values of every column, as plain values that nothing changes."""

from __future__ import annotations

import copy
import pickle

import pytest
from sqlalchemy import select

from optilock import ConcurrencyError, events
from tests.support.models import (
    Account,
    Dog,
    Eager,
    Kinds,
    Manager,
    Native,
    Note,
    Odd,
    Page,
    Seat,
    Settings,
    Stamped,
)

alive = pytest.mark.needs("resolves-in-place")


def conflict_of(session, refused):
    [entry] = refused(session).entries
    return entry


def test_the_three_values_of_every_column(store, watched, other, refused):
    store(Account(id=1, owner="a", balance=1, note="n"))
    session = watched()
    account = session.get_one(Account, 1)
    account.owner, account.balance = "ours", 10
    other(Account, 1, balance=5, note="theirs")
    entry = conflict_of(session, refused)

    assert (entry.model, entry.identity, entry.kind, entry.action) == (
        Account, (1,), "updated", "update",
    )  # fmt: skip
    assert entry.original == {"id": 1, "owner": "a", "balance": 1, "note": "n", "version": 1}
    assert entry.current == {"id": 1, "owner": "ours", "balance": 10, "note": "n", "version": 1}
    assert entry.database == {"id": 1, "owner": "a", "balance": 5, "note": "theirs", "version": 2}
    assert entry.changes == {"owner": "ours", "balance": 10}
    assert entry.conflicting == {"balance"}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_entries_are_the_same_however_many_rows_are_written(store, watched, other, refused, count):
    store(*(Account(id=n, owner="a", balance=1) for n in range(count)))
    session = watched()
    for row in session.scalars(select(Account)):
        row.balance = 10
    other(Account, 0, balance=5)
    entry = conflict_of(session, refused)

    assert entry.original == {"id": 0, "owner": "a", "balance": 1, "note": None, "version": 1}
    assert entry.database == {"id": 0, "owner": "a", "balance": 5, "note": None, "version": 2}
    assert (entry.changes, entry.conflicting) == ({"balance": 10}, {"balance"})


def test_what_was_set_back_is_no_change(store, watched, other, refused):
    store(Account(id=1, owner="a", balance=1))
    session = watched()
    account = session.get_one(Account, 1)
    account.owner, account.balance = "b", 10
    account.owner = "a"
    other(Account, 1, owner="theirs")
    entry = conflict_of(session, refused)

    assert (entry.changes, entry.conflicting) == ({"balance": 10}, frozenset())


def test_equal_changes_of_both_sides_do_not_conflict(store, watched, other, refused):
    store(Account(id=1, owner="a", balance=1))
    session = watched()
    account = session.get_one(Account, 1)
    account.owner, account.balance = "same", 10
    other(Account, 1, owner="same", balance=11)
    entry = conflict_of(session, refused)

    assert entry.changes == {"owner": "same", "balance": 10}
    assert entry.conflicting == {"balance"}


def test_a_null_is_a_value_like_others(store, watched, other, refused):
    store(Account(id=1, owner="a", note="n"))
    session = watched()
    account = session.get_one(Account, 1)
    account.owner, account.note = None, None
    other(Account, 1, owner="theirs", note=None)
    entry = conflict_of(session, refused)

    assert entry.changes == {"owner": None, "note": None}
    assert entry.conflicting == {"owner"}


def test_a_column_that_was_never_loaded_counts_as_changed_by_both(store, watched, other, refused):
    store(Account(id=1, owner="a", balance=1))
    session = watched()
    account = session.get_one(Account, 1)
    session.expire(account, ["owner"])
    account.owner = "ours"
    other(Account, 1, balance=5)
    entry = conflict_of(session, refused)

    assert "owner" in entry.conflicting or entry.original.get("owner") == "a"


def test_ignored_columns_never_conflict(store, watched, other, refused):
    store(Page(id=1, body="a", views=0))
    session = watched()
    page = session.get_one(Page, 1)
    page.body, page.views = "ours", 1
    other(Page, 1, body="theirs", views=7)
    entry = conflict_of(session, refused)

    assert entry.conflicting == {"body"}


def test_of_a_deleted_row_there_is_no_stored_value(store, watched, gone, refused):
    store(Account(id=1, owner="a"))
    session = watched()
    session.get_one(Account, 1).owner = "ours"
    gone(Account, 1)
    entry = conflict_of(session, refused)

    assert (entry.kind, entry.database, entry.conflicting) == ("deleted", None, frozenset())
    assert entry.changes == {"owner": "ours"}


def test_a_delete_that_met_a_change(store, watched, other, refused):
    """EC-10"""
    store(Account(id=1, owner="a"))
    session = watched()
    session.delete(session.get_one(Account, 1))
    other(Account, 1, owner="theirs")
    entry = conflict_of(session, refused)

    assert (entry.kind, entry.action) == ("updated", "delete")
    assert (entry.original["owner"], entry.database["owner"]) == ("a", "theirs")
    assert (dict(entry.changes), entry.conflicting) == ({}, frozenset())


def test_both_deleted(store, watched, gone, refused):
    store(Account(id=1, owner="a"))
    session = watched()
    session.delete(session.get_one(Account, 1))
    gone(Account, 1)
    entry = conflict_of(session, refused)

    assert (entry.kind, entry.action, entry.database) == ("deleted", "delete", None)


def test_the_version_may_have_another_name(store, watched, other, refused):
    store(Native(id=1, text="a"))
    session = watched()
    session.get_one(Native, 1).text = "b"
    other(Native, 1, text="theirs")
    entry = conflict_of(session, refused)

    assert entry.token == "revision"
    assert (entry.original["revision"], entry.database["revision"]) == (1, 2)
    assert entry.conflicting == {"text"}


def test_attributes_are_named_not_columns(store, watched, other, refused):
    store(Odd(id=1, name="a", select="s"))
    session = watched()
    session.get_one(Odd, 1).name = "b"
    other(Odd, 1, name="theirs", select="t")
    entry = conflict_of(session, refused)

    assert entry.database == {
        "id": 1, "name": "theirs", "select": "t", "colon": None, "version": 2,
    }  # fmt: skip


def test_the_identity_has_the_order_of_the_key(store, watched, other, refused):
    store(Seat(show="x", number=7), Seat(show="y", number=7))
    session = watched()
    for seat in session.scalars(select(Seat)):
        seat.guest = "me"
    other(Seat, ("y", 7), guest="theirs")

    assert conflict_of(session, refused).identity == ("y", 7)


def test_joined_tables_are_one_row(store, watched, other, refused):
    store(Dog(id=1, name="rex", tricks="sit"))
    session = watched()
    session.get_one(Dog, 1).tricks = "roll"
    other(Dog, 1, name="theirs")
    entry = conflict_of(session, refused)

    assert entry.model is Dog
    assert entry.database == {
        "id": 1, "kind": "dog", "name": "theirs", "tricks": "sit", "version": 2,
    }  # fmt: skip
    assert (entry.changes, entry.conflicting) == ({"tricks": "roll"}, frozenset())


def test_a_row_of_a_shared_table_is_of_its_own_class(store, watched, other, refused):
    store(Manager(id=1, name="a", budget=1))
    session = watched()
    session.get_one(Manager, 1).budget = 2
    other(Manager, 1, budget=3)
    entry = conflict_of(session, refused)

    assert (entry.model, entry.database["budget"], entry.conflicting) == (Manager, 3, {"budget"})


def test_what_onupdate_fills_in_is_not_our_change(store, watched, other, refused):
    store(Stamped(id=1, name="a"), Stamped(id=2, name="a"), Eager(id=1, name="a"))
    session = watched()
    for model, key in ((Stamped, 1), (Stamped, 2), (Eager, 1)):
        with session.no_autoflush:
            session.get_one(model, key).name = "b"
    other(Stamped, 1, born=9)
    other(Eager, 1, name="theirs")

    assert [dict(e.changes) for e in refused(session).entries] == [{"name": "b"}, {"name": "b"}]


def test_an_entry_can_be_pickled_and_copied(store, watched, other, refused):
    """EC-10"""
    store(Kinds(id=1, data={"a": 1}, short="x"))
    session = watched()
    row = session.get_one(Kinds, 1)
    row.data, row.short = {"b": [1]}, "y"
    other(Kinds, 1, data={"c": 1}, flag=True)
    error = refused(session)
    copied = pickle.loads(pickle.dumps(error))

    assert copied.entries == error.entries
    assert str(copied) == str(error)
    assert copy.deepcopy(error.entries[0]) == error.entries[0]


def test_an_entry_holds_no_object_of_the_session(store, watched, other, refused):
    """Plain values: nothing loads, nothing is attached, nothing can be changed through it."""
    store(Account(id=1, owner="a", balance=1))
    session = watched()
    account = session.get_one(Account, 1)
    account.balance = 10
    other(Account, 1, owner="theirs")
    entry = conflict_of(session, refused)
    session.close()

    assert entry.current["owner"] == "a"
    with pytest.raises(TypeError):
        entry.current["owner"] = "changed"


@alive
def test_values_that_are_changed_later_do_not_change_the_entry(store, watched, other, refused):
    store(Kinds(id=1, data={"a": [1]}))
    session = watched()
    row = session.get_one(Kinds, 1)
    row.data = {"b": [1]}
    other(Kinds, 1, data={"c": [1]})
    entry = conflict_of(session, refused)
    row.data["b"].append(2)

    assert entry.current["data"] == {"b": [1]}
    assert (entry.original["data"], entry.database["data"]) == ({"a": [1]}, {"c": [1]})


@pytest.mark.parametrize("count", [1, 2])
def test_the_original_of_a_value_that_is_changed_in_place_is_known(
    count, store, watched, other, refused
):
    """trap 31"""
    store(*(Settings(id=n, data={"a": 1}, name="x") for n in range(count)))
    session = watched()
    for row in session.scalars(select(Settings)):
        row.data["b"] = 2
    other(Settings, 0, data={"a": 1, "c": 3})
    entry = conflict_of(session, refused)

    assert entry.original["data"] == {"a": 1}
    assert entry.current["data"] == {"a": 1, "b": 2}
    assert entry.database["data"] == {"a": 1, "c": 3}
    assert entry.conflicting == {"data"}


def test_a_value_changed_in_place_on_our_side_alone_does_not_conflict(
    store, watched, other, refused
):
    store(Settings(id=1, data={"a": 1}, name="x"))
    session = watched()
    row = session.get_one(Settings, 1)
    row.data["b"] = 2
    other(Settings, 1, name="theirs")
    entry = conflict_of(session, refused)

    assert (entry.changes, entry.conflicting) == ({"data": {"a": 1, "b": 2}}, frozenset())


def test_the_message_names_the_row_the_columns_the_versions_and_what_to_do(
    store, watched, other, refused
):
    store(Account(id=1, owner="secret a"), Seat(show="x", number=2))
    session = watched(autoflush=False)
    session.get_one(Account, 1).owner = "secret b"
    session.get_one(Seat, ("x", 2)).guest = "secret c"
    other(Account, 1, owner="secret d")
    other(Seat, ("x", 2), guest="secret e")
    text = str(refused(session))

    for word in ("Account 1", "owner", "version 1", "stored is 2", "('x', 2)", "guest", "retry"):
        assert word in text
    assert "secret" not in text
    assert not any(word in text for word in ("WHERE", "SELECT", "SET", "?", "%"))


def test_the_message_of_a_hundred_rows_stays_short(store, watched, other, refused):
    store(*(Note(id=n, text="a") for n in range(100)))
    session = watched()
    for row in session.scalars(select(Note)):
        row.text = "b"
    for n in range(100):
        other(Note, n, text="theirs")
    error = refused(session)

    assert len(error.entries) == 100
    assert "100 rows" in str(error)
    assert len(str(error)) < 2000


def test_a_conflict_is_told_to_listeners_once(store, watched, other, refused):
    """EF-51"""
    store(Account(id=1, owner="a"), Account(id=2, owner="a"))
    session = watched()
    for row in session.scalars(select(Account)):
        row.owner = "b"
    other(Account, 2, owner="theirs")
    seen = []
    events.listen(seen.append, written=False)
    try:
        error = refused(session)
    finally:
        events.unlisten(seen.append)

    assert [type(event) for event in seen] in ([events.Conflict], [])
    if error.__cause__ is None:
        assert seen == [events.Conflict(error.entries)]


@alive
def test_reject_and_no_resolver_say_the_same(store, watched, other, refused):
    from optilock import reject

    store(Account(id=1, owner="a"))
    texts = []
    for turn, resolver in enumerate((None, reject)):
        session = watched(resolver)
        session.get_one(Account, 1).owner = "ours"
        other(Account, 1, owner=f"theirs {turn}")
        error = refused(session)
        texts.append(str(error).replace("2", "1").replace("3", "2"))
        session.close()

    assert texts[0].split("(")[0] == texts[1].split("(")[0]
    assert isinstance(error, ConcurrencyError)
