"""After the error: the transaction lives, what matched is written, what missed keeps its edits."""

from __future__ import annotations

import warnings

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError
from tests.support.models import Account, Comment, Kinds, Post, Settings, Stamped

pytestmark = pytest.mark.modes

alive = pytest.mark.needs("resolves-in-place")


def two(store):
    store(Account(id=1, owner="a", balance=1), Account(id=2, owner="b", balance=2))


def seen(session, obj):
    """Read the row again, with a lock: MariaDB's snapshot would show the old one."""
    with session.no_autoflush:
        session.refresh(obj, with_for_update=True)


def one_stale_of_two(store, watched, other, **options):
    """Account 1 is stale, account 2 is not; both are edited."""
    two(store)
    session = watched(**options)
    first, second = session.scalars(select(Account).order_by(Account.id)).all()
    first.balance, second.balance = 10, 20
    other(Account, 1, owner="theirs")
    return session, first, second


@alive
def test_the_session_goes_on(store, watched, other, refused):
    session, _, _ = one_stale_of_two(store, watched, other)
    transaction = session.get_transaction()
    refused(session)

    assert session.is_active
    assert session.get_transaction() is transaction
    with session.no_autoflush:
        assert session.scalar(select(Account.balance).where(Account.id == 2)) == 20


@alive
def test_the_message_begins_with_sqlalchemys_own_words(store, watched, other, refused):
    session, _, _ = one_stale_of_two(store, watched, other)
    message = str(refused(session))

    assert message.startswith(
        "UPDATE statement on table 'accounts' expected to update 2 row(s); 1 were matched.\n"
        "1 row was changed by another transaction"
    )


@alive
def test_a_refused_delete_says_in_sqlalchemys_words_how_many_rows_there_were(
    store, watched, other, refused
):
    two(store)
    session = watched()
    for account in session.scalars(select(Account)):
        session.delete(account)
    other(Account, 1, owner="theirs")
    message = str(refused(session))

    assert message.startswith(
        "DELETE statement on table 'accounts' expected to delete 2 row(s); 1 were matched.\n"
    )


@alive
def test_what_matched_is_written_and_clean(store, watched, other, refused):
    session, _, second = one_stale_of_two(store, watched, other)
    refused(session)

    assert second not in session.dirty
    assert (second.balance, second.version) == (20, 2)


@alive
def test_what_missed_is_dirty_with_its_history_and_its_old_version(store, watched, other, refused):
    """EC-04, trap 1"""
    session, first, _ = one_stale_of_two(store, watched, other)
    refused(session)

    assert list(session.dirty) == [first]
    assert session.is_modified(first)
    assert (first.balance, first.version, first.owner) == (10, 1, "a")
    history = inspect(first).attrs.balance.history
    assert (history.added, history.deleted) == ([10], [1])
    assert not inspect(first).attrs.owner.history.has_changes()
    assert not inspect(first).attrs.version.history.has_changes()


@alive
def test_the_next_flush_and_the_commit_conflict_again(store, watched, other, refused):
    """RL-06"""
    session, _, _ = one_stale_of_two(store, watched, other)
    for act in (session.flush, session.commit, session.flush, session.commit):
        [entry] = refused(session, act).entries
        assert (entry.identity, entry.changes) == ((1,), {"balance": 10})
        assert (entry.original["version"], entry.original["balance"]) == (1, 1)
        assert session.is_active


@alive
def test_the_second_error_counts_only_what_still_conflicts(store, watched, other, refused):
    two(store)
    session = watched()
    first, second = session.scalars(select(Account).order_by(Account.id)).all()
    first.balance, second.balance = 10, 20
    other(Account, 1, owner="theirs")
    other(Account, 2, owner="theirs")
    assert len(refused(session).entries) == 2
    seen(session, first)

    assert [entry.identity for entry in refused(session).entries] == [(2,)]


