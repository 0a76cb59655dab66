"""zope.sqlalchemy commits a ``SessionTransaction``, not a session."""

from __future__ import annotations

import pytest
import transaction
import zope.sqlalchemy
from sqlalchemy.orm import sessionmaker

from optilock import ConcurrencyError, watch
from tests.support.write_skew import Room, is_refused, skewed
from tests.support.write_skew import rooms as rooms
from tests.support.write_skew import strict as strict


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("twophase", [False, True])
def test_zope_runs_a_refused_transaction_again(strict, stored, twophase):
    manager = transaction.TransactionManager()
    sessions = watch(sessionmaker(strict, twophase=twophase))
    zope.sqlalchemy.register(sessions, transaction_manager=manager)
    attempts = []
    for attempt in manager.attempts(3):
        with attempt:
            attempts.append(1)
            session = sessions()
            if len(attempts) == 1:
                skewed(session, strict)
            else:
                session.get_one(Room, 1).guests = 7

    assert len(attempts) == 2
    assert stored(Room, 1)["guests"] == 7


@pytest.mark.engines("postgresql")
def test_zope_lets_the_conflict_out(strict):
    manager = transaction.TransactionManager()
    sessions = watch(sessionmaker(strict))
    zope.sqlalchemy.register(sessions, transaction_manager=manager)
    session = sessions()
    skewed(session, strict)
    with pytest.raises(ConcurrencyError) as caught:
        manager.commit()
    manager.abort()
    is_refused(caught.value)


def test_zope_stores(engine, rooms, stored):
    manager = transaction.TransactionManager()
    sessions = watch(sessionmaker(engine))
    zope.sqlalchemy.register(sessions, transaction_manager=manager)
    session = sessions()
    session.get_one(Room, 1).guests = 3
    manager.commit()

    assert stored(Room, 1)["guests"] == 3
