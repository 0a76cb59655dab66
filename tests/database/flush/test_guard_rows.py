"""One row, two, many: exactly the rows that missed are told, and only those are not written."""

from __future__ import annotations

import pytest

from optilock import Versioned
from optilock._watched.statements.bulk import rows_to_update
from optilock.dialects import database_of
from optilock.dialects.rows import judge
from optilock.tokens import Counter
from tests.support.models import Account, Native, Note, Odd, Ranked, Seat

pytestmark = pytest.mark.modes(full=True)

MANY = 25


def accounts(count):
    return [Account(id=n, owner=f"owner {n}", balance=n) for n in range(1, count + 1)]


def edit_all(session, model=Account, **values):
    rows = session.query(model).order_by(model.id).all()
    for row in rows:
        for name, value in values.items():
            setattr(row, name, value)
    return rows


def identities(error):
    return sorted(entry.identity for entry in error.entries)


@pytest.mark.parametrize("count", [1, 2, 3, MANY])
def test_rows_that_nobody_changed_are_written_and_their_versions_move(
    store, watched, stored, count
):
    """SA-05"""
    store(*accounts(count))
    session = watched()
    edit_all(session, balance=-1)
    session.commit()

    assert [stored(Account, n)["balance"] for n in range(1, count + 1)] == [-1] * count
    assert [stored(Account, n)["version"] for n in range(1, count + 1)] == [2] * count


@pytest.mark.parametrize("count", [1, 2, 3, MANY])
def test_every_stale_row_is_named(store, watched, other, refused, count):
    store(*accounts(count))
    session = watched()
    edit_all(session, balance=-1)
    for n in range(1, count + 1):
        other(Account, n, owner="theirs")

    assert identities(refused(session)) == [(n,) for n in range(1, count + 1)]


