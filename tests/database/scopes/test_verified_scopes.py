"""Scopes that a transaction has verified: what refuses its COMMIT, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    etag_of,
    expect,
    lock,
    unit_of_work,
    verify,
)
from tests.support.rooms import ALL, EIGHT, SEVEN, Booking, Room, Shift


def write_elsewhere(session: Session) -> None:
    session.get_one(Shift, 1).note += 1


def nothing(session: Session) -> None:
    pass


def insert(room: int) -> Any:
    return lambda session: session.add(Booking(id=10 + room, room_id=room))


def change(key: int, **values: Any) -> Any:
    def act(session: Session) -> None:
        for name, value in values.items():
            setattr(session.get_one(Booking, key), name, value)

    return act


def delete_first(session: Session) -> None:
    session.delete(session.get_one(Booking, 1))


def rolled_back(session: Session) -> None:
    with session.begin_nested() as savepoint:
        insert(7)(session)
        session.flush()
        savepoint.rollback()


def released(session: Session) -> None:
    with session.begin_nested():
        insert(7)(session)


@pytest.mark.parametrize(
    ("others_do", "refuses"),
    [
        (nothing, False),
        (insert(8), False),
        (insert(7), True),
        (delete_first, True),
        (change(1, hour=1), True),
        (change(1, room_id=8), True),
        (change(2, room_id=7), True),
        (change(1, seen=1), False),
        (rolled_back, False),
        (released, True),
    ],
)
@pytest.mark.parametrize("mine", [write_elsewhere, insert(9)])
def test_what_others_do_refuses_a_commit(sessions, others_do, refuses, mine):
    with sessions() as session:
        verify(session, SEVEN)
        with sessions.begin() as other:
            others_do(other)
        mine(session)
        if not refuses:
            session.commit()
            return
        with pytest.raises(ConcurrencyError) as caught:
            session.commit()
        session.rollback()
        (entry,) = caught.value.entries
        assert (entry.model, entry.identity, entry.action) == (Booking, (7,), "verify")
        assert not isinstance(caught.value, PreconditionFailed)
    with sessions() as session:
        assert session.get_one(Shift, 1).note == 0
        assert session.get(Booking, 19) is None


def test_a_phantom_in_a_scope_that_had_no_row(sessions):
    with sessions() as session:
        assert verify(session, Booking.scope(room_id=9), select(Booking.id)) != []
        with sessions.begin() as other:
            other.add(Booking(id=3, room_id=9))
        write_elsewhere(session)
        with pytest.raises(ConcurrencyError):
            session.commit()


def test_my_own_writes_do_not_refuse_me(sessions, versions):
    with sessions.begin() as session:
        verify(session, SEVEN)
        for key in (3, 4):
            session.add(Booking(id=key, room_id=7))
            session.flush()
        session.get_one(Booking, 1).room_id = 8
    assert versions()[SEVEN.key] == 1


def test_rows_are_read_after_the_version(sessions):
    with sessions.begin() as session:
        rows = verify(session, SEVEN, select(Booking).where(Booking.room_id == 7))
        assert [row.id for row in rows] == [1]
        assert verify(session, ALL, select(Booking.id, Booking.room_id)) == [(1, 7), (2, 8)]
        assert verify(session, ALL, select(Booking.hour)) == [0, 0]
        rooms = select(Room).options(joinedload(Room.bookings)).where(Room.id == 7)
        assert [room.id for room in verify(session, ALL, rooms)] == [7]


def test_a_second_look_that_sees_more_is_refused_at_once(sessions):
    with sessions() as session:
        verify(session, SEVEN)
        with sessions.begin() as other:
            insert(7)(other)
        with pytest.raises(ConcurrencyError):
            verify(session, SEVEN)
            session.commit()  # at REPEATABLE READ the second look sees the same


def test_promises_end_with_their_transaction(sessions):
    with sessions() as session:
        verify(session, SEVEN)
        session.rollback()
        with sessions.begin() as other:
            insert(7)(other)
        write_elsewhere(session)
        session.commit()


def test_a_unit_runs_again(sessions):
    attempts = []

    @unit_of_work(sessions)
    def book(session: Session) -> int:
        rows = verify(session, SEVEN, select(Booking).where(Booking.room_id == 7))
        if not attempts:
            with sessions.begin() as other:
                insert(7)(other)
        attempts.append(len(rows))
        session.add(Booking(id=20, room_id=7))
        return len(rows)

    assert book() == 2
    assert attempts == [1, 2]


# -- clients ---------------------------------------------------------------------------------------


def test_a_tag_is_good_once(sessions):
    with sessions() as session:
        tag = etag_of(session, SEVEN)
    with UnitOfWork(sessions) as session:
        expect(session, SEVEN, tag)
        session.add(Booking(id=3, room_id=7))
    with UnitOfWork(sessions) as session, pytest.raises(PreconditionFailed):
        expect(session, SEVEN, tag)
    with sessions() as session:
        assert etag_of(session, SEVEN) != tag
        assert etag_of(session, EIGHT) != etag_of(session, SEVEN)


def test_a_scope_that_moves_after_expect_fails_the_precondition(sessions):
    with sessions() as session:
        expect(session, SEVEN, etag_of(session, SEVEN))
        with sessions.begin() as other:
            insert(7)(other)
        session.add(Booking(id=3, room_id=8))
        with pytest.raises(PreconditionFailed):
            session.commit()


def test_a_changed_scope_has_no_tag_yet(sessions):
    with sessions() as session:
        session.add(Booking(id=3, room_id=7))
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="only after COMMIT"):
                etag_of(session, SEVEN)
            session.flush()
        session.commit()
        assert etag_of(session, SEVEN).endswith('.1-0"')


def test_a_tag_between_two_transactions_is_of_neither(sessions):
    with sessions() as session:
        for count in (2, 4, 6):
            for _ in range(2):
                session.get_one(Booking, 1).hour += 1
                session.commit()
            assert etag_of(session, SEVEN).endswith(f'.{count}-0"')


# -- locked first ----------------------------------------------------------------------------------


def test_a_locked_scope_is_stored(sessions, versions):
    for _ in range(2):
        with sessions.begin() as session:
            assert lock(session, SEVEN)
            session.get_one(Booking, 1).hour += 1
    assert versions()[SEVEN.key] == 2
