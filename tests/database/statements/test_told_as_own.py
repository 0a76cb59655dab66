"""A row that a statement of the unit itself has moved is no other transaction's conflict."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, insert, text, update
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from optilock import (
    ConcurrencyError,
    is_transient,
    merge_fields,
    retry,
    retrying,
    unit_of_work,
)
from optilock.errors import MovedByOwnStatement
from optilock.web.problems import problem_of
from tests.support.models import Account

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")

UNSYNCHRONISED = {"synchronize_session": False}


def by_key(session: Session) -> None:
    session.execute(
        update(Account).where(Account.id == 1).values(balance=Account.balance + 1),
        execution_options=UNSYNCHRONISED,
    )


def by_another_column(session: Session) -> None:
    session.execute(
        update(Account).where(Account.owner == "Ada").values(balance=Account.balance + 1),
        execution_options=UNSYNCHRONISED,
    )


def by_an_upsert(session: Session) -> None:
    new: Any = {"id": 1, "balance": 0, "version": 1}
    more = {"balance": Account.balance + 1, "version": Account.version + 1}
    if session.get_bind().dialect.name in ("mariadb", "mysql"):
        session.execute(mysql.insert(Account).values(new).on_duplicate_key_update(more))
        return
    from sqlalchemy.dialects import postgresql

    upsert = postgresql.insert(Account).values(new)
    session.execute(upsert.on_conflict_do_update(index_elements=["id"], set_=more))


TEXT = "UPDATE accounts SET balance = balance + 1, version = version + 1 WHERE id = 1"


def by_a_text(session: Session) -> None:
    session.execute(text(TEXT))


def by_the_drivers_text(session: Session) -> None:
    session.connection().exec_driver_sql(TEXT)


def by_a_delete(session: Session) -> None:
    session.execute(delete(Account).where(Account.id == 1), execution_options=UNSYNCHRONISED)


WAYS = [by_key, by_another_column, by_an_upsert, by_a_text, by_the_drivers_text, by_a_delete]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_is_told_as_it_is_and_not_run_again(engine, account, stored, way):
    runs: list[int] = []

    @unit_of_work(engine, strategy="optimistic", retry=retrying(on=Exception))
    def work(session: Session) -> None:
        runs.append(1)
        found = session.get_one(Account, 1)
        way(session)
        found.note = "counted"

    with pytest.raises(MovedByOwnStatement, match="a statement of this transaction itself") as own:
        work()
    error = own.value
    assert (len(runs), stored(Account, 1)["balance"]) == (1, 10)
    assert "another" not in str(error)
    assert not is_transient(error)
    assert problem_of(error) is None
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_delete_of_the_object_as_well(engine, account):
    @unit_of_work(engine, strategy="optimistic")
    def work(session: Session) -> None:
        found = session.get_one(Account, 1)
        by_key(session)
        session.delete(found)

    with pytest.raises(MovedByOwnStatement):
        work()


def test_a_resolver_still_settles_it(engine, account, stored):
    @unit_of_work(engine, on_conflict=merge_fields)
    def work(session: Session) -> None:
        found = session.get_one(Account, 1)
        by_key(session)
        found.note = "counted"

    work()
    assert (stored(Account, 1)["balance"], stored(Account, 1)["note"]) == (11, "counted")


def test_another_transaction_is_told_as_one(engine, account, other, stored):
    """It has moved the row, and the unit's statement another one, or the same one after it."""
    runs: list[int] = []

    @unit_of_work(engine, strategy="optimistic", retry=retrying(wait_initial=0))
    def work(session: Session, key: int) -> None:
        found = session.get_one(Account, 1)
        if not runs:
            other(Account, 1, note=f"theirs {key}")
        runs.append(1)
        way: Callable[[Session], None] = by_key
        if key == 2:
            session.execute(update(Account).where(Account.id == 2).values(balance=5))
        elif len(runs) == 1:
            way(session)
        found.owner = found.owner + "!"

    for key in (1, 2):
        runs.clear()
        work(key)
        assert len(runs) == 2
    assert stored(Account, 1)["owner"] == "Ada!!"


@pytest.mark.engines("sqlite-wal")
def test_a_database_in_memory_has_no_other_transaction():
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Account.metadata.create_all(engine, tables=[Account.__table__])
    with engine.begin() as connection:
        connection.execute(insert(Account.__table__).values(id=1, version=1, balance=0))

    @retry
    @unit_of_work(engine)
    def work(session: Session) -> None:
        found = session.get_one(Account, 1)
        by_key(session)
        found.note = "counted"

    with pytest.raises(MovedByOwnStatement) as own:
        work()
    assert isinstance(own.value, ConcurrencyError)
    engine.dispose()