@pytest.mark.parametrize("count", [2, 3, MANY])
def test_one_stale_row_in_the_middle_is_found(store, watched, other, refused, count):
    """HB-25, DT-03"""
    store(*accounts(count))
    session = watched()
    edit_all(session, balance=-1)
    other(Account, count // 2 + 1, owner="theirs")

    assert identities(refused(session)) == [(count // 2 + 1,)]


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("count", [2, 3, MANY])
def test_the_rows_beside_a_stale_one_are_written(store, watched, other, stored, refused, count):
    store(*accounts(count))
    session = watched()
    rows = edit_all(session, balance=-1)
    other(Account, 2, owner="theirs")
    refused(session)
    session.expunge(rows[1])
    session.commit()

    assert stored(Account, 1)["balance"] == -1
    assert stored(Account, count)["balance"] == (-1 if count > 2 else 2)
    assert (stored(Account, 2)["balance"], stored(Account, 2)["owner"]) == (2, "theirs")


@pytest.mark.parametrize("stale", [None, 1, 2, 3, 4])
def test_rows_of_alternating_columns_are_each_written_as_asked(
    store, watched, other, stored, refused, stale
):
    store(*accounts(4))
    session = watched()
    for row in session.query(Account).order_by(Account.id):
        setattr(row, "owner" if row.id % 2 else "note", f"new {row.id}")
    if stale:
        other(Account, stale, balance=100)
        assert identities(refused(session)) == [(stale,)]
        return
    session.commit()

    assert [stored(Account, n)["owner"] for n in (1, 2, 3, 4)] == [
        "new 1", "owner 2", "new 3", "owner 4",
    ]  # fmt: skip
    assert [stored(Account, n)["note"] for n in (1, 2, 3, 4)] == [None, "new 2", None, "new 4"]


def test_rows_of_one_table_may_be_read_in_different_versions(store, watched, other, refused):
    """Versions 1, 2, 3 and 4 in one flush: each row is held to its own."""
    store(*accounts(4))
    for n in (2, 3, 4):
        for turn in range(n - 1):
            other(Account, n, balance=50 + turn)
    session = watched()
    edit_all(session, owner="ours")
    other(Account, 3, balance=0)
    error = refused(session)

    assert [(e.identity, e.original["version"]) for e in error.entries] == [((3,), 3)]


@pytest.mark.parametrize("count", [1, 2, MANY])
def test_a_row_that_now_carries_the_number_we_would_write_is_still_a_conflict(
    store, watched, other, stored, refused, count
):
    """Both writers count 1 -> 2: who looked only for rows without a 2 would see no conflict."""
    store(*accounts(count))
    session = watched()
    edit_all(session, balance=-1)
    other(Account, 1, balance=77)
    error = refused(session)
    session.rollback()

    assert identities(error) == [(1,)]
    assert (stored(Account, 1)["version"], stored(Account, 1)["balance"]) == (2, 77)


@pytest.mark.parametrize("count", [1, 2, MANY])
def test_a_row_that_is_gone_is_told_as_deleted(store, watched, gone, refused, count):
    store(*accounts(count))
    session = watched()
    edit_all(session, balance=-1)
    gone(Account, 1)
    [entry] = refused(session).entries

    assert (entry.identity, entry.kind, entry.action) == ((1,), "deleted", "update")
    assert entry.database is None


def test_gone_and_changed_rows_come_in_one_error(store, watched, other, gone, refused):
    store(*accounts(5))
    session = watched()
    edit_all(session, balance=-1)
    gone(Account, 2)
    other(Account, 4, owner="theirs")
    error = refused(session)

    assert {e.identity: e.kind for e in error.entries} == {(2,): "deleted", (4,): "updated"}


def test_rows_of_several_classes_come_in_one_error(store, watched, other, refused):
    store(*accounts(3), Note(id=1, text="a"), Note(id=2, text="b"), Seat(show="x", number=1))
    session = watched(autoflush=False)
    edit_all(session, balance=-1)
    edit_all(session, Note, text="c")
    session.get_one(Seat, ("x", 1)).guest = "me"
    other(Account, 2, owner="theirs")
    other(Note, 1, text="theirs")
    other(Seat, ("x", 1), guest="theirs")
    error = refused(session)

    assert {(e.model, e.identity) for e in error.entries} == {
        (Account, (2,)), (Note, (1,)), (Seat, ("x", 1)),
    }  # fmt: skip


def test_a_row_that_was_made_anew_does_not_pass_for_its_predecessor(
    store, watched, gone, engine, refused
):
    """trap 15, SA-30"""
    store(Note(id=1, text="a"), Note(id=2, text="a"))
    session = watched()
    edit_all(session, Note, text="b")
    gone(Note, 1)
    store(Note(id=1, text="another note"))
    [entry] = refused(session).entries

    assert (entry.identity, entry.database["text"]) == ((1,), "another note")


@pytest.mark.parametrize("count", [1, 3])
def test_a_class_with_only_version_id_col_is_guarded_as_it_is(
    store, watched, other, refused, count
):
    store(*(Native(id=n, text="a") for n in range(count)))
    session = watched()
    edit_all(session, Native, text="b")
    other(Native, 0, text="theirs")
    [entry] = refused(session).entries

    assert not issubclass(Native, Versioned)
    assert (entry.identity, entry.database["text"]) == ((0,), "theirs")


SEATS = [("b", 2), ("a", 1), ("b", 1), ("a", 2)]


@pytest.mark.parametrize("stale", [None, *SEATS])
def test_composite_keys_are_matched_as_pairs(store, watched, other, stored, refused, stale):
    store(*(Seat(show=show, number=number) for show, number in SEATS))
    session = watched()
    for seat in session.query(Seat):
        seat.guest = f"{seat.show}{seat.number}"
    if stale:
        other(Seat, stale, guest="theirs")
        assert identities(refused(session)) == [stale]
        return
    session.commit()

    assert [stored(Seat, key)["guest"] for key in SEATS] == ["b2", "a1", "b1", "a2"]


@pytest.mark.parametrize("count", [1, 3])
def test_names_that_need_quotes_are_written_and_checked(
    store, watched, other, stored, refused, count
):
    """RL-15, HB-05"""
    store(*(Odd(id=n, name="a", select="s", colon=n) for n in range(count)))
    session = watched()
    for row in edit_all(session, Odd, name="b"):
        setattr(row, "select" if row.id % 2 else "colon", 9)
    session.commit()
    edit_all(session, Odd, name="c")
    other(Odd, 0, name="theirs")

    assert identities(refused(session)) == [(0,)]
    assert (stored(Odd, 0)["colon"], stored(Odd, 0)["version"]) == (9, 3)
    assert Odd.__version_token__ == Counter(column="_version%id")


def test_unique_values_move_in_the_order_of_the_rows(store, watched, stored):
    """``rank = rank - 1`` of 2, 3, 4 …: each row's new value is free once the one before moved."""
    store(*(Ranked(id=n, rank=n + 1) for n in range(1, 6)))
    session = watched()
    for row in session.query(Ranked).order_by(Ranked.id):
        row.rank -= 1
    session.commit()

    assert [stored(Ranked, n)["rank"] for n in range(1, 6)] == [1, 2, 3, 4, 5]


def test_a_stale_row_explains_why_the_unique_value_of_the_next_one_is_taken(
    store, watched, other, refused
):
    """Row 1 keeps its rank, so row 2 collides: the conflict is told, not the collision."""
    store(*(Ranked(id=n, rank=n + 1) for n in range(1, 6)))
    session = watched()
    for row in session.query(Ranked).order_by(Ranked.id):
        row.rank -= 1
    other(Ranked, 1, name="theirs")

    assert (1,) in identities(refused(session))


@pytest.mark.parametrize("count", [1, 3])
def test_a_key_can_change(store, watched, stored, count):
    store(*accounts(count))
    session = watched()
    for row in edit_all(session, owner="moved"):
        row.id += 100
    session.commit()

    assert [stored(Account, n) is None for n in (1, 101)] == [True, False]
    assert (stored(Account, 101)["owner"], stored(Account, 101)["version"]) == ("moved", 2)


def test_a_changed_key_of_a_stale_row_is_a_conflict_of_the_old_key(
    store, watched, other, stored, refused
):
    """RL-13"""
    store(*accounts(3))
    session = watched()
    for row in edit_all(session, owner="moved"):
        row.id += 100
    other(Account, 2, owner="theirs")
    error = refused(session)
    session.rollback()

    assert identities(error) == [(2,)]
    assert stored(Account, 2)["owner"] == "theirs"
    assert stored(Account, 101) is None


@pytest.mark.engines("postgresql")
def test_more_rows_than_a_statement_has_parameters_are_looked_at_in_portions(store, engine):
    """65,535 is the most that PostgreSQL takes."""
    store(*accounts(2))
    rows = [{"id": n, "version": 1, "owner": "mine"} for n in range(1, 66_001)]
    writes = rows_to_update(Account, rows).writes(engine.dialect)
    with engine.begin() as connection:
        matched, missed = judge(database_of(engine.dialect), connection, writes)
    assert [write.params for write in matched] == [writes[0].params, writes[1].params]
    assert len(missed) == 65_998