@alive
def test_refresh_heals(store, watched, other, refused, stored):
    session, first, _ = one_stale_of_two(store, watched, other)
    refused(session)
    seen(session, first)
    assert (first.balance, first.owner, first.version) == (1, "theirs", 2)
    first.balance = 11
    session.commit()

    assert stored(Account, 1) == {
        "id": 1, "owner": "theirs", "balance": 11, "note": None, "version": 3,
    }  # fmt: skip
    assert stored(Account, 2)["balance"] == 20


@alive
def test_expunge_heals(store, watched, other, refused, stored):
    session, first, _ = one_stale_of_two(store, watched, other)
    refused(session)
    session.expunge(first)
    session.commit()

    assert (stored(Account, 1)["balance"], stored(Account, 2)["balance"]) == (1, 20)


@alive
def test_apply_to_a_fresh_object_heals(store, watched, other, refused, stored):
    session, first, _ = one_stale_of_two(store, watched, other)
    [entry] = refused(session).entries
    seen(session, first)
    entry.apply_to(first)
    session.commit()

    assert (stored(Account, 1)["balance"], stored(Account, 1)["owner"]) == (10, "theirs")


def test_a_rollback_gives_the_stored_row(store, watched, other, refused, stored):
    session, first, second = one_stale_of_two(store, watched, other)
    refused(session)
    session.rollback()

    assert (first.owner, first.version, second.balance) == ("theirs", 2, 2)
    first.balance = 5
    session.commit()
    assert stored(Account, 1)["balance"] == 5


def test_the_whole_work_can_be_done_again_in_the_same_session(store, watched, other, refused):
    session, first, second = one_stale_of_two(store, watched, other)
    refused(session, session.commit)
    session.rollback()
    session.refresh(first)  # what is set without being read is still stale
    first.balance, second.balance = 10, 20
    session.commit()

    assert (first.version, second.version) == (3, 2)


@alive
def test_edits_of_an_object_that_nobody_references_are_kept(
    store, watched, other, refused, collect
):
    """The function that changed it has returned: only the session knows the object."""

    def edit():
        for row in session.scalars(select(Account)):
            row.balance = 77

    two(store)
    session = watched()
    edit()
    other(Account, 1, owner="theirs")
    collect()
    refused(session, session.commit)
    collect()

    [dirty] = session.dirty
    assert (dirty.id, dirty.balance) == (1, 77)
    refused(session, session.commit)


@alive
def test_a_row_marked_deleted_stays_marked(store, watched, other, refused, stored):
    """RL-06"""
    two(store)
    session = watched()
    first, second = session.scalars(select(Account).order_by(Account.id)).all()
    session.delete(first)
    session.delete(second)
    other(Account, 1, owner="theirs")
    [entry] = refused(session).entries

    assert (entry.identity, entry.action, entry.kind) == ((1,), "delete", "updated")
    assert list(session.deleted) == [first]
    assert inspect(second).deleted
    assert (1,) in [e.identity for e in refused(session, session.commit).entries]
    session.add(first)
    seen(session, first)
    session.commit()
    assert stored(Account, 1)["owner"] == "theirs"
    assert stored(Account, 2) is None


@alive
def test_autoflush_raises_from_the_query_and_the_edits_are_kept(store, watched, other, stored):
    session, first, _ = one_stale_of_two(store, watched, other)
    with pytest.raises(ConcurrencyError):
        session.scalars(select(Account)).all()

    assert session.is_active
    assert (first.balance, first in session.dirty) == (10, True)
    seen(session, first)
    assert (first.balance, first.owner, first.version) == (1, "theirs", 2)


@alive
def test_a_conflict_in_a_savepoint_leaves_the_work_outside_of_it(
    store, watched, other, refused, stored
):
    """EF-53"""
    two(store)
    session = watched()
    first, second = session.scalars(select(Account).order_by(Account.id)).all()
    other(Account, 1, owner="theirs")
    second.balance = 20
    session.flush()
    with pytest.raises(ConcurrencyError), session.begin_nested():
        first.balance = 10
        session.flush()

    assert session.is_active
    seen(session, first)
    assert (first.balance, second.balance) == (1, 20)
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 2)["balance"]) == ("theirs", 20)


