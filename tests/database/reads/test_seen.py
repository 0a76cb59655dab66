"""An object that was expired and is edited without having been read again."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, Integer, select
from sqlalchemy.orm import Mapped, Session, make_transient, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, Versioned, merge_fields, touch
from optilock.testing import count_statements
from optilock.tokens import Manual, RowVersion
from tests.support.models import Account, Animal, Base, Dog, Draft, Native, Signed, Timed, key
from tests.support.two_writers import Do

pytestmark = pytest.mark.modes(full=True)


class Numbered(Versioned, Base):
    """The version is the number of the transaction that wrote the row."""

    __tablename__ = "numbered"
    __version_token__ = RowVersion(xmin=True)
    id: Mapped[int] = key()
    name: Mapped[str | None]


@pytest.fixture
def refused() -> Do:
    """The rows moved before the transaction began, so no database ends it."""

    def refused(session: Session) -> ConcurrencyError:
        with pytest.raises(ConcurrencyError) as caught:
            session.flush()
        return caught.value

    return refused


def _commit(session: Session, mine: Any) -> None:
    session.commit()


def _rollback(session: Session, mine: Any) -> None:
    session.rollback()


def _expire(session: Session, mine: Any) -> None:
    session.commit()
    session.refresh(mine)
    session.expire(mine)


def _expire_all(session: Session, mine: Any) -> None:
    session.commit()
    session.refresh(mine)
    session.expire_all()


def _expire_version(session: Session, mine: Any) -> None:
    session.commit()
    session.refresh(mine)
    session.expire(mine, ["version"])


WAYS = [_commit, _rollback, _expire, _expire_all, _expire_version]


@pytest.mark.parametrize("expired", WAYS)
def test_an_expired_object_that_is_set_without_being_read_conflicts(
    account: Any, watched: Do, other: Do, stored: Do, refused: Do, expired: Do, engine: Engine
) -> None:
    """trap 9"""
    session = watched()
    mine = session.get(Account, 1)
    expired(session, mine)
    other(Account, 1, owner="Eve")
    mine.owner = "Bea"
    (entry,) = refused(session).entries
    assert entry.original["version"] == 1
    assert entry.changes == {"owner": "Bea"}
    assert entry.conflicting == {"owner"}
    session.rollback()
    assert stored(Account, 1)["owner"] == "Eve"


def test_an_expired_object_that_nobody_has_moved_is_written(
    account: Any, watched: Do, stored: Do
) -> None:
    session = watched()
    mine = session.get(Account, 1)
    for owner in ("Bea", "Cleo"):
        session.commit()
        mine.owner = owner
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Cleo", 3)


@pytest.mark.parametrize("expired", [_commit, _rollback, _expire, _expire_all])
def test_an_expired_object_that_was_read_again_is_written(
    account: Any, watched: Do, other: Do, stored: Do, expired: Do, engine: Engine
) -> None:
    session = watched()
    mine = session.get(Account, 1)
    expired(session, mine)
    session.rollback()
    other(Account, 1, owner="Eve")
    mine.owner = mine.owner + "!"
    session.commit()
    assert stored(Account, 1)["owner"] == "Eve!"


def test_reading_the_version_alone_does_not_take_over_older_values(
    account: Any, watched: Do, other: Do, refused: Do
) -> None:
    session = watched(expire_on_commit=False)
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, owner="Eve")
    session.refresh(mine, ["version"])
    assert mine.owner == "Ada"
    assert mine.version == 1
    mine.owner = "Bea"
    refused(session)


def test_a_partial_refresh_never_loses_an_update(
    account: Any, watched: Do, other: Do, refused: Do
) -> None:
    session = watched(expire_on_commit=False)
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, owner="Eve")
    session.refresh(mine, ["note"])
    mine.owner = "Bea"
    refused(session)


def test_edits_made_before_the_reading_conflict(
    account: Any, watched: Do, other: Do, refused: Do
) -> None:
    session = watched()
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, owner="Eve", note="theirs")
    with session.no_autoflush:
        mine.owner = "Bea"
        assert mine.note == "theirs"
    (entry,) = refused(session).entries
    assert (entry.original["version"], entry.original["note"]) == (1, "theirs")
    assert "owner" not in entry.original


def test_a_query_that_finds_the_edited_object_does_not_settle_it(
    account: Any, watched: Do, other: Do, refused: Do
) -> None:
    session = watched(autoflush=False)
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, owner="Eve")
    mine.owner = "Bea"
    assert session.scalars(select(Account).where(Account.id == 1)).one() is mine
    refused(session)


def test_reading_with_populate_existing_drops_the_edits_and_starts_anew(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    session = watched(autoflush=False)
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, owner="Eve")
    mine.owner = "Bea"
    session.get(Account, 1, populate_existing=True)
    mine.note = mine.owner
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == ("Eve", "Eve")


def test_refresh_by_the_author_starts_anew(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    session = watched()
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, owner="Eve")
    session.refresh(mine)
    mine.note = "mine"
    session.commit()
    assert stored(Account, 1)["note"] == "mine"


def test_a_delete_of_an_expired_object_conflicts(
    account: Any, watched: Do, other: Do, stored: Do, refused: Do
) -> None:
    """trap 9"""
    session = watched()
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, owner="Eve")
    session.delete(mine)
    assert refused(session).entries[0].action == "delete"
    session.rollback()
    assert stored(Account, 1)["owner"] == "Eve"


def test_a_stale_object_stays_stale_until_it_is_read(
    account: Any, watched: Do, other: Do, stored: Do, refused: Do
) -> None:
    """RL-06, trap 5: after the conflict and a rollback the next attempt conflicts again."""
    session = watched()
    mine = session.get(Account, 1)
    session.rollback()
    other(Account, 1, owner="Eve")
    for _ in range(3):
        mine.owner = "Bea"
        refused(session)
        session.rollback()
    mine.owner = mine.owner + "!"
    session.commit()
    assert stored(Account, 1)["owner"] == "Eve!"


def test_our_own_writes_do_not_count_after_a_rollback(
    account: Any, watched: Do, stored: Do, other: Do, refused: Do
) -> None:
    session = watched()
    mine = session.get(Account, 1)
    mine.owner = "Bea"
    session.flush()
    mine.owner = "Cleo"
    session.flush()
    session.rollback()
    mine.owner = "Dora"
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Dora", 2)


def test_after_a_savepoint_the_version_before_it_counts(
    account: Any, watched: Do, stored: Do
) -> None:
    """RL-35: saved before the savepoint, saved again inside, rolled back."""
    session = watched()
    mine = session.get(Account, 1)
    mine.owner = "Bea"
    session.flush()
    savepoint = session.begin_nested()
    mine.owner = "Cleo"
    session.flush()
    savepoint.rollback()
    mine.owner = "Dora"
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Dora", 3)


def test_a_resolver_treats_what_was_never_read_as_changed_by_both(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    session = watched(merge_fields)
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, note="theirs")
    mine.owner = "Bea"
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert stored(Account, 1)["owner"] == "Ada"


def test_classes_with_only_a_version_id_col_are_remembered_too(
    store: Do, watched: Do, other: Do, refused: Do
) -> None:
    store(Native(id=1, text="a"))
    session = watched()
    mine = session.get(Native, 1)
    session.commit()
    other(Native, 1, text="theirs")
    mine.text = "mine"
    refused(session)


def test_joined_classes_are_remembered_too(store: Do, watched: Do, other: Do, refused: Do) -> None:
    store(Dog(id=1, name="Rex"))
    session = watched()
    mine = session.scalars(select(Animal)).one()
    session.commit()
    other(Dog, 1, name="Max")
    mine.name = "Tim"
    refused(session)


def test_units_leave_the_version_on_their_objects(
    account: Any, engine: Engine, other: Do, watched: Do, refused: Do
) -> None:
    with UnitOfWork(sessionmaker(engine)) as session:
        mine = session.get_one(Account, 1)
    other(Account, 1, owner="Eve")
    later = watched()
    later.add(mine)
    mine.owner = "Bea"
    refused(later)


def test_the_version_of_an_expired_object_is_not_read(
    account: Any, watched: Do, engine: Engine
) -> None:
    session = watched()
    mine = session.get(Account, 1)
    session.commit()
    mine.owner = "Bea"
    with count_statements(engine) as sent:
        session.commit()
    assert [s.text.split()[0] for s in sent.statements] == ["UPDATE"]


@pytest.mark.engines("postgresql")
def test_an_insert_that_was_rolled_back_leaves_no_version_behind(
    tables: Do, watched: Do, stored: Do
) -> None:
    """``xmin`` is another one when the object is inserted again."""
    tables(Numbered)
    session = watched()
    mine = Numbered(id=1, name="a")
    session.add(mine)
    session.flush()
    session.rollback()
    session.add(mine)
    session.flush()
    mine.name = "b"
    session.commit()
    assert stored(Numbered, 1)["name"] == "b"


def test_a_version_that_the_database_makes_is_taken_over_after_our_write(
    store: Do, watched: Do, stored: Do
) -> None:
    store(Signed(id=1, owner="a"))
    session = watched()
    mine = session.get(Signed, 1)
    for name in ("b", "c"):
        session.commit()
        mine.owner = name
        session.flush()
        mine.owner = name + "!"
        session.flush()
    session.commit()
    assert (stored(Signed, 1)["owner"], stored(Signed, 1)["version"]) == ("c!", 5)


@pytest.mark.parametrize("doomed", [False, True], ids=["updated", "deleted"])
def test_what_was_loaded_of_the_newer_row_is_not_told_as_the_original(
    account: Any, watched: Do, other: Do, refused: Do, doomed: bool
) -> None:
    """The flush reads the newer row; the author of the edit has not seen it."""
    session = watched()
    mine = session.get(Account, 1)
    session.commit()
    other(Account, 1, note="theirs")
    if doomed:
        session.delete(mine)
    else:
        mine.owner = "Eve"
    (entry,) = refused(session).entries
    assert entry.original["version"] == 1
    assert entry.original.get("note", "never read") == "never read"
    assert entry.database["note"] == "theirs"


def test_a_touch_that_was_rolled_back_counts_for_nothing(
    account: Any, watched: Do, other: Do, refused: Do
) -> None:
    """It would have moved the version to 2, which now is somebody else's."""
    session = watched()
    mine = session.get(Account, 1)
    touch(mine)
    session.expire(mine)
    session.rollback()
    other(Account, 1, note="theirs")
    mine.owner = "Eve"
    (entry,) = refused(session).entries
    assert (entry.original["version"], entry.database["version"]) == (1, 2)


