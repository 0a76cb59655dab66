"""Policies for deletes: rows that are already gone, rows in whatever version."""

from __future__ import annotations

import pytest
from sqlalchemy import func, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, UnitOfWork, Versioned, events, reject, store_wins
from optilock.resolvers import OnDelete
from optilock.testing import count_statements
from tests.support.models import Account, Comment, Dog, Draft, Post, Tag, post_tags

pytestmark = pytest.mark.modes(full=True)

alive = pytest.mark.needs("resolves-in-place")
GONE, ANY = OnDelete.IGNORE_GONE, OnDelete.IGNORE_VERSION


def count(engine, table):
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(table))


def marked(session, model=Account):
    """All rows of the model are loaded and marked deleted."""
    rows = session.scalars(select(model).order_by(model.id)).all()
    for row in rows:
        session.delete(row)
    return rows


def must_not_be_asked(entry):
    raise AssertionError(f"a resolver was asked about {entry}")


# -- what each policy lets pass -------------------------------------------------------------------


@alive
@pytest.mark.parametrize("model", [Account, Dog, Post])
def test_what_is_ignored_is_no_entry_of_the_error_about_another_row(
    store, watched, other, gone, refused, model
):
    """Nor is it one when the updates of the same flush are looked at, too."""
    store(*(model(id=n) for n in (1, 2, 3)), Draft(id=1))
    session = watched(on_delete={model: GONE}, autoflush=False)
    marked(session, model)
    session.delete(session.get_one(Draft, 1))
    other(model, 2, **{"title" if model is Post else "note" if model is Account else "name": "b"})
    gone(model, 3)
    gone(Draft, 1)
    for _ in range(2):
        assert [(e.model, e.identity) for e in refused(session).entries] == [(model, (2,))]


