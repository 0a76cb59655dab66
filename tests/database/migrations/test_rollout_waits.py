"""Nobody waits for long behind a roll-out that does not get its lock, and it names who has it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from optilock import OptilockError
from optilock.rollout import roll_out
from optilock.rollout.report import Silent
from optilock.tokens import Unique

pytestmark = pytest.mark.engines("postgresql", "mariadb")
#: What a writer may wait at most, in seconds; ``lock_timeout`` is 0.1, and the machine may be busy.
LONGEST = {
    "sqlite": ["PRAGMA busy_timeout = 4000"],
    "postgresql": ["SET LOCAL lock_timeout = '4s'"],
    "mariadb": ["SET innodb_lock_wait_timeout = 4", "SET lock_wait_timeout = 4"],
}
LONGEST["mysql"] = LONGEST["mariadb"]


@pytest.fixture(autouse=True)
def parcels(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parcels (id INTEGER PRIMARY KEY, moves INTEGER)"))
        connection.execute(text("INSERT INTO parcels VALUES (1, 0), (2, 0), (3, 0)"))


class Held(Silent):
    """A transaction on the table, begun before a step, which does not end."""

    def __init__(self, connection: Connection, at: str) -> None:
        self.connection, self.at = connection, at
        self.waits = 0

    def step(self, name: str, total: int | None = None) -> None:
        if name == self.at:
            self.connection.execute(text("UPDATE parcels SET moves = 1 WHERE id = 1"))

    def waiting(self, why: str) -> None:
        self.waits += 1


@contextmanager
def writing(engine: Engine) -> Iterator[list[Any]]:
    """Somebody writes another row meanwhile; ``True`` for each write, or its error.

    It is one where the database lets the write wait for longer than it may.
    """
    written: list[Any] = []
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.01):
            try:
                with engine.begin() as connection:
                    for limit in LONGEST[connection.dialect.name]:
                        connection.execute(text(limit))
                    connection.execute(text("UPDATE parcels SET moves = moves + 1 WHERE id = 2"))
            except DBAPIError as error:
                written.append(error)
            else:
                written.append(True)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        over.set()
        writer.join()


@pytest.mark.full
@pytest.mark.parametrize("at", ["add the column", "create the guard trigger", "require it"])
def test_no_writer_waits_longer_than_told_behind_it(engine, at):
    with engine.connect() as holder, writing(engine) as written:
        held = Held(holder, at)
        with pytest.raises(OptilockError, match="A lock was not to be had"):
            roll_out(engine, "parcels", token=Unique(), guard="bump", patience=5, progress=held)
    assert held.waits > 1
    assert {*written} == {True}
    assert len(written) > 10


@pytest.mark.full
def test_a_lock_timeout_of_more_than_a_second_counts_too(engine):
    with engine.connect() as holder:
        held = Held(holder, "require it")
        options: dict[str, Any] = {"lock_timeout": 1.5, "patience": 1.5}
        with pytest.raises(OptilockError, match="A lock was not to be had"):
            roll_out(engine, "parcels", progress=held, **options)
        assert held.waits <= 1


@pytest.mark.full
def test_it_is_over_soon_after_the_lock_is_let_go(engine):
    class LetGo(Held):
        def waiting(self, why: str) -> None:
            super().waiting(why)
            if self.waits == 2:
                self.connection.commit()

    with engine.connect() as holder:
        report = roll_out(engine, "parcels", token=Unique(), progress=LetGo(holder, "require it"))
    assert report.waits == 2
    [version] = [c for c in inspect(engine).get_columns("parcels") if c["name"] == "version"]
    assert version["nullable"] is False


@pytest.mark.parametrize("at", ["add the column", "fill", "require it"])
def test_the_error_names_the_connection_that_has_the_lock(engine, at):
    with engine.connect() as holder:
        held = Held(holder, at)
        question = "pg_backend_pid()" if engine.dialect.name == "postgresql" else "CONNECTION_ID()"
        number = holder.scalar(text(f"SELECT {question}"))
        holder.rollback()
        with pytest.raises(OptilockError, match=rf"(backend|connection) {number} \("):
            roll_out(engine, "parcels", token=Unique(), patience=0.3, progress=held)


@pytest.mark.engines("mariadb")
def test_the_connection_goes_back_as_it_was(engine):
    def settings() -> list[Any]:
        with engine.connect() as connection:
            return list(connection.execute(text("SELECT @@lock_wait_timeout, @@autocommit")).one())

    before = settings()
    with engine.connect() as holder, pytest.raises(OptilockError):
        roll_out(engine, "parcels", patience=0.2, progress=Held(holder, "require it"))
    assert settings() == before
