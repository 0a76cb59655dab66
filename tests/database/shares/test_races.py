"""Eight processes that want the same name for themselves alone: one has it, at any time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from optilock.tables.shares import SET

ROOT = Path(__file__).parents[3]
CLIENTS = 8

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


class Clients:
    def __init__(self, started: list[subprocess.Popen[str]]) -> None:
        self.started = started

    def all(self, command: str) -> list[str]:
        for one in self.started:
            assert one.stdin is not None
            one.stdin.write(command + "\n")
            one.stdin.flush()
        return self.answers()

    def answers(self) -> list[str]:
        return [(one.stdout.readline() if one.stdout else "").strip() for one in self.started]


@pytest.fixture
def clients(engine, database) -> Iterator[Clients]:
    with engine.begin() as connection:
        SET.tables.create_all(connection)
        connection.execute(text("CREATE TABLE inside (clients INTEGER)"))
        connection.execute(text("INSERT INTO inside VALUES (0)"))
    url = engine.url.render_as_string(hide_password=False)
    with ExitStack() as stack:
        started = []
        for _ in range(CLIENTS):
            one = subprocess.Popen(
                [sys.executable, "-m", "tests.share_racer", url],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(one.wait, 20)
            stack.callback(one.stdout.close)
            stack.callback(one.stdin.close)
            started.append(one)
        clients = Clients(started)
        assert clients.answers() == ["ready"] * CLIENTS
        yield clients


def test_one_of_them_has_it_at_any_time(clients, pytestconfig):
    for number in range(50 if pytestconfig.option.full else 4):
        assert sorted(clients.all(f"open name/{number % 3}")) == ["0"] * (CLIENTS - 1) + ["1"]
        assert clients.all("close") == ["closed"] * CLIENTS

    # whoever is inside counts the others
    for _ in range(10 if pytestconfig.option.full else 1):
        assert clients.all("work name") == ["0"] * CLIENTS