@alive
@pytest.mark.parametrize("policy", [GONE, ANY])
@pytest.mark.parametrize("many", [1, 2, 10])
def test_a_row_that_is_gone_may_be_ignored(store, watched, gone, engine, policy, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched(must_not_be_asked, on_delete=policy)
    rows = marked(session)
    gone(Account, many - 1)
    session.commit()

    assert count(engine, Account) == 0
    assert all(inspect(row).detached for row in rows)


@alive
@pytest.mark.parametrize("many", [1, 2, 10])
def test_a_row_that_was_changed_may_be_deleted_all_the_same(store, watched, other, engine, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched(must_not_be_asked, on_delete=ANY)
    marked(session)
    other(Account, many - 1, owner="theirs")
    session.commit()

    assert count(engine, Account) == 0


@pytest.mark.parametrize("many", [1, 2])
def test_who_ignores_rows_that_are_gone_does_not_ignore_changes(
    store, watched, other, refused, stored, many
):
    store(*(Account(id=n) for n in range(many)))
    session = watched(on_delete=GONE)
    marked(session)
    other(Account, 0, owner="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.action, entry.kind) == ("delete", "updated")
    assert stored(Account, 0)["owner"] == "theirs"


@alive
def test_what_the_policy_does_not_settle_goes_to_the_resolver(store, watched, other, gone, stored):
    store(*(Account(id=n) for n in range(3)))
    session = watched(store_wins, on_delete=GONE)
    rows = marked(session)
    other(Account, 0, owner="theirs")
    gone(Account, 1)
    session.commit()

    assert stored(Account, 0)["owner"] == rows[0].owner == "theirs"
    assert (stored(Account, 1), stored(Account, 2)) == (None, None)


def test_updates_are_as_strict_as_ever(store, watched, other, refused):
    store(Account(id=1))
    session = watched(on_delete=ANY)
    session.get_one(Account, 1).balance = 1
    other(Account, 1, owner="theirs")

    assert [entry.action for entry in refused(session).entries] == ["update"]


@alive
def test_one_refused_row_keeps_the_others_from_being_deleted(
    store, watched, other, refused, stored
):
    """Nothing is corrected while a row of the flush is refused."""
    store(Account(id=1), Draft(id=1))
    session = watched(on_delete={Draft: ANY}, autoflush=False)
    marked(session)
    marked(session, Draft)
    other(Account, 1, owner="theirs")
    other(Draft, 1, text="theirs")
    refused(session)
    assert len(session.deleted) == 2
    session.rollback()

    assert stored(Draft, 1)["text"] == "theirs"


# -- whose policy counts --------------------------------------------------------------------------


@alive
def test_a_class_has_its_own_policy(store, watched, gone, engine):
    store(Draft(id=1))
    session = watched()
    marked(session, Draft)
    gone(Draft, 1)
    session.commit()

    assert count(engine, Draft) == 0


def test_the_session_goes_before_the_class(store, watched, gone, refused):
    store(Draft(id=1))
    session = watched(on_delete=OnDelete.STRICT)
    marked(session, Draft)
    gone(Draft, 1)

    assert [entry.kind for entry in refused(session).entries] == ["deleted"]


@alive
def test_in_a_mapping_the_nearest_class_counts(store, watched, other, refused, engine):
    store(Account(id=1), Draft(id=1))
    session = watched(on_delete={Versioned: ANY, Account: GONE}, autoflush=False)
    marked(session)
    marked(session, Draft)
    other(Draft, 1, text="theirs")
    session.commit()
    assert (count(engine, Account), count(engine, Draft)) == (0, 0)

    store(Account(id=1))
    marked(session)
    other(Account, 1, owner="theirs")
    refused(session)


@alive
def test_the_unit_of_work_goes_before_watch(store, engine, other):
    store(Account(id=1))
    sessions = sessionmaker(engine)
    with UnitOfWork(sessions, on_delete=ANY, on_conflict=reject) as session:
        marked(session)
        other(Account, 1, owner="theirs")

    assert count(engine, Account) == 0


# -- what hangs on the row ------------------------------------------------------------------------


def a_post(store):
    tags = [Tag(id=1, name="x")]
    store(Post(id=1, title="a", comments=[Comment(id=n) for n in (1, 2)], tags=tags))


def left(engine):
    return tuple(count(engine, table) for table in (Post, Comment, post_tags))


@alive
def test_a_changed_parent_is_deleted_with_its_children_and_links(store, watched, other, engine):
    a_post(store)
    session = watched(on_delete=ANY)
    marked(session, Post)
    other(Post, 1, title="theirs")
    session.commit()

    assert left(engine) == (0, 0, 0)


@alive
@pytest.mark.parametrize("policy", [GONE, ANY])
def test_a_parent_that_went_with_all_its_children_may_be_ignored(
    store, watched, gone, engine, policy
):
    """EC-13"""
    a_post(store)
    session = watched(on_delete=policy)
    post = session.get_one(Post, 1)
    assert (len(post.comments), len(post.tags)) == (2, 1)
    session.delete(post)
    gone(Post, 1)
    session.commit()

    assert left(engine) == (0, 0, 0)
    assert inspect(post).detached


@alive
def test_a_child_that_is_gone_does_not_hold_its_parent(store, watched, gone, engine):
    a_post(store)
    session = watched(on_delete={Comment: GONE})
    marked(session, Post)
    gone(Comment, 2)
    session.commit()

    assert left(engine) == (0, 0, 0)


@alive
@pytest.mark.parametrize("many", [1, 3])
def test_both_tables_of_a_changed_joined_row_are_deleted(store, watched, other, engine, many):
    store(*(Dog(id=n, name="a") for n in range(many)))
    session = watched(on_delete=ANY)
    marked(session, Dog)
    other(Dog, 0, name="theirs")
    session.commit()

    assert (count(engine, Dog.__table__), count(engine, Dog.__mapper__.tables[0])) == (0, 0)


# -- what it costs, what is told ------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 10])
def test_a_policy_sends_no_further_statement(store, watched, engine, many):
    store(*(Account(id=n) for n in range(many)))
    sent = []
    for policy in (None, ANY):
        session = watched(on_delete=policy)
        marked(session)
        with count_statements(engine) as statements:
            session.flush()
        session.rollback()
        sent.append([statement.text for statement in statements.statements])

    assert sent[0] == sent[1]


@alive
def test_listeners_are_told_what_was_ignored(store, watched, gone):
    store(Account(id=1))
    session = watched(on_delete=GONE)
    marked(session)
    gone(Account, 1)
    seen = []
    listener = events.listen(lambda event: seen.append(type(event)), written=False)
    try:
        session.commit()
    finally:
        events.unlisten(listener)

    assert seen == [events.Conflict, events.Resolved, events.SessionCommitted]


@pytest.mark.engines("mariadb-snapshot")
def test_where_the_database_ends_the_transaction_nothing_can_be_ignored(
    store, watched, gone, refused
):
    store(Account(id=1))
    session = watched(on_delete=ANY)
    marked(session)
    gone(Account, 1)

    assert [entry.kind for entry in refused(session).entries] == ["deleted"]


def test_a_session_that_is_not_watched_is_strict(store, engine, other):
    store(Draft(id=1))
    with Session(engine) as session:
        marked(session, Draft)
        other(Draft, 1, text="theirs")
        with pytest.raises((StaleDataError, DBAPIError)) as caught:
            session.commit()

    assert not isinstance(caught.value, ConcurrencyError)
