"""SQLAlchemy's own bulk calls in a watched session: checked row by row, and told with entries."""

from __future__ import annotations

import pickle

import pytest
from sqlalchemy import String, bindparam, delete, insert, update
from sqlalchemy.orm import Mapped, make_transient_to_detached
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, ConfigurationError, Versioned
from optilock.testing import count_statements
from optilock.tokens import Manual, RowVersion, Timestamp
from tests.support.models import Account, Base, Car, Dog, Note, Vehicle, key


class Contract(Versioned, Base):
    __tablename__ = "bulk_contracts"
    __version_token__ = Manual(String(40))
    id: Mapped[int] = key()
    text: Mapped[str | None]


ROWS = [
    {"id": 1, "version": 1, "owner": "mine"},
    {"id": 2, "version": 1, "owner": "mine"},
    {"id": 3, "version": 1, "owner": "mine"},
]


def execute(session, rows):
    session.execute(update(Account), rows)


def mappings(session, rows):
    session.bulk_update_mappings(Account, rows)


def objects(session, rows):
    """Objects that were read before the other writer came."""
    for obj in session.info["read"]:
        obj.owner = "mine"
    session.bulk_save_objects(session.info["read"])


CALLS = pytest.mark.parametrize("call", [execute, mappings, objects])


@pytest.fixture
def session(store, watched):
    store(*(Account(id=n, owner="Ada") for n in (1, 2, 3)))
    session = watched()
    session.info["read"] = [session.get_one(Account, n) for n in (1, 2, 3)]
    session.expunge_all()
    session.rollback()
    return session


@CALLS
def test_a_row_that_has_moved_is_a_conflict_with_its_entry(session, other, call):
    other(Account, 2, note="theirs")
    with pytest.raises(ConcurrencyError, match="UPDATE statement on table 'accounts'") as caught:
        call(session, ROWS)
    [entry] = caught.value.entries
    assert (entry.model, entry.identity, entry.kind) == (Account, (2,), "updated")
    assert entry.original["version"] == 1
    assert (entry.changes["owner"], entry.database["note"]) == ("mine", "theirs")
    assert pickle.loads(pickle.dumps(caught.value)).entries == (entry,)


@CALLS
def test_a_row_that_is_gone_is_one_too(session, gone, stored, call):
    gone(Account, 3)
    with pytest.raises(ConcurrencyError) as caught:
        call(session, ROWS)
    assert [(e.identity, e.kind) for e in caught.value.entries] == [((3,), "deleted")]
    session.rollback()
    assert stored(Account, 1)["owner"] == "Ada"


@CALLS
def test_inside_a_savepoint_the_transaction_goes_on_after_it(session, other, stored, call):
    other(Account, 1, note="theirs")
    session.execute(insert(Account).values(id=9))
    with pytest.raises(ConcurrencyError) as caught, session.begin_nested():
        call(session, ROWS)
    assert [entry.identity for entry in caught.value.entries] == [(1,)]
    session.commit()
    assert stored(Account, 9)["version"] == 1
    assert stored(Account, 2)["owner"] == "Ada"


@pytest.mark.parametrize("changed_only", [True, False])
def test_objects_of_the_session_that_are_saved_in_bulk_are_told_too(session, other, changed_only):
    read = session.info["read"]
    session.add_all(read)
    read[1].owner = "mine"
    other(Account, 2, note="theirs")
    with pytest.raises(ConcurrencyError) as caught:
        session.bulk_save_objects(read, update_changed_only=changed_only)
    assert [entry.identity for entry in caught.value.entries] == [(2,)]


def test_joined_rows_and_random_versions_are_told_as_well(store, watched, other):
    store(Dog(id=1), Note(id=1))
    session = watched()
    seen = session.get_one(Note, 1).version
    session.rollback()
    other(Dog, 1, tricks="theirs")
    other(Note, 1, text="theirs")
    for model, row in (
        (Dog, {"id": 1, "version": 1, "tricks": "mine"}),
        (Note, {"id": 1, "version": seen, "text": "mine"}),
    ):
        with pytest.raises(ConcurrencyError) as caught:
            session.execute(update(model), [row])
        assert caught.value.entries[0].model is model
        session.rollback()


def test_rows_in_their_versions_need_no_further_statement(session, engine):
    with count_statements(engine) as sent:
        session.execute(update(Account), ROWS)
    assert {statement.text.split()[0] for statement in sent.statements} == {"UPDATE"}


def test_a_where_of_its_own_cannot_be_checked_and_is_refused(session, engine):
    statement = update(Account).where(Account.balance >= 0)
    options = {"synchronize_session": None}
    with count_statements(engine) as sent, pytest.raises(ConfigurationError, match="WHERE"):
        session.execute(statement, ROWS, execution_options=options)
    assert sent.count == 0


