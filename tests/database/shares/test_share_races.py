"""Eight processes that want the same name for themselves alone: one has it, at any time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from optilock.tables.names import SHARES
from tests.support.clock import make_clock, shift
from tests.support.share_racer import main

CLIENTS = 8

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


class Clients:
    def __init__(self, url: str) -> None:
        #: A process that has imported everything already, and is copied.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.support.share_racer"])
        self.started: list[tuple[Any, Any]] = []
        for _ in range(CLIENTS):
            ours, theirs = context.Pipe()
            process = context.Process(target=main, args=(url, theirs), daemon=True)
            process.start()
            theirs.close()
            self.started.append((process, ours))

    def all(self, command: str) -> list[str]:
        for _, pipe in self.started:
            pipe.send(command)
        return self.answers()

    def answers(self) -> list[str]:
        return [pipe.recv() for _, pipe in self.started]

    def kill(self, number: int) -> None:
        """It has no time to close anything."""
        process, pipe = self.started.pop(number)
        process.kill()
        process.join(20)
        pipe.close()

    def end(self) -> None:
        for process, pipe in self.started:
            pipe.send(None)
            process.join(20)
            pipe.close()


@pytest.fixture
def clients(engine) -> Iterator[Clients]:
    with engine.begin() as connection:
        SHARES.tables.create_all(connection)
        make_clock(connection)
        connection.execute(text("CREATE TABLE inside (clients INTEGER)"))
        connection.execute(text("INSERT INTO inside VALUES (0)"))
    clients = Clients(engine.url.render_as_string(hide_password=False))
    assert clients.answers() == ["ready"] * CLIENTS
    yield clients
    clients.end()


@pytest.mark.full
def test_one_of_them_has_it_at_any_time(clients, engine, tries):
    for number in range(tries(4, 12, 50)):
        assert sorted(clients.all(f"open name/{number % 3}")) == ["0"] * (CLIENTS - 1) + ["1"]
        assert clients.all("close") == ["closed"] * CLIENTS

    # whoever is inside counts the others
    for _ in range(tries(1, 3, 10)):
        assert clients.all("work name") == ["0"] * CLIENTS

    # whoever is killed has it until its time is over
    clients.kill(clients.all("open killed 600").index("1"))
    assert clients.all("open killed") == ["0"] * (CLIENTS - 1)
    shift(engine, 600)
    assert sorted(clients.all("open killed")) == ["0"] * (CLIENTS - 2) + ["1"]
