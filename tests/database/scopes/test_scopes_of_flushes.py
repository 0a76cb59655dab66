"""Which versions of scopes a flush moves, by what it writes."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, func, literal, select
from sqlalchemy.orm import Session, defer, sessionmaker

from optilock import (
    ConcurrencyError,
    client_wins,
    merge_fields,
    store_wins,
    touch,
    watch,
)
from optilock.preconditions import overwrite
from optilock.resolvers import Resolution
from optilock.statements import no_bump
from tests.support.rooms import Booking, Room, Shift


def booking(session: Session, key: int = 1) -> Booking:
    return session.get_one(Booking, key)


def set_on(key: int = 1, **values: Any) -> Any:
    def act(session: Session) -> None:
        for name, value in values.items():
            setattr(booking(session, key), name, value)

    return act


def delete_one(session: Session) -> None:
    session.delete(booking(session))


def there_and_back(session: Session) -> None:
    booking(session).hour = 5
    booking(session).hour = 0


@pytest.mark.parametrize(
    ("act", "moves"),
    [
        (lambda s: s.add(Booking(id=3, room_id=7)), {7, "all"}),
        (lambda s: s.add(Booking(id=3)), {None, "all"}),
        (lambda s: s.add_all([Booking(id=n, room_id=n) for n in (7, 8)]), {7, 8, "all"}),
        (set_on(hour=3), {7, "all"}),
        (set_on(room_id=8), {7, 8, "all"}),
        (set_on(room_id=None), {7, None, "all"}),
        (set_on(likes=1), {7, "all"}),
        (set_on(seen=1), set()),
        (there_and_back, set()),
        (delete_one, {7, "all"}),
        (lambda s: touch(booking(s)), {7, "all"}),
        (lambda s: s.add(Shift(id=2)), set()),
        (lambda s: booking(s), set()),
    ],
)
def test_a_flush_moves_the_scopes_of_what_it_writes(moved, act, moves):
    assert moved(act) == moves


def test_a_plain_session_moves_them_as_well(moved, rooms):
    assert moved(set_on(room_id=8), sessionmaker(rooms).begin) == {7, 8, "all"}


def test_children_follow_their_parent_inside_the_flush(moved):
    def append(session: Session) -> None:
        room = session.get_one(Room, 9)
        room.bookings.append(Booking(id=3))

    def let_go(session: Session) -> None:
        room = session.get_one(Room, 7)
        room.bookings.clear()

    def delete_parent(session: Session) -> None:
        session.delete(session.get_one(Room, 9))

    assert moved(append) == {9, "all"}
    assert moved(let_go) == {7, None, "all"}
    assert moved(delete_parent) == {9, None, "all"}


def test_a_move_happens_once_in_a_transaction(sessions, versions):
    with sessions.begin() as session:
        for hour in (1, 2, 3):
            booking(session).hour = hour
            session.flush()
    assert versions() == {"bookings(room_id)=1:7": 1, "bookings()=": 1}


# -- savepoints ------------------------------------------------------------------------------------


def test_a_savepoint_that_is_rolled_back_moves_nothing(moved):
    def inner(session: Session) -> None:
        with session.begin_nested() as savepoint:
            booking(session).hour = 1
            session.flush()
            savepoint.rollback()

    def outer(session: Session) -> None:
        with session.begin_nested() as savepoint:
            with session.begin_nested():
                booking(session).hour = 1
            savepoint.rollback()

    def both(session: Session) -> None:
        inner(session)
        booking(session, 2).hour = 1

    assert moved(inner) == set()
    assert moved(outer) == set()
    assert moved(both) == {8, "all"}


def test_a_savepoint_that_is_released_moves(moved, sessions, versions):
    def released(session: Session) -> None:
        with session.begin_nested():
            booking(session).hour = 1

    assert moved(released) == {7, "all"}
    with sessions() as session:
        session.begin_nested()
        booking(session).hour = 2
        session.commit()  # with the savepoint open
    assert versions()["bookings(room_id)=1:7"] == 2


# -- rows whose stored scope is another one, or unknown --------------------------------------------


def other_moves_it(rooms: Engine, room: int) -> None:
    with Session(rooms) as other, other.begin():
        booking(other).room_id = room


@pytest.mark.parametrize(
    ("resolver", "moves"),
    [(client_wins, {9, "all"}), (merge_fields, {9, "all"}), (store_wins, set())],
)
def test_a_corrected_row_moves_the_scope_that_is_stored(rooms, versions, resolver, moves):
    with watch(sessionmaker(rooms), on_conflict=resolver)() as session:
        booking(session).hour = 1
        other_moves_it(rooms, 9)
        before = versions()
        session.commit()
    now = versions()
    changed = {key for key in now if now[key] > before.get(key, 0)}
    assert ("bookings(room_id)=1:9" in changed) == bool(moves)


def test_an_overwritten_delete_moves_the_scope_that_is_stored(rooms, sessions, versions):
    with sessions() as session:
        overwrite(booking(session))
        other_moves_it(rooms, 9)
        session.delete(booking(session))
        session.commit()
    assert versions()["bookings(room_id)=1:9"] == 2


def test_a_sum_moves_the_scope_that_is_stored(rooms, sessions, versions):
    with sessions() as session:
        booking(session).likes += 1
        other_moves_it(rooms, 9)
        session.commit()
    assert versions()["bookings(room_id)=1:9"] == 2


def test_a_refused_row_moves_nothing(rooms, sessions, versions):
    with sessions() as session:
        booking(session).hour = 1
        other_moves_it(rooms, 9)
        before = versions()
        with pytest.raises(ConcurrencyError):
            session.flush()
        session.expire_all()
        session.commit()
    assert versions() == before


@pytest.mark.parametrize(
    ("new", "moves"),
    [
        ({"room_id": 9}, {7, 9, "all"}),
        ({"room_id": 7}, {7, "all"}),
        ({"seen": 3}, {7, None, "all"}),
    ],
)
def test_a_new_object_that_takes_over_a_row_moves_the_scope_that_it_leaves(moved, new, moves):
    """A delete and an insert, for which SQLAlchemy sends one UPDATE."""

    def act(session: Session) -> None:
        session.delete(booking(session))
        session.add(Booking(id=1, **new))

    assert moved(act) == moves


@pytest.mark.parametrize("resolver", [client_wins, store_wins])
def test_so_it_does_over_a_row_that_has_moved(rooms, versions, resolver):
    with watch(sessionmaker(rooms), on_conflict=resolver)() as session:
        session.delete(booking(session))
        session.add(Booking(id=1, room_id=8))
        other_moves_it(rooms, 9)
        before = versions()
        session.commit()
    moves = {key[-1] for key, version in versions().items() if version > before.get(key, 0)}
    assert moves == (set() if resolver is store_wins else {"8", "9", "="})


@pytest.mark.parametrize("gone", [True, False])
def test_a_delete_that_a_resolver_turns_into_a_write_moves_scopes(rooms, versions, gone):
    """The row is inserted again, or kept and changed."""

    def resolver(entry: Any) -> Resolution:
        return Resolution.write({"room_id": 8})

    with watch(sessionmaker(rooms), on_conflict=resolver)() as session:
        session.delete(booking(session))
        if gone:
            with Session(rooms) as other, other.begin():
                other.delete(booking(other))
        else:
            other_moves_it(rooms, 9)
        before = versions()
        session.commit()
    moves = {key[-1] for key, version in versions().items() if version > before.get(key, 0)}
    assert moves == ({"8", "="} if gone else {"8", "9", "="})


def test_a_scope_that_was_never_loaded_is_read(moved):
    def deferred(session: Session) -> None:
        query = select(Booking).options(defer(Booking.room_id)).where(Booking.id == 1)
        session.scalars(query).one().hour = 4

    def expired(session: Session) -> None:
        row = booking(session)
        session.expire(row, ["room_id"])
        row.room_id = 8

    assert moved(deferred) == {7, "all"}
    assert moved(expired) == {7, 8, "all"}


def test_a_value_that_the_database_computes_moves_all(moved):
    assert moved(set_on(room_id=select(func.min(Room.id)).scalar_subquery())) == {7, "*", "all"}
    assert moved(lambda s: s.add(Booking(id=3, room_id=literal(8) + 1))) >= {"all"}


def test_no_bump_moves_what_changes_the_rows_of_a_scope(moved):
    def keeps(session: Session) -> None:
        with no_bump(session):
            booking(session).hour = 1

    def changes(session: Session) -> None:
        with no_bump(session):
            booking(session).room_id = 9

    def inserts(session: Session) -> None:
        with no_bump(session):
            session.add(Booking(id=3, room_id=8))

    assert moved(keeps) == set()
    assert moved(changes) == {7, 9}
    assert moved(inserts) == {8, "all"}
