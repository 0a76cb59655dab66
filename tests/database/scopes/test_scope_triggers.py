"""Other programs write rows of a class with scopes: triggers move the versions."""

from __future__ import annotations

import datetime
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, func, inspect, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
    Versioned,
    etag_of,
    expect,
    lock,
    verify,
    watch,
)
from optilock._mapping.scope_triggers import scope_trigger_of
from optilock.dialects import database_of
from optilock.tables import exact_text
from optilock.tables.names import scopes
from tests.support.migrating import migrate, revise, run, send


class Base(DeclarativeBase):
    pass


class Seat(Versioned, Base):
    __tablename__ = "guarded_seats"
    __version_scopes__ = ("hall", ("name", "day", "sold", "owner"), ())
    __version_ignore__ = ("seen",)
    __version_guard__ = "bump"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hall: Mapped[int | None]
    name: Mapped[str | None] = mapped_column(exact_text(600))
    day: Mapped[datetime.date | None]
    sold: Mapped[bool | None]
    owner: Mapped[uuid.UUID | None]
    seen: Mapped[int] = mapped_column(default=0)


SEVEN, EIGHT, NONE, ALL = (
    Seat.scope(hall=7),
    Seat.scope(hall=8),
    Seat.scope(hall=None),
    Seat.scope(),
)
engines = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def halls(engine: Engine) -> Iterator[Engine]:
    scopes.create(engine, checkfirst=True)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            Seat.__table__.insert(),
            [{"id": n, "hall": n + 6, "seen": 0, "version": 1} for n in (1, 2)],
        )
        connection.execute(scopes.delete())
    yield engine
    Base.metadata.drop_all(engine)
    scopes.drop(engine)


