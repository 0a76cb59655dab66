"""``update(Model)`` moves the version, and objects of the session stay right."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, bindparam, select, update

from optilock import ConcurrencyError, ConfigurationError
from optilock.statements import no_bump
from optilock.testing import count_statements
from tests.support.models import Account, Animal, Dog, Employee, Manager, Note, Page

rich = update(Account).where(Account.balance >= 10).values(note="rich")


def test_an_update_moves_the_version_of_the_rows_that_it_changes(account, watched, stored):
    with watched() as session:
        session.execute(rich)
        session.commit()

    assert (stored(account, 1)["version"], stored(account, 2)["version"]) == (2, 1)


@pytest.mark.parametrize("statement", [rich, update(Account.__table__).values(note="x")])
def test_so_does_a_statement_of_a_connection(account, engine: Engine, stored, statement):
    with engine.begin() as connection:
        connection.execute(statement)

    assert stored(account, 1)["version"] == 2


def test_a_version_that_the_statement_names_is_not_moved_twice(account, watched, stored):
    with watched() as session:
        session.execute(rich.values(version=Account.version + 5))
        session.commit()

    assert stored(account, 1)["version"] == 6


def test_an_object_of_the_session_does_not_conflict_with_the_own_statement(
    account, watched, stored
):
    with watched() as session:
        ada = session.get_one(account, 1)
        session.execute(rich)
        assert (ada.version, ada.note) == (2, "rich")
        ada.owner = "Countess"
        session.commit()

    row = stored(account, 1)
    assert (row["owner"], row["note"], row["version"]) == ("Countess", "rich", 3)


@pytest.mark.parametrize("compares", [True, False])
def test_a_version_in_another_table_is_not_compared_by_a_statement(
    store, watched, stored, compares
):
    """B1: such an UPDATE moved the version first, then found no row, and said nothing."""
    store(Dog(id=1, name="Rex", tricks="none"))
    with watched() as session:
        asked = update(Dog).where(Dog.version == 1) if compares else update(Dog)
        if compares:
            with pytest.raises(ConfigurationError, match="bulk_update"):
                session.execute(asked.values(tricks="sit"))
        else:
            session.execute(asked.values(tricks="sit"))
        session.commit()
    row = stored(Dog, 1)
    assert (row["tricks"], row["version"]) == (("none", 1) if compares else ("sit", 2))


def test_so_it_is_with_a_random_version(store, watched, stored):
    store(Note(id=1, text="a"))
    with watched() as session:
        note = session.get_one(Note, 1)
        session.execute(update(Note).values(text="b"))
        note.text = "c"
        session.commit()

    assert stored(Note, 1)["text"] == "c"


def test_an_object_that_a_commit_has_expired_does_not_conflict_either(account, watched, stored):
    with watched() as session:
        ada = session.get_one(account, 1)
        session.commit()
        session.execute(rich)
        ada.owner = "Countess"
        session.commit()

    assert stored(account, 1)["version"] == 3


@pytest.mark.parametrize("balance", [20, 5], ids=["matches", "does not match any more"])
def test_an_object_that_is_older_than_its_row_goes_on_to_conflict(
    account, watched, other, stored, balance
):
    with watched() as session:
        ada = session.get_one(account, 1)
        session.rollback()
        _ = ada.version
        session.expunge(ada)
        session.rollback()
        other(account, 1, balance=balance)
        session.add(ada)
        session.execute(rich)
        ada.owner = "Countess"
        with pytest.raises(ConcurrencyError):
            session.flush()
        session.rollback()

    assert stored(account, 1)["owner"] == "Ada"


@pytest.mark.parametrize("nested", [False, True], ids=["transaction", "savepoint"])
def test_what_is_rolled_back_leaves_the_version_that_was_seen(
    account, watched, stored, nested: bool
):
    with watched() as session:
        ada = session.get_one(account, 1)
        if nested:
            savepoint = session.begin_nested()
            session.execute(rich)
            savepoint.rollback()
        else:
            session.execute(rich)
            session.rollback()
        ada.owner = "Countess"
        session.commit()

    assert stored(account, 1)["version"] == 2


def test_pending_edits_are_written_first(account, watched, stored):
    with watched() as session:
        ada = session.get_one(account, 1)
        ada.owner = "Countess"
        session.execute(rich)
        ada.balance = 3
        session.commit()

    assert stored(account, 1)["version"] == 4


def test_query_update_is_such_a_statement(account, watched, stored):
    with watched() as session:
        ada = session.get_one(account, 1)
        session.query(account).filter_by(owner="Ada").update({"note": "q"})
        ada.owner = "Countess"
        session.commit()

    assert stored(account, 1)["version"] == 3


def test_parameters_may_come_with_the_call(account, watched, stored):
    with watched() as session:
        ada = session.get_one(account, 1)
        session.execute(update(account).where(account.id == bindparam("k")), {"k": 1, "note": "p"})
        ada.owner = "Countess"
        session.commit()

    assert (stored(account, 1)["note"], stored(account, 1)["version"]) == ("p", 3)


def test_columns_of_a_joined_child_move_the_version_in_the_parents_table(store, watched, stored):
    store(Dog(id=1, name="Rex", tricks="none"), Dog(id=2, name="Fido", tricks="sit"))
    with watched() as session:
        rex = session.get_one(Dog, 1)
        session.execute(update(Dog).where(Dog.tricks == "none").values(tricks="roll"))
        rex.name = "King"
        session.commit()

    assert (stored(Dog, 1)["version"], stored(Dog, 2)["version"]) == (3, 1)


def test_a_parent_is_updated_with_its_childrens_rows(store, watched, stored):
    store(Dog(id=1, name="Rex", tricks="none"))
    with watched() as session:
        rex = session.get_one(Dog, 1)
        session.execute(update(Animal).values(name="King"))
        rex.tricks = "roll"
        session.commit()

    assert stored(Dog, 1)["version"] == 3


def test_rows_of_other_classes_in_the_table_stay(store, watched, stored):
    store(Employee(id=1, name="a"), Manager(id=2, name="b", budget=1))
    with watched() as session:
        rows = session.scalars(select(Employee)).all()
        session.execute(update(Manager).values(budget=2))
        for row in rows:
            row.name = "c"
        session.commit()

    assert (stored(Employee, 1)["version"], stored(Employee, 2)["version"]) == (2, 3)


def test_ignored_columns_alone_leave_the_version(store, watched, stored):
    store(Page(id=1, body="a", views=0))
    with watched() as session:
        page = session.get_one(Page, 1)
        session.execute(update(Page).values(views=Page.views + 1))
        session.execute(update(Page).values({Page.views: Page.views + 1}))
        page.body = "b"
        session.commit()

    assert (stored(Page, 1)["views"], stored(Page, 1)["version"]) == (2, 2)


def test_no_bump_leaves_it_as_well(account, watched, stored):
    with watched() as session:
        with no_bump(session):
            session.execute(rich)
        session.commit()

    assert stored(account, 1)["version"] == 1


def test_without_objects_there_is_no_additional_statement(account, watched, engine: Engine):
    with watched() as session, count_statements(engine) as count:
        session.execute(rich)
        session.commit()

    assert len(count.statements) == 1


def test_a_row_of_a_bulk_update_without_its_version_is_refused(account, watched, engine: Engine):
    """trap 34"""
    rows: list[dict[str, Any]] = [{"id": 1, "version": 1, "note": "a"}, {"id": 2, "note": "b"}]
    with watched() as session, count_statements(engine) as count:
        for send in (
            lambda: session.execute(update(account), rows),
            lambda: session.bulk_update_mappings(account, rows),
        ):
            with pytest.raises(ConfigurationError, match=r"Row 1 \(id=2\).*'version'"):
                send()

    assert len(count.statements) == 0


def test_a_bulk_update_compares_and_moves_the_versions(account, watched, stored):
    """trap 34"""
    with watched() as session:
        session.execute(update(account), [{"id": 1, "version": 1, "note": "a"}])
        session.commit()

    assert stored(account, 1)["version"] == 2


# -- statements that are rolled back --------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True], ids=["transaction", "savepoint"])
@pytest.mark.parametrize("by_key", [False, True], ids=["criteria", "key"])
def test_an_object_that_was_read_after_an_undone_statement_must_be_read_again(
    account, watched, other, stored, nested, by_key
):
    """It holds a version that never was, and a counter gives that number to the next writer."""
    session = watched(expire_on_commit=False)
    undone = session.begin_nested() if nested else session
    if by_key:
        session.execute(update(Account), [{"id": 1, "version": 1, "note": "rich"}])
    else:
        session.execute(rich)
    ada = session.get_one(account, 1)
    assert ada.version == 2
    undone.rollback()
    session.commit()
    other(account, 1, owner="Eve")  # version 2
    ada.owner = "Countess"
    with pytest.raises(ConfigurationError, match="statement was rolled back"):
        session.commit()
    session.rollback()
    assert (stored(account, 1)["owner"], ada.owner) == ("Eve", "Eve")
    ada.owner = "Countess"
    session.commit()
    assert stored(account, 1)["owner"] == "Countess"


@pytest.mark.parametrize("nested", [False, True], ids=["transaction", "savepoint"])
@pytest.mark.parametrize("flushed", ["not", "before", "after"])
def test_what_was_seen_before_an_undone_statement_still_counts(
    account, watched, other, stored, nested, flushed
):
    session = watched(expire_on_commit=False)
    ada = session.get_one(account, 1)
    undone = session.begin_nested() if nested else session
    if flushed == "before":
        ada.owner = "before"
        session.flush()
    session.execute(rich)
    if flushed == "after":
        ada.owner = "after"
        session.flush()
    undone.rollback()
    session.commit()
    ada.owner = "Countess"
    session.commit()
    assert (stored(account, 1)["owner"], stored(account, 1)["version"]) == ("Countess", 2)

    other(account, 1, owner="Eve")
    ada.note = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()


@pytest.mark.parametrize("named", [False, True], ids=["by name", "by a parameter's name"])
def test_an_object_follows_the_values_that_are_given_as_parameters(store, watched, stored, named):
    """With the new version and the old value, its next edit would undo the statement."""
    store(Account(id=1, balance=10))
    session = watched()
    account = session.get_one(Account, 1)
    statement = update(Account).where(Account.id == 1)
    if named:
        session.execute(statement.values(balance=bindparam("amount")), {"amount": 50})
    else:
        session.execute(statement, {"balance": 50})
    account.balance += 1
    session.commit()
    assert stored(Account, 1)["balance"] == 51
