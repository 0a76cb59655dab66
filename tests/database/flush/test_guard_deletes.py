"""Deletes, and all that hangs on a row: judged before it is written, and never half."""

from __future__ import annotations

import pytest
from sqlalchemy import func, inspect, select, text
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import Session

from optilock import ConcurrencyError, client_wins, store_wins
from tests.support.models import (
    Account,
    Comment,
    Dog,
    File,
    Folder,
    Note,
    Page,
    Player,
    Post,
    Tag,
    Team,
    post_tags,
)

pytestmark = pytest.mark.modes(full=True)

alive = pytest.mark.needs("resolves-in-place")


def count(engine, table):
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(table))


def a_post(store):
    tags = [Tag(id=1, name="x"), Tag(id=2, name="y")]
    comments = [Comment(id=n, text="a") for n in (1, 2)]
    store(Post(id=1, title="a", comments=comments, tags=tags), Post(id=2, title="b"))


# -- plain deletes --------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 2, 10])
def test_rows_that_nobody_changed_are_deleted(store, watched, engine, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched()
    for row in session.scalars(select(Account)):
        session.delete(row)
    session.commit()

    assert count(engine, Account) == 0


@pytest.mark.parametrize("many", [1, 2, 10])
def test_a_row_that_was_changed_is_not_deleted(store, watched, other, refused, stored, many):
    """RL-05, RL-32, trap 17, DJ-16"""
    store(*(Account(id=n) for n in range(many)))
    session = watched()
    rows = session.scalars(select(Account).order_by(Account.id)).all()
    for row in rows:
        session.delete(row)
    stale = rows[many // 2]
    other(Account, many // 2, owner="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.identity, entry.action, entry.kind) == ((many // 2,), "delete", "updated")
    assert all(stored(Account, n) for n in range(many))
    assert inspect(stale).persistent
    assert stored(Account, many // 2)["owner"] == stale.owner == "theirs"
    session.delete(stale)
    session.commit()
    assert stored(Account, many // 2) is None


@pytest.mark.parametrize("many", [1, 2, 10])
def test_a_row_that_is_gone_is_told(store, watched, gone, refused, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched()
    for row in session.scalars(select(Account)):
        session.delete(row)
    gone(Account, many - 1)
    [entry] = refused(session).entries

    assert (entry.identity, entry.action, entry.kind) == ((many - 1,), "delete", "deleted")


def test_a_new_row_in_place_of_the_one_we_read_is_not_deleted(
    store, watched, gone, refused, stored
):
    """trap 15"""
    store(Note(id=1, text="a"), Note(id=2, text="a"))
    session = watched()
    for row in session.scalars(select(Note)):
        session.delete(row)
    gone(Note, 1)
    store(Note(id=1, text="another"))
    [entry] = refused(session).entries
    session.rollback()

    assert entry.identity == (1,)
    assert stored(Note, 1)["text"] == "another"


def test_updates_and_deletes_come_in_one_error(store, watched, other, refused):
    store(*(Account(id=n) for n in range(4)))
    session = watched()
    rows = session.scalars(select(Account).order_by(Account.id)).all()
    rows[0].owner = rows[1].owner = "ours"
    session.delete(rows[2])
    session.delete(rows[3])
    other(Account, 1, owner="theirs")
    other(Account, 2, owner="theirs")

    assert {(e.identity, e.action) for e in refused(session).entries} == {
        ((1,), "update"), ((2,), "delete"),
    }  # fmt: skip


def test_updates_and_deletes_with_dependents_come_in_one_error(store, watched, other, refused):
    a_post(store)
    session = watched(autoflush=False)
    one, two = session.scalars(select(Post).order_by(Post.id)).all()
    session.delete(one)
    two.title = "ours"
    other(Post, 1, title="theirs")
    other(Post, 2, title="theirs")

    assert {(e.identity, e.action) for e in refused(session).entries} == {
        ((1,), "delete"), ((2,), "update"),
    }  # fmt: skip


def test_an_edited_row_that_is_deleted_is_a_delete(store, watched, other, refused):
    store(Account(id=1, owner="a"))
    session = watched()
    row = session.get_one(Account, 1)
    row.owner = "ours"
    session.delete(row)
    other(Account, 1, balance=5)

    assert [e.action for e in refused(session).entries] == ["delete"]


# -- row switch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Account, Note])
def test_a_row_that_is_replaced_by_a_new_object_is_checked(store, watched, other, refused, model):
    """trap 14, SA-28, SA-29"""
    name = "owner" if model is Account else "text"
    store(model(id=1, **{name: "a"}), model(id=2, **{name: "a"}))
    session = watched()
    session.delete(session.get_one(model, 1))
    session.add(model(id=1, **{name: "new"}))
    other(model, 1, **{name: "theirs"})
    [entry] = refused(session).entries

    assert (entry.identity, entry.database[name]) == ((1,), "theirs")
    assert entry.original["version"] != entry.database["version"]


@pytest.mark.parametrize("model", [Account, Note])
def test_a_row_that_is_replaced_moves_its_version(store, watched, stored, model):
    """SA-28, SA-29"""
    name = "owner" if model is Account else "text"
    store(model(id=1, **{name: "a"}))
    before = stored(model, 1)["version"]
    session = watched()
    session.delete(session.get_one(model, 1))
    new = model(id=1, **{name: "new"})
    session.add(new)
    session.commit()

    assert stored(model, 1)[name] == "new"
    assert stored(model, 1)["version"] == new.version != before


@pytest.mark.parametrize("new", [{}, {"views": 3}], ids=["nothing", "ignored"])
def test_a_row_that_is_replaced_is_checked_whatever_the_new_object_sets(
    store, watched, other, refused, new
):
    """The whole row is replaced, so its version counts, and moves."""
    store(Page(id=1, body="a"))
    session = watched()
    session.delete(session.get_one(Page, 1))
    session.add(Page(id=1, **new))
    session.flush()
    assert session.scalar(select(Page.version)) == 2
    session.rollback()
    session.delete(session.get_one(Page, 1))
    session.add(Page(id=1, **new))
    other(Page, 1, body="theirs")
    assert [entry.kind for entry in refused(session).entries] == ["updated"]


# -- children, link rows --------------------------------------------------------------------------


def test_a_parent_takes_its_children_and_links_with_it(store, watched, engine):
    a_post(store)
    session = watched()
    session.delete(session.get_one(Post, 1))
    session.commit()

    assert (count(engine, Post), count(engine, Comment), count(engine, post_tags)) == (1, 0, 0)


def test_of_a_parent_that_was_changed_nothing_is_deleted(store, watched, other, refused, engine):
    a_post(store)
    session = watched()
    post = session.get_one(Post, 1)
    session.delete(post)
    other(Post, 1, title="theirs")
    [entry] = refused(session).entries
    if session.is_active:
        assert post in session.deleted
    session.rollback()

    assert (entry.model, entry.action) == (Post, "delete")
    assert (count(engine, Post), count(engine, Comment), count(engine, post_tags)) == (2, 2, 2)


@alive
def test_after_the_refusal_nothing_was_written_in_the_transaction(store, watched, other, refused):
    a_post(store)
    session = watched()
    post = session.get_one(Post, 1)
    session.delete(post)
    other(Post, 1, title="theirs")
    refused(session)

    assert session.is_active
    with session.no_autoflush:
        assert session.scalar(select(func.count()).select_from(Comment)) == 2
        assert session.scalar(select(func.count()).select_from(post_tags)) == 2


@alive
def test_a_parent_that_is_kept_keeps_its_children_and_links(store, watched, other, engine, stored):
    a_post(store)
    session = watched(store_wins)
    post = session.get_one(Post, 1)
    session.delete(post)
    other(Post, 1, title="theirs")
    session.flush()

    assert (post.title, post.version) == ("theirs", 2)
    assert inspect(post).persistent
    assert [comment.id for comment in post.comments] == [1, 2]
    assert [tag.id for tag in post.tags] == [1, 2]
    session.commit()
    assert (count(engine, Post), count(engine, Comment), count(engine, post_tags)) == (2, 2, 2)
    post.title = "again"
    session.commit()
    assert stored(Post, 1)["version"] == 3


@alive
def test_a_parent_that_is_deleted_all_the_same_takes_all_with_it(store, watched, other, engine):
    a_post(store)
    session = watched(client_wins)
    session.delete(session.get_one(Post, 1))
    other(Post, 1, title="theirs")
    session.commit()

    assert (count(engine, Post), count(engine, Comment), count(engine, post_tags)) == (1, 0, 0)


@pytest.mark.parametrize("resolver", [client_wins, store_wins])
@alive
def test_a_parent_that_both_deleted_is_gone(store, watched, gone, engine, resolver):
    a_post(store)
    session = watched(resolver)
    post = session.get_one(Post, 1)
    assert (len(post.comments), len(post.tags)) == (2, 2)
    session.delete(post)
    gone(Post, 1)
    session.commit()

    assert inspect(post).detached
    assert (count(engine, Post), count(engine, Comment), count(engine, post_tags)) == (1, 0, 0)


def test_a_child_that_was_changed_keeps_its_parent_from_being_deleted(
    store, watched, other, refused, engine
):
    """trap 32"""
    a_post(store)
    session = watched()
    session.delete(session.get_one(Post, 1))
    other(Comment, 2, text="theirs")
    error = refused(session)
    session.rollback()

    assert [(e.model, e.identity) for e in error.entries] == [(Comment, (2,))]
    assert (count(engine, Post), count(engine, Comment), count(engine, post_tags)) == (2, 2, 2)


@alive
def test_a_child_that_is_kept_is_never_without_its_parent(store, watched, other, engine):
    """Store wins for the comment, and the post that it belongs to is deleted: not both."""
    a_post(store)
    session = watched({Comment: store_wins})
    session.delete(session.get_one(Post, 1))
    other(Comment, 2, text="theirs")
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()

    posts, comments = count(engine, Post), count(engine, Comment)
    assert (posts, comments) == (2, 2)
    assert count(engine, post_tags) == 2


def test_an_orphan_that_was_changed_is_not_deleted(store, watched, other, refused, engine):
    a_post(store)
    session = watched()
    post = session.get_one(Post, 1)
    post.comments.remove(post.comments[0])
    other(Comment, 1, text="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.action) == (Comment, "delete")
    assert count(engine, Comment) == 2


@alive
def test_a_refused_orphan_is_refused_again_until_it_is_decided(
    store, watched, other, refused, engine
):
    a_post(store)
    session = watched()
    post = session.get_one(Post, 1)
    orphan = post.comments[0]
    key = orphan.id
    post.comments.remove(orphan)
    other(Comment, key, text="theirs")
    refused(session)
    assert orphan in session.deleted
    [entry] = refused(session).entries
    assert (entry.identity, entry.action) == ((key,), "delete")
    session.add(orphan)  # not deleted after all
    session.commit()
    assert count(engine, Comment) == 2


@alive
def test_link_rows_of_a_row_that_missed_are_not_kept_by_dropping_its_edits(
    store, watched, other, engine
):
    """The title would go back to theirs and the new link stay: that is refused."""
    a_post(store)
    session = watched(store_wins)
    post, tag = session.get_one(Post, 2), session.get_one(Tag, 1)
    assert post.tags == []
    post.title = "ours"
    post.tags.append(tag)
    other(Post, 2, title="theirs")
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    session.rollback()

    assert any("tags" in note for note in caught.value.__notes__)
    assert count(engine, post_tags) == 2


def test_links_alone_do_not_touch_the_row(store, watched, stored, engine):
    """HB-18"""
    a_post(store)
    session = watched()
    post, tag = session.get_one(Post, 2), session.get_one(Tag, 1)
    post.tags.append(tag)
    session.commit()

    assert count(engine, post_tags) == 3
    post.tags.clear()
    session.commit()
    assert (count(engine, post_tags), stored(Post, 2)["version"]) == (2, 1)


def test_rows_that_the_database_deletes_go_only_with_their_parent(
    store, watched, other, refused, engine
):
    """trap 32"""
    if engine.dialect.name == "sqlite":
        from sqlalchemy import event

        event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys=ON"))
    store(Folder(id=1, files=[File(id=1), File(id=2)]), Folder(id=2, files=[File(id=3)]))
    session = watched()
    for folder in session.scalars(select(Folder)):
        session.delete(folder)
    other(Folder, 1, name="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity) == (Folder, (1,))
    assert count(engine, File) == 3


# -- joined tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 3])
def test_both_tables_of_a_joined_row_are_deleted(store, watched, engine, many):
    store(*(Dog(id=n, name="a") for n in range(many)))
    session = watched()
    for dog in session.scalars(select(Dog)):
        session.delete(dog)
    session.commit()

    assert (count(engine, Dog.__table__), count(engine, text("animals"))) == (0, 0)


@pytest.mark.parametrize("many", [1, 3])
def test_of_a_joined_row_that_was_changed_neither_table_is_deleted(
    store, watched, other, refused, engine, many
):
    store(*(Dog(id=n, name="a", tricks="sit") for n in range(many)))
    session = watched()
    for dog in session.scalars(select(Dog)):
        session.delete(dog)
    other(Dog, 0, tricks="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity, entry.action) == (Dog, (0,), "delete")
    assert (count(engine, Dog.__table__), count(engine, text("animals"))) == (many, many)


@alive
@pytest.mark.parametrize("many", [1, 3])
def test_a_joined_row_is_deleted_all_the_same(store, watched, other, engine, many):
    store(*(Dog(id=n, name="a", tricks="sit") for n in range(many)))
    session = watched(client_wins)
    for dog in session.scalars(select(Dog)):
        session.delete(dog)
    other(Dog, 0, tricks="theirs")
    session.commit()

    assert (count(engine, Dog.__table__), count(engine, text("animals"))) == (0, 0)


@alive
@pytest.mark.parametrize("many", [1, 3])
def test_a_joined_row_is_kept(store, watched, other, stored, engine, many):
    store(*(Dog(id=n, name="a", tricks="sit") for n in range(many)))
    session = watched(store_wins)
    dogs = session.scalars(select(Dog).order_by(Dog.id)).all()
    for dog in dogs:
        session.delete(dog)
    other(Dog, 0, tricks="theirs")
    session.commit()

    assert (stored(Dog, 0)["tricks"], dogs[0].tricks) == ("theirs", "theirs")
    assert (count(engine, Dog.__table__), count(engine, text("animals"))) == (1, 1)


# -- post_update ----------------------------------------------------------------------------------


def a_team(store):
    store(Team(id=1, name="a", players=[Player(id=1, name="p"), Player(id=2, name="q")]))


def test_a_pointer_that_needs_a_second_update_bumps_once_more_and_matches(store, watched, stored):
    a_team(store)
    session = watched()
    team = session.get_one(Team, 1)
    team.name, team.captain = "b", team.players[0]
    session.commit()

    assert (stored(Team, 1)["captain_id"], stored(Team, 1)["name"]) == (1, "b")
    assert stored(Team, 1)["version"] == team.version
    team.captain = team.players[1]
    session.commit()
    assert stored(Team, 1)["captain_id"] == 2


@pytest.mark.parametrize("named", [True, False])
def test_the_second_update_of_a_stale_row_is_not_written(
    store, watched, other, refused, stored, named
):
    a_team(store)
    session = watched(autoflush=False)
    team = session.get_one(Team, 1)
    player = team.players[0]
    if named:
        team.name = "ours"
    team.captain = player
    other(Team, 1, name="theirs")
    error = refused(session)
    session.rollback()

    assert {(e.model, e.identity) for e in error.entries} == {(Team, (1,))}
    assert (stored(Team, 1)["captain_id"], stored(Team, 1)["name"]) == (None, "theirs")


@alive
def test_both_updates_of_a_stale_row_are_merged(store, watched, other, stored):
    a_team(store)
    session = watched(client_wins, autoflush=False)
    team = session.get_one(Team, 1)
    team.name, team.captain = "ours", team.players[0]
    other(Team, 1, name="theirs")
    session.commit()

    assert (stored(Team, 1)["captain_id"], stored(Team, 1)["name"]) == (1, "ours")
    assert team.version == stored(Team, 1)["version"]


@pytest.mark.engines("mariadb-snapshot")
def test_where_the_database_ends_the_transaction_the_session_does_not_go_on(
    store, watched, other, refused
):
    """The rows are looked at before the flush: the session must know that all is rolled back."""
    a_post(store)
    store(Account(id=1, owner="a"))
    session = watched()
    account, post = session.get_one(Account, 1), session.get_one(Post, 1)
    account.owner = "b"
    session.flush()
    session.delete(post)
    other(Post, 1, title="theirs")
    refused(session)

    assert not session.is_active
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    assert account.owner == "a"
