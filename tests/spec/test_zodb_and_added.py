"""What ZODB's conflict resolution does, and scenarios that were added to those of others."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    apply,
    client_wins,
    is_transient,
    merge_fields,
    retrying,
    unit_of_work,
)
from optilock.resolvers import Resolution, add_delta, per_field
from tests.spec.models import Doc, Grown, Line, Moved, Order, Part
from tests.spec.steps import alive, statement
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


@pytest.mark.parametrize("resolver", [None, client_wins])
def test_a_version_from_outside_cannot_be_assigned(store, watched, other, stored, resolver):
    """EX-04: the stored version is never lowered, so an old number never comes again."""
    store(Doc(id=1, name="a"))
    other(Doc, 1, name="theirs")
    session = watched(resolver)
    doc = session.get_one(Doc, 1)
    with pytest.raises(ConfigurationError):
        doc.version = 1
    with pytest.raises(ConfigurationError):
        Doc(id=2, version=1)
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("theirs", 2)


def test_what_was_refused_can_be_saved_without_typing_it_again(store, engine, other, stored):
    """EX-07: the unit is over, and the entry has the edit."""
    store(Doc(id=1, name="a"))
    with pytest.raises(ConcurrencyError) as caught, UnitOfWork(sessionmaker(engine)) as session:
        doc = session.get_one(Doc, 1)
        other(Doc, 1, name="theirs", other="theirs")
        doc.name = "ours"
    [entry] = caught.value.entries
    with UnitOfWork(sessionmaker(engine)) as session:
        entry.apply_to(session.get_one(entry.model, entry.identity))

    assert stored(Doc, 1) == {"id": 1, "name": "ours", "other": "theirs", "version": 3}


@alive
@pytest.mark.parametrize("same", [False, True])
def test_changes_of_different_columns_are_both_kept_and_of_one_refused(
    store, watched, other, stored, refused, same
):
    """EX-10"""
    store(Doc(id=1, name="a", other="a"))
    session = watched(merge_fields)
    doc = session.get_one(Doc, 1)
    other(Doc, 1, **{"name" if same else "other": "theirs"})
    doc.name = "ours"
    if same:
        assert refused(session).entries[0].conflicting == {"name"}
        session.rollback()
        assert stored(Doc, 1)["name"] == "theirs"
    else:
        session.commit()
        assert stored(Doc, 1) == {"id": 1, "name": "ours", "other": "theirs", "version": 3}
        assert (doc.name, doc.other, doc.version) == ("ours", "theirs", 3)


def test_every_attempt_has_a_new_session_and_new_reads(engine, store, other, stored):
    """EX-12"""
    store(Doc(id=1, name="0"))
    seen = []

    @unit_of_work(
        sessionmaker(engine), retry=retrying(attempts=3, wait_initial=0), strategy="optimistic"
    )
    def add(session):
        doc = session.get_one(Doc, 1)
        seen.append((id(session), doc.name, doc.version))
        hold.append(session)
        if len(seen) < 3:
            other(Doc, 1, name=str(int(doc.name) + 10))
        doc.name = str(int(doc.name) + 1)

    hold = []
    add()

    assert [(name, version) for _, name, version in seen] == [("0", 1), ("10", 2), ("20", 3)]
    assert len({session for session, _, _ in seen}) == 3
    assert stored(Doc, 1)["name"] == "21"


def test_inside_a_running_unit_nothing_is_run_again(engine, store, other, stored):
    """EX-12: only the outermost unit can begin anew."""
    store(Doc(id=1, name="a"))
    sessions, ran = sessionmaker(engine), []

    @unit_of_work(sessions, retry=retrying(attempts=5, wait_initial=0))
    def inner(session):
        ran.append("inner")
        doc = session.get_one(Doc, 1)
        other(Doc, 1, other="theirs")
        doc.name = "ours"
        session.flush()

    with pytest.raises(ConcurrencyError), UnitOfWork(sessions):
        inner()

    assert ran == ["inner"]
    assert stored(Doc, 1)["name"] == "a"


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


def test_a_row_without_a_version_is_told_with_its_key_and_the_repair(
    store, watched, stored, engine
):
    """EX-15: nothing of the flush is written for it, and the repair works."""
    store(Grown(id=7, name="a"))
    statement(engine, Grown, 7, version=None)
    session = watched()
    row = session.get_one(Grown, 7)
    row.name = "ours"
    with pytest.raises(ConfigurationError) as caught:
        session.commit()
    session.rollback()
    assert "Grown (7,)" in str(caught.value)
    assert stored(Grown, 7)["name"] == "a"
    repair = "UPDATE spec_grown SET version = 1 WHERE version IS NULL"
    assert repair in str(caught.value)
    with engine.begin() as connection:
        connection.exec_driver_sql(repair)
    row.name = "ours"
    session.commit()

    assert stored(Grown, 7) == {"id": 7, "name": "ours", "version": 2}


# -- roots -----------------------------------------------------------------------------------------


def add(session):
    order = session.get_one(Order, 1)
    order.lines.append(Line(id=3))


def add_by_key(session):
    session.add(Line(id=3, order_id=1))


def change(session):
    for line in session.scalars(select(Line).where(Line.order_id == 1)).all():
        line.amount = 5
        hold.append(line)


def remove(session):
    order = session.get_one(Order, 1)
    order.lines.remove(order.lines[0])


def delete(session):
    session.delete(session.get_one(Line, 1))


def change_a_grandchild(session):
    part = session.get_one(Part, 1)
    part.name = "ours"
    hold.append(part)


def all_at_once(session):
    order = session.get_one(Order, 1)
    order.name = "ours"
    order.lines[0].amount = 7
    order.lines[0].parts[0].name = "ours"
    order.lines.append(Line(id=3))
    hold.append(order)


hold: list[object] = []
every = pytest.mark.parametrize(
    "act", [add, add_by_key, change, remove, delete, change_a_grandchild, all_at_once]
)


@every
def test_what_belongs_to_a_root_moves_its_version_once(orders, watched, stored, act):
    """EX-11: with the root in the session or not; other roots stay."""
    session = watched(autoflush=False)
    act(session)
    session.commit()
    hold.clear()

    assert [stored(Order, n)["version"] for n in (1, 2)] == [2, 1]


@every
def test_who_holds_the_root_as_it_was_must_look_again(orders, watched, stored, refused, act):
    """EX-11: both sides change something of one order."""
    session, theirs = watched(), watched(autoflush=False)
    order = session.get_one(Order, 1)
    order.name = "mine"
    act(theirs)
    theirs.commit()
    hold.clear()
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity, entry.database["version"]) == (Order, (1,), 2)


def test_a_line_that_changes_its_order_moves_both(orders, watched, stored):
    """EX-11"""
    session = watched(autoflush=False)
    line = session.get_one(Line, 1)
    line.order = session.get_one(Order, 2)
    session.commit()

    assert [stored(Order, n)["version"] for n in (1, 2)] == [2, 2]
    assert stored(Line, 1)["order_id"] == 2


def test_a_root_that_is_new_or_deleted_is_not_moved_as_well(orders, watched, stored):
    """EX-11"""
    session = watched()
    session.add(Order(id=3, lines=[Line(id=30)]))
    session.delete(session.get_one(Order, 2))
    session.commit()

    assert (stored(Order, 3)["version"], stored(Order, 2), stored(Line, 9)) == (1, None, None)


def test_a_single_writer_saves_twice_where_a_trigger_moves_the_version(store, watched, stored):
    """EX-13: what the INSERT and the UPDATE return on SQLite was read before the trigger ran."""
    store(Moved(id=1, name="a"))
    session = watched(expire_on_commit=False)
    row = session.get_one(Moved, 1)
    for name in ("b", "c", "d"):
        row.name = name
        session.flush()
    session.commit()

    assert row.version == stored(Moved, 1)["version"]
    assert stored(Moved, 1)["name"] == "d"


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