@alive
def test_a_conflict_can_be_met_and_healed_inside_a_savepoint(store, watched, other, refused):
    two(store)
    session = watched()
    first, second = session.scalars(select(Account).order_by(Account.id)).all()
    second.balance = 20
    other(Account, 1, owner="theirs")
    with session.begin_nested():
        first.balance = 10
        refused(session)
        seen(session, first)
        first.balance = 11
    session.commit()

    assert (first.balance, first.owner, second.balance) == (11, "theirs", 20)


@alive
def test_dirty_rows_conflict_when_a_savepoint_begins(store, watched, other, stored):
    """trap 2"""
    session, first, _ = one_stale_of_two(store, watched, other)
    with pytest.raises(ConcurrencyError):
        session.begin_nested()

    assert session.is_active
    assert first in session.dirty
    seen(session, first)
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 2)["balance"]) == ("theirs", 20)


@alive
@pytest.mark.parametrize("expire", [True, False])
def test_objects_are_as_after_any_commit(store, watched, other, refused, expire):
    session, first, second = one_stale_of_two(store, watched, other, expire_on_commit=expire)
    refused(session)
    seen(session, first)
    first.balance = 11
    session.commit()

    assert inspect(first).expired is expire
    assert (first.balance, first.version, second.version) == (11, 3, 2)
    session.commit()
    first.balance = second.balance = 12
    session.commit()
    assert (first.version, second.version) == (4, 3)


@alive
def test_edits_of_every_kind_come_back(store, watched, other, refused, stored):
    store(Kinds(id=1, data={"a": 1}, short="a"), Kinds(id=2))
    session = watched()
    row = session.get_one(Kinds, 1)
    session.get_one(Kinds, 2).short = "x"
    row.data, row.short, row.flag = {"b": 2}, None, True
    other(Kinds, 1, big=1)
    for _ in range(2):
        [entry] = refused(session).entries
        assert entry.changes == {"data": {"b": 2}, "short": None, "flag": True}
    session.rollback()
    assert stored(Kinds, 1)["data"] == {"a": 1}


@alive
@pytest.mark.parametrize("count", [1, 2])
def test_an_sql_expression_comes_back_as_an_expression(
    count, store, watched, other, refused, stored
):
    store(*(Account(id=n, balance=5) for n in range(count)))
    session = watched()
    rows = session.scalars(select(Account).order_by(Account.id)).all()
    for row in rows:
        row.balance = Account.balance + 1
    other(Account, 0, owner="theirs")
    for _ in range(2):
        [entry] = refused(session).entries
        assert set(entry.changes) == {"balance"}
    seen(session, rows[0])
    rows[0].balance = Account.balance + 1
    session.commit()

    assert (stored(Account, 0)["balance"], stored(Account, 0)["owner"]) == (6, "theirs")


@alive
def test_a_value_that_onupdate_made_is_made_again(store, watched, other, refused, stored):
    store(Stamped(id=1, name="a"), Stamped(id=2, name="a"))
    session = watched()
    first, second = session.scalars(select(Stamped).order_by(Stamped.id)).all()
    first.name = second.name = "b"
    other(Stamped, 1, born=9)
    [entry] = refused(session).entries
    assert entry.changes == {"name": "b"}
    seen(session, first)
    first.name = "c"
    session.commit()

    assert (stored(Stamped, 1)["derived"], stored(Stamped, 1)["scalar"]) == ("c!", 7)
    assert stored(Stamped, 2)["derived"] == "b!"


@alive
def test_new_rows_of_a_refused_flush_are_written(store, watched, other, refused, stored):
    """trap 1"""
    session, first, _ = one_stale_of_two(store, watched, other)
    session.add(Account(id=3, owner="new"))
    refused(session)
    seen(session, first)
    session.commit()

    assert stored(Account, 3)["owner"] == "new"