class Dated(Versioned, Base):
    """The application moves the version."""

    __tablename__ = "dated"
    __version_token__ = Manual(Integer())
    id: Mapped[int] = key()
    name: Mapped[str | None]


@pytest.mark.parametrize("order", [("version", "name"), ("name", "version")])
def test_assigning_a_version_of_ones_own_does_not_read_the_row(
    store: Do, watched: Do, other: Do, refused: Do, order: tuple[str, str]
) -> None:
    store(Dated(id=1, name="a", version=1))
    session = watched()
    mine = session.get(Dated, 1)
    session.commit()
    other(Dated, 1, name="theirs", version=2)
    for name in order:
        setattr(mine, name, 3 if name == "version" else "mine")
    (entry,) = refused(session).entries
    assert (entry.original["version"], entry.database["name"]) == (1, "theirs")


def test_a_version_of_ones_own_that_was_expired_counts_for_nothing(
    store: Do, watched: Do, stored: Do
) -> None:
    store(Dated(id=1, name="a", version=1))
    session = watched()
    mine = session.get(Dated, 1)
    mine.version = 2
    session.expire(mine)
    mine.name = "mine"
    mine.version = 3
    session.commit()
    assert stored(Dated, 1) == {"id": 1, "name": "mine", "version": 3}


@pytest.mark.parametrize("nested", [False, True], ids=["transaction", "savepoint"])
@pytest.mark.parametrize("written", [False, True], ids=["as read", "written before"])
def test_an_object_whose_delete_is_rolled_back_keeps_the_version_that_was_seen(
    account, watched, other, stored, written, nested
):
    session = watched()
    mine = session.get_one(account, 1)
    if nested:
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            _delete(session, mine, written)
            raise ZeroDivisionError
    else:
        _delete(session, mine, written)
    session.rollback()
    other(account, 1, note="theirs")
    mine.owner = "mine"
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    assert caught.value.entries[0].original["version"] == 1
    session.rollback()
    assert stored(account, 1)["owner"] == "Ada"


