"""Which versions of scopes statements and bulk calls move."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select, text, update
from sqlalchemy.orm import Session

from optilock import UnitOfWork, bulk_delete, bulk_update, entities, etag_of, verify
from optilock._watched.statements import scopes as scopes_of_statements
from optilock.statements import no_bump
from optilock.tables.names import commit_tokens
from optilock.testing import count_statements
from tests.support.rooms import SEVEN, Booking, Room, Seat, Shift
from tests.support.work import calls_of

TABLE = Booking.__table__
ROOM = Room.__table__
#: Rows of another table, which may change before the statement is sent.
ROOMS = select(ROOM.c.id).where(ROOM.c.id == 7)
ROWS = [{"id": 3, "room_id": 7}, {"id": 4, "room_id": 9}]
#: The ways to send a statement.
WAYS: dict[str, Any] = {
    "session": lambda session, *given: session.execute(*given),
    "connection": lambda session, *given: session.connection().execute(*given),
}


def find(key: int) -> Any:
    return Booking.id == key


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("given", "moves"),
    [
        ((insert(TABLE), ROWS), {7, 9, "all"}),
        ((insert(TABLE).values(ROWS),), {7, 9, "all"}),
        ((insert(TABLE).values(id=3, room_id=8),), {8, "all"}),
        ((insert(TABLE).values(id=3),), {None, "all"}),
        ((insert(TABLE).from_select(["id"], select(Room.id).where(Room.id == 9)),), {"*"}),
        ((update(TABLE).where(TABLE.c.room_id == 7).values(hour=1),), {7, "all"}),
        ((update(TABLE).where(TABLE.c.room_id == 7).values(room_id=9),), {7, 9, "all"}),
        ((update(TABLE).where(TABLE.c.id == 1).values(hour=1),), {7, "all"}),
        ((update(TABLE).where(TABLE.c.id < 3).values(room_id=9),), {7, 8, 9, "all"}),
        ((update(TABLE).where(TABLE.c.id == 1).values(room_id=TABLE.c.id + 8),), {7, "*", "all"}),
        ((update(TABLE).where(TABLE.c.id == 1).values(seen=1),), set()),
        ((update(TABLE).where(TABLE.c.room_id.in_(ROOMS)).values(hour=1),), {"*"}),
        (
            (update(TABLE).where(TABLE.c.room_id == ROOM.c.id, ROOM.c.id == 7).values(hour=1),),
            {"*"},
        ),
        ((update(TABLE).where(TABLE.c.id == 99).values(hour=1),), set()),
        ((update(TABLE).values(hour=1),), {"*"}),
        ((delete(TABLE).where(TABLE.c.id == 2),), {8, "all"}),
        ((delete(TABLE).where(TABLE.c.room_id == 7),), {7, "all"}),
        ((delete(TABLE),), {"*"}),
        ((text("UPDATE bookings SET hour = 1, version = version + 1"),), {"*"}),
        (
            (text("INSERT INTO bookings (id, hour, seen, likes, version) VALUES (3,0,0,0,1)"),),
            {"*"},
        ),
        ((text("SELECT count(*) FROM bookings"),), set()),
        ((update(Room.__table__).where(Room.__table__.c.id == 7).values(version=5),), set()),
    ],
)
def test_a_statement_moves_the_scopes_of_its_rows(moved, given, moves, way):
    assert moved(lambda session: WAYS[way](session, *given)) == set(moves)


@pytest.mark.parametrize(
    ("given", "moves"),
    [
        ((insert(Booking), ROWS), {7, 9, "all"}),
        ((update(Booking).where(find(1)).values(hour=1),), {7, "all"}),
        ((update(Booking).where(find(1)).values(room_id=9),), {7, 9, "all"}),
        ((update(Booking).where(Booking.room_id == 8).values({Booking.hour: 1}),), {8, "all"}),
        ((update(Booking).values(hour=1),), {"*"}),
        ((update(Booking), [{"id": 1, "version": 1, "room_id": 8}]), {7, 8, "all"}),
        ((update(Booking), [{"id": 1, "version": 1, "seen": 8}]), set()),
        ((delete(Booking).where(find(1)),), {7, "all"}),
    ],
)
def test_a_statement_of_the_class_does_so(moved, given, moves):
    assert moved(lambda session: session.execute(*given)) == set(moves)


@pytest.mark.parametrize(
    "given",
    [insert(Seat.__table__).values(id=3, room_id=7), insert(Seat).values(id=3, room=7)],
    ids=["table", "class"],
)
def test_a_new_row_may_name_the_column_or_its_attribute(moved, given):
    assert moved(lambda session: session.execute(given)) == {7}


@pytest.mark.engines("postgresql")
def test_a_statement_that_returns_values_moves_them_all(moved):
    made = update(Booking).where(find(1)).values(hour=1).returning(Booking.hour)
    assert moved(lambda session: session.scalars(made).all()) >= {7, "all"}


def test_pending_rows_are_stored_before_a_statement_looks(moved):
    def act(session: Session) -> None:
        session.add(Booking(id=3, room_id=9))
        session.execute(update(Booking).where(Booking.id >= 2).values(hour=1))

    assert moved(act) == {8, 9, "all"}


def test_a_statement_of_a_listener_is_seen(moved):
    def other(mapper: Any, connection: Any, target: Any) -> None:
        connection.execute(update(TABLE).where(TABLE.c.id == 2).values(hour=9))
        connection.execute(insert(TABLE).values(id=5, room_id=9))

    def act(session: Session) -> None:
        session.get_one(Booking, 1).hour = 1

    event.listen(Booking, "after_update", other)
    try:
        assert moved(act) == {7, 8, 9, "all"}
    finally:
        event.remove(Booking, "after_update", other)


def test_a_statement_in_a_savepoint_that_is_rolled_back(moved):
    def act(session: Session) -> None:
        with session.begin_nested() as savepoint:
            session.execute(update(Booking).where(find(1)).values(hour=1))
            savepoint.rollback()

    assert moved(act) == set()


def test_many_rows_move_all(moved, monkeypatch):
    monkeypatch.setattr(scopes_of_statements, "MOST", 1)
    two = update(Booking).where(Booking.id < 3).values(hour=1)
    assert moved(lambda session: session.execute(two)) == {"*"}


def test_no_bump_keeps_the_scopes_of_rows_that_stay(moved):
    def act(**values: Any) -> Any:
        def act(session: Session) -> None:
            with no_bump(session):
                session.execute(update(Booking).where(find(1)).values(**values))

        return act

    assert moved(act(hour=1)) == set()
    assert moved(act(room_id=8)) == {7, 8, "all"}


# -- bulk calls and entities -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "moves"),
    [
        (lambda s: bulk_update(s, Booking, [{"id": 1, "version": 1, "hour": 2}]), {7, "all"}),
        (lambda s: bulk_update(s, Booking, [{"id": 1, "version": 1, "room_id": 9}]), {7, 9, "all"}),
        (lambda s: bulk_update(s, Booking, [{"id": 1, "version": 1, "seen": 9}]), set()),
        (lambda s: bulk_update(s, Booking, [{"id": 1, "version": 5, "hour": 2}]), set()),
        (lambda s: bulk_delete(s, Booking, [{"id": 2, "version": 1}]), {8, "all"}),
        (lambda s: s.bulk_insert_mappings(Booking, ROWS), {7, 9, "all"}),
        (
            lambda s: s.bulk_update_mappings(Booking, [{"id": 1, "version": 1, "room_id": 9}]),
            {7, 9, "all"},
        ),
        (lambda s: s.bulk_save_objects([Booking(id=3, room_id=7)]), {7, "all"}),
        (lambda s: entities.insert(s, Booking, 3, {"room_id": 9}), {9, "all"}),
        (lambda s: entities.merge(s, Booking, 1, {"hour": 9}, if_match="*"), {7, "all"}),
        (lambda s: entities.merge(s, Booking, 1, {"seen": 9}, if_match="*"), set()),
        (lambda s: entities.replace(s, Booking, 1, {"room_id": 9}, if_match="*"), {7, 9, "all"}),
        (lambda s: entities.delete(s, Booking, 2, if_match="*"), {8, "all"}),
        (lambda s: entities.insert_or_merge(s, Booking, 1, {"room_id": 8}), {7, 8, "all"}),
        (lambda s: entities.insert_or_merge(s, Booking, 3, {"room_id": 8}), {8, "all"}),
    ],
)
def test_bulk_calls_and_entities_move_scopes(moved, act, moves):
    assert moved(act) == set(moves)


def test_saved_objects_move_both_scopes(moved, sessions):
    with sessions() as session:
        booking = session.get_one(Booking, 1)
        session.expunge(booking)
    booking.room_id = 9
    assert moved(lambda session: session.bulk_save_objects([booking])) == {7, 9, "all"}


def test_a_batch_of_entities_that_fails_moves_nothing(moved):
    from optilock.entities import Operation, insert, transaction
    from optilock.errors import BatchFailed

    def act(session: Session) -> None:
        some = [Operation(insert, Booking, key, {"room_id": 9}) for key in (5, 1)]
        with pytest.raises(BatchFailed):
            transaction(session, some)

    assert moved(act) == set()


# -- what it costs ---------------------------------------------------------------------------------


@pytest.fixture
def sent(rooms, sessions):
    """How many statements the commit of a session sends after ``act``."""

    def sent(act: Any) -> int:
        with sessions() as session:
            act(session)
            with count_statements(rooms) as counted:
                session.commit()
        return counted.count

    return sent


def hour(session: Any) -> None:
    booking = session.get_one(Booking, 1)
    booking.hour = (booking.hour or 0) + 1


def test_a_scope_costs_one_statement_or_goes_with_commit(rooms, sessions, sent, versions):
    """psycopg and PyMySQL move scopes in the trip of COMMIT, once a statement has used the table.

    The fixture has sent one.
    """
    with_commit = rooms.dialect.name != "sqlite"
    assert sent(lambda s: s.add(Booking(id=3, room_id=7))) == 2 - with_commit
    before = versions()
    assert sent(hour) == 2 - with_commit
    assert {key: v - before[key] for key, v in versions().items() if v != before[key]} != {}
    assert sent(lambda s: etag_of(s, SEVEN)) == 0


@pytest.mark.engines("postgresql", "mariadb")
def test_a_move_that_another_statement_checks_is_a_statement(rooms, sent):
    def checked(session: Any) -> None:
        verify(session, SEVEN)
        hour(session)

    assert sent(hour) == 1
    assert sent(checked) > 1


@pytest.mark.engines("postgresql", "mariadb")
def test_a_listener_to_commit_sees_the_move_before_it(rooms, sent):
    assert sent(hour) == 1
    event.listen(rooms, "commit", quiet := lambda connection: None)
    try:
        assert sent(hour) == 2
    finally:
        event.remove(rooms, "commit", quiet)


@pytest.mark.engines("postgresql", "mariadb")
def test_a_commit_that_does_not_happen_moves_nothing_later(rooms, sessions, sent, versions):
    assert sent(hour) == 1
    before = versions()

    def refuse(session: Any) -> None:
        raise LookupError

    with pytest.raises(LookupError), UnitOfWork(sessions) as session:
        hour(session)
        event.listen(session, "before_commit", refuse)
    with rooms.begin() as connection:
        connection.execute(select(Booking.id))
    assert versions() == before


@pytest.mark.engines("postgresql", "mariadb")
def test_a_token_and_a_move_go_with_one_commit(rooms, sessions, sent, versions):
    commit_tokens.create(rooms)
    try:
        assert sent(hour) == 1
        before = versions()
        with UnitOfWork(sessions, exactly_once=True) as session:
            hour(session)
        assert versions() != before
        with rooms.connect() as connection:
            assert connection.scalar(select(func.count()).select_from(commit_tokens)) == 1
    finally:
        commit_tokens.drop(rooms)


def test_rows_of_classes_without_scopes_cost_nothing(rooms, sessions):
    with sessions.begin() as session:
        session.add_all([Shift(id=key) for key in range(2, 60)])

    def calls(rows: int) -> list[str]:
        with sessions() as session:
            for shift in session.scalars(select(Shift).limit(rows)).all():
                shift.note += 1
            called = calls_of(session.commit)
        return [name for file, name in called if "scopes" in file]

    calls(1)
    assert len(calls(50)) == len(calls(1)) <= 12
    with count_statements(rooms) as sent:
        calls(1)
    assert sent.count == 2