def stored(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return dict(map(tuple, connection.execute(select(scopes))))


def short(keys: Any) -> set[Any]:
    known = {SEVEN.key: 7, EIGHT.key: 8, NONE.key: None, ALL.key: "all", ALL.any_key: "*"}
    return {known[key] for key in keys if key in known}


@engines
@pytest.mark.parametrize(
    ("sql", "moves"),
    [
        ("INSERT INTO guarded_seats (id, hall, seen, version) VALUES (3, 7, 0, 1)", {7, "all"}),
        ("INSERT INTO guarded_seats (id, seen, version) VALUES (3, 0, 1)", {None, "all"}),
        ("UPDATE guarded_seats SET name = 'x' WHERE id = 1", {7, "all"}),
        ("UPDATE guarded_seats SET hall = 8 WHERE id = 1", {7, 8, "all"}),
        ("UPDATE guarded_seats SET name = 'x'", {7, 8, "all"}),
        ("UPDATE guarded_seats SET seen = 1", set()),
        ("UPDATE guarded_seats SET hall = 9 WHERE id = 9", set()),
        ("DELETE FROM guarded_seats WHERE id = 2", {8, "all"}),
    ],
)
def test_sql_of_another_program_moves_scopes(halls: Engine, sql: str, moves: set[Any]) -> None:
    with halls.begin() as connection:
        connection.execute(text(sql))
    assert short(stored(halls)) == moves


LONG = "ä" * 500


@engines
@pytest.mark.parametrize(
    "values",
    [
        {
            "name": "a,3:b",
            "day": datetime.date(2026, 1, 31),
            "sold": True,
            "owner": uuid.UUID(int=7),
        },
        {"name": "ä€𝄞", "day": datetime.date(999, 1, 2), "sold": False, "owner": None},
        {"name": LONG, "day": None, "sold": None, "owner": uuid.UUID(int=2**127 + 255)},
        {"name": "", "day": None, "sold": None, "owner": None},
    ],
)
def test_a_trigger_makes_the_keys_that_python_makes(halls: Engine, values: dict[str, Any]) -> None:
    with halls.begin() as connection:
        connection.execute(
            Seat.__table__.insert(), {"id": 3, "hall": 1, "seen": 0, "version": 1, **values}
        )
    wanted = Seat.scope(**values)
    long = values["name"] == LONG and halls.dialect.name == "sqlite"
    assert (wanted.any_key if long else wanted.key) in stored(halls)


def foreign(engine: Engine) -> None:
    with engine.begin() as connection:
        sql = "INSERT INTO guarded_seats (id, hall, seen, version) VALUES (9, 7, 0, 1)"
        connection.execute(text(sql))


def write(session: Session, hall: int = 7) -> None:
    for key in (3, 4):
        session.add(Seat(id=key, hall=hall))
        session.flush()
    session.get_one(Seat, 2).name = "mine"


PROMISES: dict[str, tuple[Callable[[Session], Any], ...]] = {
    "verify": (lambda session: verify(session, SEVEN),),
    "verify-twice": (lambda session: verify(session, SEVEN),) * 2,
    "lock": (lambda session: lock(session, SEVEN),),
    "expect": (lambda session: expect(session, SEVEN, etag_of(session, SEVEN)),),
    "all": (lambda session: verify(session, SEVEN), lambda session: verify(session, ALL)),
}


@engines
@pytest.mark.parametrize("promises", PROMISES.values(), ids=PROMISES)
def test_my_own_writes_do_not_refuse_me(halls: Engine, promises: Any) -> None:
    with watch(sessionmaker(halls))() as session:
        for promise in promises:
            promise(session)
        write(session)
        session.commit()
    with watch(sessionmaker(halls))() as session:
        assert {one.id for one in session.scalars(select(Seat))} == {1, 2, 3, 4}


@engines
def test_what_another_program_wrote_before_is_seen(halls: Engine) -> None:
    with watch(sessionmaker(halls))() as session:
        tag = etag_of(session, SEVEN)
    foreign(halls)
    with watch(sessionmaker(halls))() as session:
        assert etag_of(session, SEVEN) != tag
        with pytest.raises(PreconditionFailed):
            expect(session, SEVEN, tag)


@pytest.mark.engines("postgresql", "mariadb")
def test_another_program_waits_for_a_verified_scope(halls: Engine) -> None:
    with watch(sessionmaker(halls))() as session:
        verify(session, SEVEN)
        with halls.connect() as other:
            other.execute(text(SHORT[halls.dialect.name]))
            with pytest.raises(Exception, match=r"[Ll]ock"):
                other.execute(
                    text("INSERT INTO guarded_seats (id, hall, seen, version) VALUES (9, 7, 0, 1)")
                )
        write(session)
        session.commit()


SHORT = {
    "postgresql": "SET lock_timeout = '50ms'",
    "mariadb": "SET innodb_lock_wait_timeout = 0",
    "mysql": "SET innodb_lock_wait_timeout = 0",
}


@engines
def test_a_verified_scope_that_a_rolled_back_savepoint_locked(halls: Engine) -> None:
    """PostgreSQL has given the lock back, so COMMIT compares."""
    with watch(sessionmaker(halls))() as session:
        with session.begin_nested() as savepoint:
            verify(session, SEVEN)
            savepoint.rollback()
        if halls.dialect.name == "postgresql":
            foreign(halls)
            session.add(Seat(id=3, hall=8))
            with pytest.raises(ConcurrencyError):
                session.commit()


@engines
@pytest.mark.full
def test_autogenerate_makes_and_drops_the_triggers(halls: Engine) -> None:
    assert revise(halls, Base.metadata).empty
    made = scope_trigger_of(inspect(Seat))
    assert made is not None
    triggers = database_of(halls.dialect).scope_triggers(halls.dialect)
    send(halls, *triggers.drop(made))
    missing = revise(halls, Base.metadata)
    (line,) = missing.lines
    assert line.startswith("op.create_scope_trigger('guarded_seats', [['hall'], ['name', 'day',")
    run(halls, missing, missing.upgrade)
    assert revise(halls, Base.metadata).empty
    run(halls, missing, missing.downgrade)
    assert revise(halls, Base.metadata).lines == missing.lines
    send(halls, *triggers.create(replace(made, ignore=(), columns=())))
    (drop, create) = revise(halls, Base.metadata).lines
    assert (drop[:21], create) == ("op.drop_scope_trigger", line)


@engines
def test_a_table_in_use_gets_its_triggers_while_others_write(halls: Engine) -> None:
    """First the triggers, then the readers: every row that came after a tag makes it another."""
    made = scope_trigger_of(inspect(Seat))
    assert made is not None
    triggers = database_of(halls.dialect).scope_triggers(halls.dialect)
    send(halls, *triggers.drop(made))
    stop, keys = threading.Event(), itertools.count(100)

    def write_on() -> None:
        while not stop.is_set():
            with halls.begin() as connection:
                connection.execute(text(INSERT.format(next(keys))))

    with ThreadPoolExecutor(2) as writers:
        writing = [writers.submit(write_on) for _ in range(2)]
        try:
            send(halls, *triggers.create(made))
            for _ in range(5):
                with Session(halls) as session:
                    tag = etag_of(session, SEVEN)
                    before = session.scalar(COUNT)
                with Session(halls) as session:
                    after = session.scalar(COUNT)
                    assert (etag_of(session, SEVEN) != tag) or after == before
        finally:
            stop.set()
        for one in writing:
            one.result()
    first = stored(halls)[SEVEN.key]
    send(halls, INSERT.format(99))
    assert stored(halls)[SEVEN.key] == first + 1


INSERT = "INSERT INTO guarded_seats (id, hall, seen, version) VALUES ({}, 7, 0, 1)"
COUNT = select(func.count()).select_from(Seat).where(Seat.hall == 7)


def test_malformed_scopes_of_an_operation_are_refused(engine: Engine) -> None:
    for scopes_given in ("hall", ["hall"]):
        with pytest.raises(ConfigurationError, match="a list of columns for each scope"):
            migrate(engine, lambda op: op.create_scope_trigger("t", scopes_given))  # noqa: B023
    with pytest.raises(ConfigurationError, match="needs the columns that count"):
        migrate(engine, lambda op: op.create_scope_trigger("t", [[]], ignore=["seen"]))


def test_triggers_go_with_the_table(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    Base.metadata.drop_all(engine)