@alive
def test_a_changed_parent_comes_back(store, watched, other, refused, stored):
    store(Post(id=1, title="one"), Post(id=2, title="two"), Comment(id=1, post_id=1, text="x"))
    session = watched()
    comment = session.get_one(Comment, 1)
    one, two = session.get_one(Post, 1), session.get_one(Post, 2)
    assert (comment.post, one.comments, two.comments) == (one, [comment], [])
    comment.post = two
    other(Comment, 1, text="theirs")
    [entry] = refused(session).entries
    assert entry.changes == {"post_id": 2}
    [entry] = refused(session).entries
    assert entry.changes == {"post_id": 2}
    seen(session, comment)
    comment.post = two
    session.commit()

    assert (stored(Comment, 1)["post_id"], stored(Comment, 1)["text"]) == (2, "theirs")


@alive
def test_an_object_that_misses_may_be_edited_on(store, watched, other, refused, stored):
    session, first, _ = one_stale_of_two(store, watched, other)
    refused(session)
    first.note = "more"
    first.balance = 1  # as it was

    [entry] = refused(session).entries
    assert entry.changes == {"note": "more"}


@alive
def test_flushing_one_object_alone_conflicts_only_for_it(store, watched, other, refused):
    session, first, second = one_stale_of_two(store, watched, other)
    with warnings.catch_warnings(action="ignore"):  # SQLAlchemy 2.1 deprecates it
        session.flush([second])
    assert second.version == 2
    assert first in session.dirty
    [entry] = refused(session).entries
    assert entry.identity == (1,)


def test_an_error_of_the_database_rolls_back_as_without_the_guard(store, watched, stored):
    two(store)
    session = watched()
    first = session.get_one(Account, 1)
    first.balance = 10
    session.execute(Account.__table__.insert().values(id=3, balance=0, version=1))
    session.add(Account(id=3, balance=0))
    with pytest.raises(IntegrityError):
        session.flush()
    session.rollback()

    assert (first.balance, first.version) == (1, 1)
    assert stored(Account, 3) is None
    first.balance = 10
    session.commit()
    assert stored(Account, 1)["balance"] == 10


def test_a_conflict_beside_an_error_of_the_database_is_the_error_with_that_cause(
    store, watched, other, refused, engine
):
    """The transaction is over, and the conflict is still told."""
    two(store)
    session = watched()
    first, second = session.scalars(select(Account).order_by(Account.id)).all()
    first.balance = second.balance = 10
    other(Account, 1, owner="theirs")
    first.owner = "ours"
    second.balance = None
    with pytest.raises((ConcurrencyError, IntegrityError)) as caught:
        session.flush()
    session.rollback()

    if isinstance(caught.value, ConcurrencyError):
        assert caught.value.__cause__ is not None
    assert first.owner == "theirs"


def test_an_unwatched_session_still_raises_sqlalchemys_own_error(store, other, engine):
    two(store)
    with Session(engine) as session:
        first = session.get_one(Account, 1)
        other(Account, 1, owner="theirs")
        first.balance = 10
        with pytest.raises((StaleDataError, DBAPIError)) as caught:
            session.flush()
        session.rollback()

    assert not isinstance(caught.value, ConcurrencyError)


@alive
def test_values_changed_in_place_come_back(store, watched, other, refused, stored):
    store(Settings(id=1, data={"a": 1}, name="x"), Settings(id=2, data={}))
    session = watched()
    row = session.get_one(Settings, 1)
    session.get_one(Settings, 2).data["b"] = 1
    row.data["b"] = 2
    other(Settings, 1, name="theirs")
    for _ in range(2):
        [entry] = refused(session).entries
        assert entry.changes == {"data": {"a": 1, "b": 2}}
    row.data["c"] = 3
    [entry] = refused(session).entries
    assert entry.changes == {"data": {"a": 1, "b": 2, "c": 3}}
