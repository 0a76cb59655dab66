"""Nothing of what optilock can do costs a statement, or a round trip, where it is not asked for.

The counts are those of a flush that only compares versions. Who adds a feature adds none to them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, make_url, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from optilock import UnitOfWork, Versioned, client_wins, watch
from optilock.testing import Wire, count_statements


class Base(DeclarativeBase):
    pass


class Item(Versioned, Base):
    __tablename__ = "counted_items"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int]


def verbs(sent):
    """The first word of each statement; ``WITH`` locks, judges and updates in one."""
    return [statement.text.split()[0] for statement in sent.statements]


def insert(session, number):
    session.add_all([Item(id=10_000 + n, value=0) for n in range(number)])


def update(session, number):
    for item in session.scalars(select(Item).where(Item.id < number)).all():
        item.value += 1


def delete(session, number):
    for item in session.scalars(select(Item).where(Item.id < number)).all():
        session.delete(item)


def read(session, number):
    session.scalars(select(Item).where(Item.id < number)).all()


#: What a flush sends: on SQLite, on PostgreSQL, and on MariaDB, which locks the rows before.
FLUSH = {
    (update, 1): (["UPDATE"], ["UPDATE"], ["UPDATE"]),
    (update, 2): (["UPDATE"], ["WITH"], ["SELECT", "UPDATE"]),
    (update, 1000): (["UPDATE"], ["WITH"], ["SELECT", "UPDATE"]),
    (delete, 1): (["DELETE"], ["DELETE"], ["DELETE"]),
    (delete, 2): (["DELETE"], ["WITH"], ["SELECT", "DELETE"]),
    (insert, 1): (["INSERT"], ["INSERT"], ["INSERT"]),
    (insert, 2): (["INSERT"], ["INSERT"], ["INSERT"]),
    (read, 1000): ([], [], []),
}

#: Round trips of a flush: on PostgreSQL (psycopg), and on MariaDB (PyMySQL).
TRIPS = {
    (update, 1): (1, 1),
    (update, 2): (1, 2),
    (update, 1000): (1, 2),
    (delete, 1): (1, 1),
    (delete, 2): (1, 2),
    (insert, 1): (1, 1),
    (insert, 2): (1, 1),
    (read, 1000): (0, 0),
}


def named(cases):
    return [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in cases]


@pytest.mark.parametrize(("change", "number"), named(FLUSH))
def test_a_flush_sends_no_more_than_the_writes(store, watched, engine, change, number) -> None:
    """RL-23"""
    store(*(Item(id=n, value=0) for n in range(1000)))
    session = watched()
    change(session, number)
    with count_statements(engine) as sent:
        session.flush()

    at = {"sqlite": 0, "postgresql": 1}.get(engine.dialect.name, 2)
    assert verbs(sent) == FLUSH[change, number][at]


def test_a_commit_of_a_thousand_loaded_rows_sends_nothing(store, watched, engine) -> None:
    store(*(Item(id=n, value=0) for n in range(1000)))
    session = watched()
    held = session.scalars(select(Item)).all()
    with count_statements(engine) as sent:
        session.commit()

    assert len(held) == 1000
    assert verbs(sent) == []


def test_reading_a_thousand_rows_again_is_one_select(store, watched, engine) -> None:
    store(*(Item(id=n, value=0) for n in range(1000)))
    session = watched()
    held = session.scalars(select(Item)).all()
    session.commit()
    with count_statements(engine) as sent:
        assert session.scalars(select(Item)).all() == held

    assert verbs(sent) == ["SELECT"]


def test_a_unit_of_one_row_is_a_select_and_an_update(store, engine) -> None:
    store(Item(id=1, value=0))
    with count_statements(engine) as sent, UnitOfWork(engine) as session:
        session.get_one(Item, 1).value = 1

    assert verbs(sent) == ["SELECT", "UPDATE"]


@pytest.fixture
def far(line: Wire) -> Iterator[Engine]:
    """An engine by way of the line; psycopg's preparing, a trip of its own, is switched off."""
    postgresql = make_url(line.url).get_backend_name() == "postgresql"
    engine = create_engine(line.url, connect_args={"prepare_threshold": None} if postgresql else {})
    yield engine
    engine.dispose()


@pytest.mark.needs("server", "resolves-in-place")
@pytest.mark.parametrize("number", [10, 300])
def test_what_a_resolver_wants_written_takes_one_trip_more_than_the_look(
    store, line, far, engine, number
) -> None:
    """Also on MariaDB, where the rows were locked and looked at already."""
    store(*(Item(id=n, value=0) for n in range(number)))
    with watch(sessionmaker(far), on_conflict=client_wins)() as session:
        session.execute(select(1))
        update(session, number)
        with engine.begin() as connection:
            connection.execute(text("UPDATE counted_items SET value = 7, version = 2"))
        with line.counting() as trips:
            session.flush()
        session.commit()

    missed = 1  # on MariaDB the look before the write, on PostgreSQL the write itself
    assert trips.count == missed + 2


@pytest.mark.needs("server")
@pytest.mark.parametrize(("change", "number"), named(TRIPS))
@pytest.mark.tenth
def test_a_flush_takes_no_more_trips(store, line, far, change, number) -> None:
    store(*(Item(id=n, value=0) for n in range(1000)))
    with watch(sessionmaker(far))() as session:
        session.execute(select(1))  # psycopg sends BEGIN with the first statement
        change(session, number)
        with line.counting() as trips:
            session.flush()

    at = 0 if far.dialect.name == "postgresql" else 1
    assert trips.count == TRIPS[change, number][at]


@pytest.mark.needs("server")
def test_a_unit_of_one_row_takes_no_more_trips_than_a_plain_session(store, line, far) -> None:
    store(Item(id=1, value=0))
    plain, ours = sessionmaker(far), UnitOfWork(watch(sessionmaker(far)))
    with UnitOfWork(far) as session:  # what an engine is asked once: its version, is it a cluster
        session.get_one(Item, 1)
    with line.counting() as native, plain() as session, session.begin():
        session.get_one(Item, 1).value = 1
    with line.counting() as guarded, ours as session:
        session.get_one(Item, 1).value = 2

    assert guarded.count == native.count
