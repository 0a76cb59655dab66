"""Servers whose process is killed while it carries COMMIT out."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from checks.deployments.postgresql import Node, primary
from checks.exactly_once.increments import count, options, prepare
from optilock import unit_of_work
from optilock.exactly_once import questions
from tests.support.models import Account
from tests.support.waiting import until

#: COMMIT takes a while, so that it can be met.
SLOW = (
    "CREATE FUNCTION wait_a_little() RETURNS trigger LANGUAGE plpgsql AS"
    " $$BEGIN PERFORM pg_sleep(0.003); RETURN NULL; END$$",
    "CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON accounts DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION wait_a_little()",
)
KILLS = 4
COMMITTING = (
    "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query ILIKE '%COMMIT'"
    " AND pid <> pg_backend_pid()"
)


def wait_until_up(engine: Any) -> None:
    """The last kill may still be recovered from."""

    def is_up() -> bool:
        try:
            engine.connect().close()
        except OperationalError:
            return False
        return True

    until(is_up, every=0.1)


def kill_backends(node: Node, stopped: threading.Event, killed: list[int]) -> None:
    """Kill a backend inside of COMMIT every now and then: the whole server recovers.

    A slow machine would spend its time on recovery, so a few are enough.
    """
    while not stopped.is_set() and len(killed) < KILLS:
        try:
            with psycopg.connect(
                host="127.0.0.1", port=node.port, user="postgres", autocommit=True
            ) as connection:
                end = time.monotonic() + 1.0
                while time.monotonic() < end and not stopped.is_set():
                    found = connection.execute(COMMITTING).fetchone()
                    if found and time.monotonic() > end - 0.6:
                        node.user.run("kill", "-9", str(found[0]))
                        killed.append(found[0])
                        break
        except psycopg.Error:
            time.sleep(0.05)


@pytest.mark.parametrize("mode", ["true", "key"])
def test_a_server_that_is_killed_in_commit_loses_and_doubles_nothing(mode, monkeypatch):
    monkeypatch.setattr(questions, "PATIENCE", 60.0)
    with primary(fsync="on") as node:
        url = make_url(f"postgresql+psycopg://postgres@127.0.0.1:{node.port}/postgres")
        direct = create_engine(url)
        prepare(direct)
        with direct.begin() as connection:
            for statement in SLOW:
                connection.execute(text(statement))
        engine, stopped, killed = create_engine(url, pool_size=1), threading.Event(), []

        @unit_of_work(sessionmaker(engine), **options(mode, attempts=500))
        def increase(session: Session, number: int) -> Any:
            account = session.get_one(Account, 1)
            account.balance += 1
            return account.balance

        thread = threading.Thread(target=kill_backends, args=(node, stopped, killed))
        thread.start()
        results: list[Any] = []
        while len(results) < 250 or len(killed) < KILLS:
            results.append(increase(len(results)))
        stopped.set()
        thread.join()
        assert results == [*range(1, len(results) + 1)]
        direct.dispose()  # its connections are of the server before
        wait_until_up(direct)
        assert count(direct)[0] == len(results)
        for one in (direct, engine):
            one.dispose()