def _delete(session, obj, written):
    if written:
        obj.balance = 50
        session.flush()
    session.delete(obj)
    session.flush()


@pytest.mark.parametrize("act", ["edit", "delete"])
def test_an_expired_object_whose_row_is_gone_is_a_conflict(account, watched, gone, act):
    session = watched()
    mine, second = session.get_one(account, 1), session.get_one(account, 2)
    session.commit()
    gone(account, 1)
    second.owner = "mine"
    if act == "edit":
        mine.owner = "mine"
    else:
        session.delete(mine)
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    [entry] = caught.value.entries
    assert (entry.identity, entry.kind, entry.original["version"]) == ((1,), "deleted", 1)
    assert entry.action == ("update" if act == "edit" else "delete")
    if act == "edit":
        assert entry.changes == {"owner": "mine"}


def test_an_expired_object_that_is_deleted_may_be_gone(store, watched, gone, stored):
    """Where the policy for deletes says so."""
    store(Draft(id=1))
    session = watched()
    draft = session.get_one(Draft, 1)
    session.commit()
    gone(Draft, 1)
    session.delete(draft)
    session.commit()
    assert stored(Draft, 1) is None


@pytest.mark.engines("postgresql")
def test_a_row_that_is_made_again_gets_a_number_of_its_own(store, watched, stored):
    store(Numbered(id=1, name="a"))
    session = watched()
    row = session.get_one(Numbered, 1)
    session.delete(row)
    session.commit()
    make_transient(row)
    session.add(row)
    session.commit()
    row.name = "again"
    session.commit()
    assert stored(Numbered, 1)["name"] == "again"


@pytest.mark.parametrize("model", [Account, Timed, Signed])
def test_an_expired_object_that_was_touched_and_edited_knows_its_new_version(
    store: Do, watched: Do, stored: Do, model: Any
) -> None:
    """Also where the version is read after the write."""
    store(model(id=1))
    session = watched()
    held = session.get_one(model, 1)
    for value in ("first", "second", "mine"):
        session.commit()
        touch(held)
        held.owner = value
    session.commit()

    assert stored(model, 1)["owner"] == "mine"
