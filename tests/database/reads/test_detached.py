"""Copies that were edited outside of a session, and come back."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy import Engine, Integer, event
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    with_loader_criteria,
)
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, ConfigurationError, Versioned, merge_fields, touch
from optilock.tokens import Manual
from tests.support.models import Account, Base, Comment, Native, Post, key
from tests.support.two_writers import Do


@pytest.fixture
def copy_of(engine: Engine) -> Do:
    """A copy that has been somewhere else, as a form or a task queue would send it."""

    def copy_of(model: type[Any], key: Any, *loaded: str) -> Any:
        with Session(engine) as session:
            found = session.get_one(model, key)
            for name in loaded:
                getattr(found, name)
            return pickle.loads(pickle.dumps(found))

    return copy_of


@pytest.fixture
def account(store: Do) -> type[Account]:
    store(Account(id=1, owner="Ada", balance=10, note="n"))
    return Account


def refused_merge(session: Session, copy: Any) -> ConcurrencyError:
    with pytest.raises(StaleDataError, match=r"Version id .* on merged state") as caught:
        session.merge(copy)
    assert not session.new
    assert not session.dirty
    assert isinstance(caught.value, ConcurrencyError)
    says = str(caught.value)
    assert "Leave the version attribute unset" not in says  # which would lose their change
    assert "Read the row again" in says or "Drop the copy" in says
    return caught.value


def test_a_copy_of_the_stored_version_is_written(
    account: Any, watched: Do, copy_of: Do, stored: Do
) -> None:
    """SA-16, HB-31"""
    copy = copy_of(Account, 1)
    copy.owner = "Eve"
    session = watched()
    session.merge(copy)
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Eve", 2)


def test_a_new_object_with_the_stored_version_is_a_copy_of_it(
    store: Do, watched: Do, stored: Do
) -> None:
    """Built from a form, of a class that lets its version be assigned."""
    store(Native(id=1, text="a"))
    session = watched()
    session.merge(Native(id=1, text="b", revision=1))
    session.commit()
    assert (stored(Native, 1)["text"], stored(Native, 1)["revision"]) == ("b", 2)


@pytest.mark.parametrize("known", [True, False], ids=["in-the-session", "read-by-merge"])
def test_a_stale_copy_is_an_entry_with_all_three_sides(
    account: Any, watched: Do, other: Do, copy_of: Do, stored: Do, known: bool
) -> None:
    """SA-17, SA-18, HB-31, trap 33"""
    copy = copy_of(Account, 1)
    copy.owner = "Eve"
    other(Account, 1, note="theirs")
    session = watched(merge_fields)
    held = session.get(Account, 1) if known else None
    error = refused_merge(session, copy)
    (entry,) = error.entries
    assert (entry.kind, entry.action, entry.identity) == ("updated", "update", (1,))
    assert (entry.original["version"], entry.original["owner"]) == (1, "Ada")
    assert entry.changes == {"owner": "Eve"}
    assert entry.database is not None
    assert (entry.database["version"], entry.database["note"]) == (2, "theirs")
    assert held is None or held.owner == "Ada"
    session.commit()
    assert stored(Account, 1)["owner"] == "Ada"


def test_a_copy_of_a_row_that_is_gone_does_not_bring_it_back(
    account: Any, watched: Do, gone: Do, copy_of: Do, stored: Do
) -> None:
    """HB-21, trap 33"""
    copy = copy_of(Account, 1)
    copy.owner = "Eve"
    gone(Account, 1)
    session = watched()
    (entry,) = refused_merge(session, copy).entries
    assert (entry.kind, entry.database, entry.changes) == ("deleted", None, {"owner": "Eve"})
    session.commit()
    assert stored(Account, 1) is None


def test_a_new_object_without_a_version_is_inserted(account: Any, watched: Do, stored: Do) -> None:
    """HB-21, HB-31"""
    session = watched()
    session.merge(Account(id=2, owner="Bea"))
    session.commit()
    assert stored(Account, 2)["version"] == 1


def test_a_copy_of_a_row_that_the_program_hides_is_refused_with_that_reason(
    account: Any, watched: Do, copy_of: Do, stored: Do
) -> None:
    """A soft delete: the row is still stored, and its key cannot be inserted again."""
    session = watched()

    @event.listens_for(session, "do_orm_execute")
    def hide(executed: Any) -> None:
        hidden = with_loader_criteria(Account, Account.note != "n")
        executed.statement = executed.statement.options(hidden)

    copy = copy_of(Account, 1)
    copy.owner = "Eve"

    assert "the program hides it" in str(refused_merge(session, copy))
    assert stored(Account, 1)["owner"] == "Ada"


@pytest.mark.filterwarnings("ignore::optilock.errors.UnversionedMergeWarning")
def test_a_copy_without_a_version_is_merged_over_the_newest_row(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    """SA-15"""
    other(Account, 1, note="theirs")
    session = watched()
    session.merge(Account(id=1, owner="Bea"))
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Bea", 3)
    assert stored(Account, 1)["note"] == "theirs"


def test_an_expired_copy_carries_the_version_that_was_seen(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    with watched() as session:
        copy = session.get(Account, 1)
        session.commit()
    copy.owner = "Eve"
    other(Account, 1, note="theirs")
    session = watched()
    refused_merge(session, copy)


@pytest.fixture
def post(store: Do) -> None:
    store(Post(id=1, title="a", comments=[Comment(id=1, text="x"), Comment(id=2, text="y")]))


def test_one_stale_child_takes_back_the_whole_merge(
    post: None, watched: Do, other: Do, copy_of: Do, stored: Do
) -> None:
    copy = copy_of(Post, 1, "comments")
    copy.title = "mine"
    copy.comments[0].text = "mine"
    copy.comments.append(Comment(id=3, text="new"))
    other(Comment, 2, text="theirs")
    session = watched()
    (entry,) = refused_merge(session, copy).entries
    assert (entry.model, entry.identity) == (Comment, (2,))
    session.commit()
    assert (stored(Post, 1)["title"], stored(Comment, 1)["text"]) == ("a", "x")
    assert stored(Comment, 3) is None


def test_a_child_that_is_gone_is_not_brought_back(
    post: None, watched: Do, gone: Do, copy_of: Do, stored: Do
) -> None:
    copy = copy_of(Post, 1, "comments")
    copy.title = "mine"
    gone(Comment, 2)
    session = watched()
    (entry,) = refused_merge(session, copy).entries
    assert (entry.model, entry.identity, entry.kind) == (Comment, (2,), "deleted")
    session.commit()
    assert (stored(Post, 1)["title"], stored(Comment, 2)) == ("a", None)


def test_merge_without_load_is_checked_at_the_flush(
    account: Any, watched: Do, other: Do, copy_of: Do, refused: Do
) -> None:
    copy = copy_of(Account, 1)
    session = watched()
    merged = session.merge(copy, load=False)
    merged.owner = "Eve"
    other(Account, 1, note="theirs")
    with pytest.raises(ConcurrencyError):
        session.flush()


def test_a_stale_copy_that_is_added_conflicts_at_the_flush(
    account: Any, watched: Do, other: Do, copy_of: Do
) -> None:
    copy = copy_of(Account, 1)
    copy.owner = "Eve"
    other(Account, 1, note="theirs")
    session = watched()
    session.add(copy)
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()
    assert caught.value.entries[0].original["version"] == 1


def test_classes_with_only_a_version_id_col_are_compared_too(
    store: Do, watched: Do, gone: Do, other: Do, copy_of: Do
) -> None:
    store(Native(id=1, text="a"), Native(id=2, text="b"))
    stale, lost = copy_of(Native, 1), copy_of(Native, 2)
    other(Native, 1, text="theirs")
    gone(Native, 2)
    session = watched()
    assert refused_merge(session, stale).entries[0].kind == "updated"
    assert refused_merge(session, lost).entries[0].kind == "deleted"


# -- versions that the application assigns --------------------------------------------------------


class Stage(Versioned, Base):
    __tablename__ = "stages"
    __version_token__ = Manual(Integer())
    id: Mapped[int] = key()
    name: Mapped[str | None]


@pytest.fixture
def stage(store: Do, copy_of: Do) -> Stage:
    """A copy that was edited, and has been given its next version."""
    store(Stage(id=1, name="a", version=1))
    copy: Stage = copy_of(Stage, 1)
    copy.name, copy.version = "mine", 2
    return copy


@pytest.mark.parametrize("held", ["not", "loaded", "expired"])
def test_a_copy_brings_the_version_that_was_assigned_to_it(
    stage: Stage, watched: Do, other: Do, stored: Do, held: str
) -> None:
    session = watched()
    mine = session.get(Stage, 1) if held != "not" else None
    if held == "expired":
        session.expire(mine)
    session.merge(stage)
    session.commit()
    assert stored(Stage, 1) == {"id": 1, "name": "mine", "version": 2}
    assert stage.version == 2


def test_a_stale_copy_with_an_assigned_version_is_a_conflict(
    stage: Stage, watched: Do, other: Do, stored: Do
) -> None:
    other(Stage, 1, name="theirs", version=5)
    session = watched()
    (entry,) = refused_merge(session, stage).entries
    assert entry.original["version"] == 1
    assert (entry.database["version"], entry.current["version"]) == (5, 2)
    session.commit()
    assert stored(Stage, 1)["name"] == "theirs"


@pytest.mark.parametrize("plain", [False, True], ids=["watched", "plain"])
def test_a_copy_with_an_assigned_version_does_not_bring_a_row_back(
    stage: Stage, watched: Do, gone: Do, stored: Do, engine: Engine, plain: bool
) -> None:
    gone(Stage, 1)
    with Session(engine) if plain else watched() as session:
        with pytest.raises(StaleDataError):
            session.merge(stage)
        session.commit()
    assert stored(Stage, 1) is None


def test_objects_without_a_hash_are_merged(tables, watched):
    """A dataclass that is compared by its values has none."""

    class Unhashed(DeclarativeBase):
        pass

    class Thing(Unhashed):
        __tablename__ = "unhashed_things"
        __hash__ = None
        id: Mapped[int] = mapped_column(primary_key=True)

        def __eq__(self, other):
            return self.id == other.id

    tables(Thing)
    session = watched()
    session.add(Thing(id=2))
    assert session.merge(Thing(id=1)).id == 1


@pytest.mark.parametrize("then", ["edit", "touch"])
def test_a_refused_merge_leaves_the_version_that_an_expired_object_was_seen_in(
    account, copy_of, watched, other, stored, then
):
    """Only the merge has read the row since; the author of the edit has not."""
    copy = copy_of(Account, 1)
    session = watched()
    mine = session.get_one(Account, 1)
    mine.note = "mine"
    session.commit()
    other(Account, 1, owner="theirs")
    with pytest.raises(ConcurrencyError):
        session.merge(copy)
    if then == "edit":
        mine.owner = "Eve"
    else:
        touch(mine)
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert stored(Account, 1)["owner"] == "theirs"


@pytest.mark.parametrize("deep", [False, True], ids=["itself", "a-child"])
def test_a_pickle_of_an_object_that_was_edited_when_it_was_expired_is_refused(
    store: Do, watched: Do, other: Do, stored: Do, deep: bool
) -> None:
    """Nobody knows in which version its author has seen the row."""
    store(Post(id=1, title="old", comments=[Comment(id=1, text="old")]))
    session = watched(autoflush=False)
    post = session.get_one(Post, 1)
    [comment] = post.comments
    session.expire(comment if deep else post)
    if deep:
        comment.text = "mine"
    else:
        post.title = "mine"
    copy = pickle.loads(pickle.dumps(post))
    session.close()
    other(Comment if deep else Post, 1, **{"text" if deep else "title": "theirs"})

    with pytest.raises(ConfigurationError, match="without having been read"):
        session.merge(copy)
    assert not session.dirty
    session.commit()
    assert stored(Comment, 1)["text"] == ("theirs" if deep else "old")
    assert stored(Post, 1)["title"] == ("old" if deep else "theirs")


def test_a_pickle_of_an_expired_object_that_nobody_edited_says_nothing(
    account: Any, watched: Do, stored: Do
) -> None:
    session = watched()
    account = session.get_one(Account, 1)
    session.commit()
    copy = pickle.loads(pickle.dumps(account))
    session.close()
    session.merge(copy)
    session.commit()
    assert stored(Account, 1)["version"] == 1


def test_the_entry_of_a_refused_merge_shows_what_is_stored_and_not_the_sessions_object(
    account, copy_of, watched, other
):
    copy = copy_of(Account, 1)
    other(Account, 1, note="second")
    session = watched(expire_on_commit=False)
    held = session.get_one(Account, 1)
    session.commit()
    other(Account, 1, note="third")
    entry = refused_merge(session, copy).entries[0]
    assert held.note == "second"
    assert (entry.database["note"], entry.database["version"]) == ("third", 3)
