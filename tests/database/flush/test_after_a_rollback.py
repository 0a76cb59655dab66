"""What was undone must not count as seen, and what belongs to an earlier transaction is over."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import ForeignKey, event, insert, inspect, select, text, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from optilock import ConcurrencyError, PreconditionFailed, Versioned, client_wins, expect, verify
from optilock._watched.session.record import session_record as watched_state
from optilock.errors import ConfigurationError
from optilock.tokens import CompareValues
from tests.support.models import Account, Base, Comment, Note, Post, key
from tests.support.two_writers import Do


class Code(Versioned, Base):
    """The key is natural, and may change."""

    __tablename__ = "natural_codes"
    code: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str | None]


class Box(Versioned, Base):
    """A listener counts its things."""

    __tablename__ = "counted_boxes"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    count: Mapped[int] = mapped_column(default=0)
    things: Mapped[list[Widget]] = relationship()


class Widget(Versioned, Base):
    __tablename__ = "counted_things"
    id: Mapped[int] = key()
    box_id: Mapped[int] = mapped_column(ForeignKey("counted_boxes.id"))


class Pair(Versioned, Base):
    """Values are compared."""

    __tablename__ = "compared_pairs"
    __version_token__ = CompareValues("left", "right")
    id: Mapped[int] = key()
    left: Mapped[str | None]
    right: Mapped[str | None]


@event.listens_for(Widget, "after_insert")
def _count(mapper: Any, connection: Any, thing: Widget) -> None:
    box = Box.__table__
    connection.execute(update(box).where(box.c.id == thing.box_id).values(count=box.c.count + 1))


@pytest.fixture(params=[True, False], ids=["expire", "keep"])
def session(request: pytest.FixtureRequest, store: Do, watched: Do) -> Session:
    store(Account(id=1, owner="Ada"), Account(id=2, owner="Bob"), Note(id=1, text="old"))
    session: Session = watched(expire_on_commit=request.param)
    return session


# -- a transaction that has sent nothing -----------------------------------------------------------


def test_a_rollback_before_the_first_statement_leaves_the_versions_of_the_commit(
    session: Session, stored: Do
) -> None:
    account = session.get_one(Account, 1)
    account.owner = "first"
    session.commit()
    account.owner = "dropped"
    session.rollback()
    account.owner = "second"
    session.commit()
    assert stored(Account, 1)["owner"] == "second"


def test_a_row_that_an_earlier_transaction_wrote_can_be_demanded(
    store: Do, watched: Do, other: Do, stored: Do
) -> None:
    store(Account(id=3, owner="Ada"))
    session = watched(expire_on_commit=False, on_conflict=client_wins)
    account = session.get_one(Account, 3)
    account.owner = "first"
    session.commit()
    expect(account, account.version)
    other(Account, 3, owner="theirs")
    account.owner = "mine"
    with pytest.raises(PreconditionFailed):
        session.commit()
    assert stored(Account, 3)["owner"] == "theirs"


@pytest.mark.parametrize("session", [False], indirect=True, ids=["keep"])
@pytest.mark.parametrize("writes", [True, False], ids=["beside-a-write", "alone"])
def test_a_row_that_an_earlier_transaction_wrote_can_be_verified(
    session: Session, other: Do, writes: bool
) -> None:
    account, bob = session.get_one(Account, 1), session.get_one(Account, 2)
    account.owner = "first"
    session.commit()
    verify(account)
    other(Account, 1, owner="theirs")
    if writes:
        bob.owner = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()


# -- versions that never were ----------------------------------------------------------------------


def test_a_key_that_was_changed_and_changed_back(
    store: Do, watched: Do, other: Do, stored: Do
) -> None:
    store(Code(code="old"))
    session = watched()
    code = session.get_one(Code, "old")
    code.code = "new"
    session.flush()
    session.rollback()
    other(Code, "old", text="theirs")  # its version is the one that the flush had made
    code.text = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()
    assert stored(Code, "old")["text"] == "theirs"


def test_a_key_that_was_changed_in_two_flushes_is_no_conflict_of_its_own(
    store: Do, watched: Do, stored: Do
) -> None:
    store(Code(code="old"))
    session = watched()
    code = session.get_one(Code, "old")
    code.code = "new"
    session.flush()
    code.text = "dropped"
    session.flush()
    session.rollback()
    code.text = "mine"
    session.commit()
    assert stored(Code, "old")["text"] == "mine"


def test_keys_that_two_rows_have_passed_on(store: Do, watched: Do, other: Do, stored: Do) -> None:
    store(Code(code="a"), Code(code="b"))
    other(Code, "b", text="more")
    session = watched()
    a, b = session.get_one(Code, "a"), session.get_one(Code, "b")
    b.code = "c"
    session.flush()
    a.code = "b"
    session.flush()
    session.rollback()
    a.text = b.text = "mine"
    session.commit()
    assert stored(Code, "a")["text"] == stored(Code, "b")["text"] == "mine"


def test_an_object_that_was_saved_in_bulk(session: Session, other: Do, stored: Do) -> None:
    account = session.get_one(Account, 1)
    account.owner = "dropped"
    session.bulk_save_objects([account])
    session.rollback()
    other(Account, 1, owner="theirs")
    account.note = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()
    assert stored(Account, 1)["note"] is None


def test_a_detached_object_that_was_saved_in_bulk(session: Session, other: Do, stored: Do) -> None:
    account = session.get_one(Account, 1)
    session.close()
    account.owner = "dropped"
    session.bulk_save_objects([account])
    session.rollback()
    other(Account, 1, owner="theirs")
    account.note = "mine"
    session.add(account)
    with pytest.raises(ConcurrencyError):
        session.commit()
    assert stored(Account, 1)["owner"] == "theirs"


def _upsert(family: str, subject: Any = Account) -> Any:
    new = {"id": 1, "owner": "dropped", "balance": 0}
    change = {"owner": "dropped", "version": Account.version + 1}
    if family == "mysql":
        return mysql.insert(subject).values(new).on_duplicate_key_update(change)
    dialect: Any = postgresql if family == "postgresql" else sqlite
    return (
        dialect.insert(subject)
        .values(new)
        .on_conflict_do_update(index_elements=["id"], set_=change)
    )


@pytest.mark.parametrize("call", ["upsert", "mappings", "objects"])
def test_an_object_that_was_read_after_a_bulk_call(
    session: Session, other: Do, stored: Do, call: str
) -> None:
    if call == "upsert":
        session.execute(_upsert(session.get_bind().dialect.name))
    elif call == "mappings":
        session.bulk_update_mappings(Account, [{"id": 1, "version": 1, "owner": "dropped"}])
    else:
        account = session.get_one(Account, 1)
        session.expunge(account)
        account.owner = "dropped"
        session.bulk_save_objects([account])
    account = session.get_one(Account, 1)
    session.rollback()
    other(Account, 1, owner="theirs")
    account.note = "mine"
    with pytest.raises(ConfigurationError, match="UPDATE statement was rolled back"):
        session.commit()
    assert stored(Account, 1)["note"] is None


def test_an_object_whose_version_a_listener_has_moved_before_the_flush_did(
    store: Do, watched: Do, other: Do, stored: Do
) -> None:
    store(Box(id=1))
    session = watched()
    box = session.get_one(Box, 1)
    box.things.append(Widget(id=1))
    session.flush()
    box.name = "dropped"
    session.flush()
    assert box.version == 3
    session.rollback()
    other(Box, 1, name="theirs")
    box.name = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()
    assert stored(Box, 1)["name"] == "theirs"


_SQL = "UPDATE {} SET owner = 'dropped', version = version + 1 WHERE id = 1"


def _by_text(session: Session) -> None:
    session.execute(text(_SQL.format("accounts")))


def _on_the_connection(session: Session) -> None:
    session.connection().execute(text(_SQL.format("accounts")))


def _by_upsert_of_the_table(session: Session) -> None:
    session.connection().execute(_upsert(session.get_bind().dialect.name, Account.__table__))


def _from_statement(session: Session) -> None:
    if session.get_bind().dialect.name == "mysql":  # UPDATE knows no RETURNING there
        _by_text(session)
    else:
        sql = text(_SQL.format("accounts") + " RETURNING id, owner, version")
        session.scalars(select(Account).from_statement(sql)).all()


@pytest.mark.parametrize("undo", ["rollback", "close", "savepoint"])
@pytest.mark.parametrize(
    "change", [_by_text, _on_the_connection, _by_upsert_of_the_table, _from_statement]
)
def test_an_object_that_was_read_after_a_text_that_changes_its_table(
    session: Session, other: Do, stored: Do, change: Do, undo: str
) -> None:
    savepoint = session.begin_nested() if undo == "savepoint" else session
    change(session)
    account, note = session.get_one(Account, 1), session.get_one(Note, 1)
    assert account.version == 2
    (savepoint.close if undo == "close" else savepoint.rollback)()
    if undo == "savepoint":
        session.commit()
    other(Account, 1, owner="theirs")  # its version is the one that the text had made
    session.add_all([account, note])
    note.text = "mine"  # of another table
    session.commit()
    account.note = "mine"
    with pytest.raises(ConfigurationError, match="UPDATE statement was rolled back"):
        session.commit()
    assert stored(Account, 1)["note"] is None


@pytest.mark.engines("postgresql")
def test_an_object_that_was_read_after_code_that_a_text_has_brought(
    store: Do, watched_on: Do, engine: Any, other: Do, stored: Do
) -> None:
    """It may change any row; of classes that the session does not know nobody asks."""
    store(Account(id=1, owner="Ada"))
    session = watched_on(None, binds={Account: engine})
    code = text(f"DO $$ BEGIN {_SQL.format('accounts')}; END $$")
    session.execute(code, bind_arguments={"mapper": Account})
    account = session.get_one(Account, 1)
    session.rollback()
    other(Account, 1, owner="theirs")
    account.note = "mine"
    with pytest.raises(ConfigurationError, match="UPDATE statement was rolled back"):
        session.commit()
    assert stored(Account, 1)["note"] is None


def test_an_object_that_was_read_after_a_text_that_changes_nothing(
    session: Session, stored: Do
) -> None:
    for sql in ("SELECT 'UPDATE accounts'", "SELECT id FROM notes", "DELETE FROM notes"):
        session.execute(text(sql))
    account = session.get_one(Account, 1)
    session.rollback()
    account.owner = "mine"
    session.commit()
    assert stored(Account, 1)["owner"] == "mine"


# -- a refresh that drops the edits of others ------------------------------------------------------


@pytest.mark.parametrize("autoflush", [True, False], ids=["autoflush", "by-hand"])
def test_edits_of_a_child_that_a_refresh_of_its_parent_has_dropped(
    store: Do, watched: Do, other: Do, stored: Do, autoflush: bool
) -> None:
    store(Post(id=1, comments=[Comment(id=1, text="old")]))
    session = watched(autoflush=autoflush)
    post = session.get_one(Post, 1)
    [comment] = post.comments
    comment.text = "dropped"
    session.refresh(post)  # expires the comment as well, and reads it not
    session.commit()
    other(Comment, 1, text="theirs")
    comment.text = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()
    assert stored(Comment, 1)["text"] == "theirs"


# -- rows that a statement has inserted -----------------------------------------------------------


_NEW = {"id": 3, "owner": "dropped"}
_INSERT = "INSERT INTO accounts (id, owner, balance, version) VALUES (3, 'dropped', 0, 1)"
_ADDED: dict[str, Any] = {
    "class": lambda s: s.execute(insert(Account).values(_NEW)),
    "rows": lambda s: s.execute(insert(Account), [_NEW]),
    "table": lambda s: s.execute(insert(Account.__table__).values(_NEW)),
    "connection": lambda s: s.connection().execute(insert(Account.__table__).values(_NEW)),
    "text": lambda s: s.execute(text(_INSERT)),
    "mappings": lambda s: s.bulk_insert_mappings(Account, [_NEW]),
    "objects": lambda s: s.bulk_save_objects([Account(**_NEW)]),
}
_UNDONE: dict[str, Any] = {
    "rollback": lambda s, account: s.rollback(),
    "close": lambda s, account: s.close(),
    "expunge": lambda s, account: (s.expunge(account), s.rollback()),
    "savepoint": lambda s, account: (s.get_nested_transaction().rollback(), s.commit()),
}


@pytest.mark.parametrize("way", _ADDED)
@pytest.mark.parametrize("end", _UNDONE)
def test_a_row_that_a_statement_inserted_in_vain_is_not_that_of_somebody_else(
    session: Session, store: Do, stored: Do, way: str, end: str
) -> None:
    """It has the same first version."""
    session.connection()
    if end == "savepoint":
        session.begin_nested()
    _ADDED[way](session)
    account = session.get_one(Account, 3)
    _UNDONE[end](session, account)
    store(Account(id=3, owner="theirs"))
    session.add(account)
    account.note = "mine"
    with pytest.raises(ConfigurationError, match="without having been read"):
        session.commit()
    session.refresh(account)
    account.note = "mine"
    session.commit()
    assert (stored(Account, 3)["owner"], stored(Account, 3)["note"]) == ("theirs", "mine")


def test_so_it_is_where_values_are_compared(store: Do, watched: Do, stored: Do) -> None:
    store(Pair(id=1))
    session = watched()
    session.execute(insert(Pair).values(id=2, left="dropped"))
    pair = session.get_one(Pair, 2)
    session.rollback()
    store(Pair(id=2, left="theirs"))
    pair.right = "mine"
    with pytest.raises(ConfigurationError, match="never read"):
        session.commit()
    assert stored(Pair, 2)["left"] == "theirs"


@pytest.mark.parametrize("end", ["rollback", "savepoint"])
def test_what_was_read_before_the_insert_is_left_alone(
    session: Session, stored: Do, end: str
) -> None:
    """A get-or-create idiom: neither edits nor values of other objects go with its savepoint."""
    account, bob = session.get_one(Account, 1), session.get_one(Account, 2)
    account.owner = "mine"
    if end == "rollback":
        account.owner = "Ada"
    savepoint = session.begin_nested() if end == "savepoint" else session
    session.execute(insert(Account).values(_NEW))
    session.get_one(Account, 3)
    savepoint.rollback()
    assert end == "rollback" or inspect(bob).dict["owner"] == "Bob"
    account.note = bob.note = "mine"
    session.commit()
    assert stored(Account, 1)["owner"] == ("mine" if end == "savepoint" else "Ada")
    assert stored(Account, 2)["note"] == "mine"


def test_many_inserts_are_noted_once(session: Session) -> None:
    for number in range(3, 9):
        session.execute(insert(Account).values(id=number))
        session.execute(insert(Note).values(id=number))
    assert len(watched_state(session).stated) == 2
