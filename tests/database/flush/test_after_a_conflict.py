"""After a refused flush: what the session holds, and what can be done with it."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from optilock import ConcurrencyError, events, expect, verify
from tests.support.models import Account, Comment, Post, Tag

pytestmark = pytest.mark.modes

alive = pytest.mark.needs("resolves-in-place")


@pytest.fixture
def conflict(store, watched, other, refused):
    """A session whose account 1 is refused, and the error."""

    def conflict(act=None, **options):
        store(Account(id=1, owner="a", balance=1), Account(id=2, owner="b"))
        session = watched(**options)
        row = session.get_one(Account, 1)
        row.balance = 10
        other(Account, 1, owner="theirs")
        return session, row, refused(session, act and (lambda: act(session)))

    return conflict


def seen(session, row):
    with session.no_autoflush:
        session.refresh(row, with_for_update=True)


# -- deletes --------------------------------------------------------------------------------------


@alive
@pytest.mark.parametrize("look", ["refresh", "expire", "expire_all"])
def test_reading_a_row_anew_that_is_marked_deleted_does_not_delete_what_nobody_saw(
    store, watched, other, stored, look
):
    """The mark was set for the version that was seen then."""
    store(Account(id=1, owner="a"))
    session = watched()
    row = session.get_one(Account, 1)
    session.delete(row)
    other(Account, 1, owner="theirs")
    with pytest.raises(ConcurrencyError):
        getattr(session, look)(*([] if look == "expire_all" else [row]))
        session.commit()
    session.rollback()

    assert stored(Account, 1)["owner"] == "theirs"


@alive
def test_a_delete_can_be_decided_again(store, watched, other, refused, stored):
    store(Account(id=1, owner="a"))
    session = watched()
    row = session.get_one(Account, 1)
    session.delete(row)
    other(Account, 1, owner="theirs")
    refused(session)
    session.add(row)
    seen(session, row)
    assert row.owner == "theirs"
    session.delete(row)
    session.commit()

    assert stored(Account, 1) is None


@alive
def test_new_rows_and_deletes_of_a_refused_commit_are_kept(store, watched, other, refused, stored):
    store(Account(id=1), Account(id=2))
    session = watched()
    first, second = session.scalars(select(Account).order_by(Account.id)).all()
    first.balance = 1
    session.delete(second)
    session.add(Account(id=3))
    other(Account, 1, owner="theirs")
    refused(session, session.commit)
    seen(session, first)
    session.commit()

    assert (stored(Account, 2), stored(Account, 3)["id"]) == (None, 3)


# -- relationships --------------------------------------------------------------------------------


@alive
def test_collections_of_a_refused_row_are_kept(store, watched, other, refused, stored):
    store(Post(id=1, title="a", comments=[Comment(id=1, text="a")], tags=[Tag(id=1, name="x")]))
    session = watched(autoflush=False)
    post = session.get_one(Post, 1)
    assert (len(post.comments), len(post.tags)) == (1, 1)
    post.title = "ours"
    post.comments.append(Comment(id=2, text="new"))
    other(Post, 1, title="theirs")
    refused(session)

    assert [comment.id for comment in post.comments] == [1, 2]
    assert [tag.id for tag in post.tags] == [1]
    seen(session, post)
    session.commit()
    assert stored(Comment, 2)["post_id"] == 1


# -- savepoints -----------------------------------------------------------------------------------


@alive
def test_a_row_refused_in_a_savepoint_conflicts_again_after_it(
    store, watched, other, refused, stored
):
    """Going back to the savepoint expires the object; what was seen before counts."""
    store(Account(id=1, owner="a"))
    session = watched()
    row = session.get_one(Account, 1)
    other(Account, 1, owner="theirs")
    point = session.begin_nested()
    row.owner = "ours"
    refused(session)
    point.rollback()

    row.owner = "ours"
    refused(session, session.commit)
    session.rollback()
    assert stored(Account, 1)["owner"] == "theirs"


# -- leaving the session --------------------------------------------------------------------------


@alive
@pytest.mark.parametrize("leave", ["expunge_all", "close", "reset"])
def test_the_session_can_be_emptied_in_the_handler(conflict, stored, leave):
    session, row, _ = conflict()
    getattr(session, leave)()

    assert inspect(row).detached
    assert (row.balance, row.version) == (10, 1)
    session.commit()
    assert stored(Account, 1)["owner"] == "theirs"


@pytest.mark.parametrize("expire", [True, False])
def test_the_entry_goes_to_a_new_session(conflict, engine, expire, stored):
    """EX-07: nothing has to be typed again."""
    session, _, error = conflict(lambda session: session.commit(), expire_on_commit=expire)
    session.close()
    [entry] = error.entries
    with Session(engine) as fresh:
        entry.apply_to(fresh.get_one(Account, 1))
        fresh.commit()

    assert (stored(Account, 1)["balance"], stored(Account, 1)["owner"]) == (10, "theirs")


# -- what is told, in which order -----------------------------------------------------------------


@alive
def test_listeners_are_told_before_the_error_is_raised(conflict):
    told = []
    listener = events.listen(told.append, written=False)
    try:
        _, _, error = conflict()
    finally:
        events.unlisten(listener)

    assert [type(event) for event in told] == [events.Conflict]
    assert told[0].entries == error.entries


@alive
def test_an_unrelated_query_that_flushes_keeps_the_edits(conflict):
    session, row, _ = conflict(
        lambda session: session.scalars(select(Tag.id)).all(), autoflush=True
    )

    assert row in session.dirty
    assert (row.balance, row.version) == (10, 1)


# -- promises -------------------------------------------------------------------------------------


@alive
@pytest.mark.parametrize("promise", [verify, lambda row: expect(row, 1)], ids=["verify", "expect"])
def test_a_refused_write_keeps_no_promise(store, watched, other, refused, promise):
    """The promised row was not written, and is in another version."""
    store(Account(id=1, owner="a"))
    session = watched()
    row = session.get_one(Account, 1)
    row.balance = 10
    promise(row)
    other(Account, 1, owner="theirs")
    refused(session)
    seen(session, row)  # drops the edit
    with pytest.raises(ConcurrencyError):
        session.commit()


@alive
def test_what_was_written_before_the_refused_flush_keeps_its_promise(
    store, watched, other, refused, stored
):
    store(Account(id=1, owner="a"), Account(id=2, owner="b"))
    session = watched()
    first, second = session.get_one(Account, 1), session.get_one(Account, 2)
    other(Account, 2, owner="theirs")
    verify(first)
    first.balance = 1
    session.flush()
    first.balance, second.balance = 2, 2
    refused(session)
    session.expunge(second)
    session.commit()

    assert (stored(Account, 1)["balance"], stored(Account, 2)["balance"]) == (2, 0)
