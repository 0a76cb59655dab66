"""What ZODB's conflict resolution does, and scenarios that were added to those of others."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from optilock import (
    PreconditionFailed,
    UnitOfWork,
    apply,
    is_transient,
    retrying,
    unit_of_work,
)
from optilock.resolvers import Resolution, add_delta, per_field
from tests.spec.models import Doc, Line, Order
from tests.spec.steps import alive
from tests.support.models import Account


@alive
def test_two_steps_of_a_counter_are_two(store, watched, other, stored):
    """EX-01"""
    store(Account(id=1, balance=0))
    session = watched(per_field(balance=add_delta))
    account = session.get_one(Account, 1)
    other(Account, 1, balance=1)
    account.balance += 1
    session.commit()

    assert (stored(Account, 1)["balance"], account.balance) == (2, 2)


def broken(entry):
    raise RuntimeError("a bug of the application")


def meddling(entry):
    entry.current["balance"] = 100  # type: ignore[index]
    return Resolution.overwrite()


@alive
@pytest.mark.parametrize("resolver", [broken, meddling])
def test_a_resolver_that_fails_or_meddles_is_an_error_of_the_program(
    store, watched, other, stored, resolver
):
    """EX-01, C9: the entry cannot be changed, and the caller sees what the resolver has raised."""
    store(Account(id=1, balance=0))
    session = watched(resolver)
    account = session.get_one(Account, 1)
    other(Account, 1, balance=1)
    account.balance = 10
    with pytest.raises(RuntimeError if resolver is broken else TypeError) as caught:
        session.flush()
    session.rollback()

    assert not is_transient(caught.value)
    assert stored(Account, 1)["balance"] == 1


def test_a_mistake_is_not_run_again(engine, store):
    """EX-12"""
    store(Doc(id=1))
    ran = []

    @unit_of_work(sessionmaker(engine), retry=retrying(attempts=5, wait_initial=0))
    def wrong(session):
        ran.append(1)
        session.add(Doc(id=1))

    with pytest.raises(IntegrityError) as caught:
        wrong()

    assert len(ran) == 1
    assert not is_transient(caught.value)


# -- roots -----------------------------------------------------------------------------------------


def test_who_holds_the_root_as_it_was_must_look_again(orders, watched, refused):
    """EX-11: both sides change something of one order."""
    session, theirs = watched(), watched(autoflush=False)
    session.get_one(Order, 1).name = "mine"
    theirs.get_one(Line, 1).amount = 5
    theirs.commit()
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity, entry.database["version"]) == (Order, (1,), 2)


@pytest.mark.parametrize("expected", [1, 2])
def test_an_edit_for_a_version_that_was_seen_is_one_call(engine, store, other, stored, expected):
    """EX-04: and writes nothing when the row is another version."""
    store(Doc(id=1, name="a"))
    other(Doc, 1, name="theirs")
    sessions = sessionmaker(engine)
    if expected == 1:
        with pytest.raises(PreconditionFailed) as caught, UnitOfWork(sessions) as session:
            apply(session, Doc, 1, {"name": "ours"}, expected=1)
        assert caught.value.entries[0].changes == {"name": "ours"}
    else:
        with UnitOfWork(sessions) as session:
            apply(session, Doc, 1, {"name": "ours"}, expected=2)

    assert stored(Doc, 1)["name"] == ("theirs" if expected == 1 else "ours")
