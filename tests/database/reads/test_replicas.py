"""A session that reads from a replica: what is checked is read where it is written."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Delete, Insert, Update, create_engine, update
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, bulk_update, client_wins, verify, watch
from tests.support.models import Account, Dog
from tests.support.two_writers import tables_of


@pytest.fixture
def sessions(engine, store, tmp_path):
    """The replica has the rows in their first versions, and is told of nothing else."""
    replica = create_engine(f"sqlite:///{tmp_path}/replica.db")
    store(Account(id=1, owner="Ada"), Account(id=2), Dog(id=1))
    Account.metadata.create_all(replica, tables=tables_of(Account, Dog))
    with Session(replica) as copy, copy.begin():
        copy.add_all([Account(id=1, owner="Ada"), Account(id=2), Dog(id=1)])

    class Routing(Session):
        """As the documentation of SQLAlchemy has it."""

        def get_bind(self, mapper: Any = None, clause: Any = None, **options: Any) -> Any:
            writes = self._flushing or isinstance(clause, (Update, Delete, Insert))
            return engine if writes else replica

    yield watch(sessionmaker(class_=Routing))
    replica.dispose()


@pytest.mark.parametrize("resolver", [None, client_wins])
def test_a_row_that_has_moved_on_the_primary_is_a_conflict(sessions, other, stored, resolver):
    other(Account, 1, note="theirs")
    unit = UnitOfWork(sessions, on_conflict=resolver)
    if resolver is None:
        with pytest.raises(ConcurrencyError) as caught, unit as session:
            session.get_one(Account, 1).owner = "mine"
        assert caught.value.entries[0].database["note"] == "theirs"
        return
    with unit as session:
        session.get_one(Account, 1).owner = "mine"
    row = stored(Account, 1)
    assert (row["owner"], row["note"]) == ("mine", "theirs")


def test_a_row_that_was_only_read_is_verified_on_the_primary(sessions, other):
    with sessions() as session:
        verify(session.get_one(Account, 2))
        session.rollback()
    other(Account, 2, note="theirs")
    with sessions() as session:
        verify(session.get_one(Account, 2))
        session.get_one(Account, 1).owner = "mine"
        with pytest.raises(ConcurrencyError) as caught:
            session.commit()
    assert [entry.identity for entry in caught.value.entries] == [(2,)]


def test_statements_and_rows_in_bulk_are_looked_at_on_the_primary(sessions, other, stored):
    other(Account, 1, owner="theirs")
    with sessions() as session:
        older, known = session.get_one(Account, 1), session.get_one(Account, 2)
        session.execute(update(Account).values(balance=5))
        session.execute(update(Dog).values(tricks="mine"))
        assert (older.version, known.version) == (1, 2)
        [entry] = bulk_update(session, Account, [{"id": 2, "version": 7, "note": "x"}]).conflicts
        assert entry.database["version"] == 2
        with pytest.raises(ConcurrencyError) as caught:
            session.execute(update(Account), [{"id": 2, "version": 7, "note": "x"}])
        assert caught.value.entries[0].database["version"] == 2
        session.commit()
        older.note = "mine"
        with pytest.raises(ConcurrencyError):
            session.commit()
    assert stored(Dog, 1)["version"] == 2