def test_many_sets_of_parameters_of_a_where_move_the_versions(session, stored):
    session.execute(
        update(Account).where(Account.id == bindparam("which")),
        [{"which": 1, "owner": "x"}, {"which": 2, "owner": "y"}],
        execution_options={"dml_strategy": "core_only"},
    )
    session.commit()
    assert [stored(Account, n)["version"] for n in (1, 2, 3)] == [2, 2, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda session, row: session.execute(insert(Account), [row]),
        lambda session, row: session.execute(insert(Account), row),
        lambda session, row: session.bulk_insert_mappings(Account, [row]),
    ],
    ids=["rows", "one row", "mappings"],
)
def test_a_version_that_would_not_be_stored_is_refused(session, engine, call):
    with count_statements(engine) as sent, pytest.raises(ConfigurationError, match="version"):
        call(session, {"id": 7, "version": 5})
    assert sent.count == 0
    call(session, {"id": 7, "version": 1})


def test_rows_can_be_copied_with_their_versions(session, stored):
    session.execute(insert(Account.__table__), [{"id": 7, "version": 5}])
    session.execute(insert(Account).values([{"id": 8, "version": 6}]))
    session.commit()
    assert [stored(Account, n)["version"] for n in (7, 8)] == [5, 6]


def test_rows_of_a_parent_whose_children_have_the_version_are_refused(store, watched):
    store(Car(id=1))
    with pytest.raises(ConfigurationError, match="Car"):
        watched().execute(update(Vehicle), [{"id": 1, "name": "mine"}])


def test_a_row_that_a_trigger_keeps_is_told_in_sqlalchemys_words(session, engine):
    """Nobody was first: no version has moved."""
    if engine.dialect.name != "sqlite":
        pytest.skip("the trigger is written for SQLite")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER kept BEFORE UPDATE ON accounts BEGIN SELECT RAISE(IGNORE); END"
        )
    with pytest.raises(StaleDataError) as caught:
        session.execute(update(Account), ROWS)
    assert not isinstance(caught.value, ConcurrencyError)


def test_delete_by_criteria_is_the_statements_own_decision(session, stored):
    session.execute(delete(Account).where(Account.id == 1))
    session.commit()
    assert stored(Account, 1) is None


def test_objects_with_a_version_assigned_by_the_application_are_refused(store, watched, stored):
    """SQLAlchemy compares the assigned one with the stored one: it never is the same."""
    store(Contract(id=1, version="one"))
    session = watched()
    contract = session.get_one(Contract, 1)
    contract.text, contract.version = "x", "two"
    with pytest.raises(ConfigurationError, match="flush the session instead"):
        session.bulk_save_objects([contract])
    session.commit()
    assert stored(Contract, 1)["version"] == "two"
    contract.text = "y"  # which moves nothing
    session.bulk_save_objects([contract])
    session.commit()
    assert stored(Contract, 1)["text"] == "y"


def test_an_expired_object_is_saved_in_the_version_that_was_seen(store, watched, stored, other):
    store(Account(id=1), Account(id=2))
    session = watched()
    mine, older = session.get_one(Account, 1), session.get_one(Account, 2)
    session.commit()  # expires them
    other(Account, 2, owner="theirs")
    mine.owner = older.owner = "mine"
    session.bulk_save_objects([mine])
    mine.note = "again"
    session.expunge(older)
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("mine", 3)
    with pytest.raises(ConcurrencyError):
        session.bulk_save_objects([older])
    session.rollback()
    assert stored(Account, 2)["owner"] == "theirs"


def test_an_object_that_nobody_has_read_is_not_saved(store, watched, stored):
    store(Account(id=1))
    unread = Account(id=1)
    make_transient_to_detached(unread)
    unread.owner = "mine"
    with pytest.raises(ConfigurationError, match="never read"):
        watched().bulk_save_objects([unread])
    assert stored(Account, 1)["owner"] is None


@pytest.mark.parametrize("expired", [False, True])
def test_an_object_that_nobody_changed_is_saved_and_knows_its_version(
    store, watched, stored, expired
):
    """SQLAlchemy moves its version all the same."""
    store(Account(id=1, owner="Ada"))
    session = watched()
    account = session.get_one(Account, 1)
    if expired:
        session.commit()
    session.bulk_save_objects([account])
    account.owner = "mine"
    session.commit()

    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("mine", 3)


class Signed(Versioned, Base):
    __tablename__ = "bulk_signed"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    text: Mapped[str | None]


class Dated(Versioned, Base):
    __tablename__ = "bulk_dated"
    __version_token__ = Timestamp()
    id: Mapped[int] = key()
    text: Mapped[str | None]


@pytest.mark.parametrize("expire", [True, False], ids=["expire", "keep"])
@pytest.mark.parametrize("model", [Note, Signed, Dated])
def test_versions_that_only_a_look_can_tell_are_known_after_bulk_save(
    store, watched, other, stored, model, expire
):
    """Read later, it would be another writer's."""
    store(model(id=1, text="old"))
    session = watched(expire_on_commit=expire)
    held = session.get_one(model, 1)
    held.text = "first"
    session.bulk_save_objects([held])
    held.text = "second"
    session.commit()
    held.text = "third"
    session.bulk_save_objects([held])
    session.commit()
    assert stored(model, 1)["text"] == "third"
    other(model, 1, text="theirs")
    held.text = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()

    assert stored(model, 1)["text"] == "theirs"
