"""A roll-out through a pooler: it works, one at a time, and takes nobody's locks away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text

from checks.deployments.pgbouncer.pooler import SETTINGS, Pooler
from optilock import OptilockError
from optilock.rollout import roll_out
from tests.support.waiting import until


@pytest.fixture
def parcels(engine: Engine) -> Iterator[Engine]:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS parcels"))
        connection.execute(text("CREATE TABLE parcels (id INT PRIMARY KEY, weight INT)"))
        connection.execute(text("INSERT INTO parcels SELECT g, g FROM generate_series(1, 2000) g"))
    return engine


def versions(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.scalar(text("SELECT count(version) FROM parcels"))


@pytest.mark.usefixtures("nothing_left")
def test_it_rolls_out_and_leaves_nothing(parcels):
    report = roll_out(parcels, "parcels", guard="bump")
    assert report.filled == versions(parcels) == 2000
    assert roll_out(parcels, "parcels", guard="bump").steps == ()


@pytest.mark.usefixtures("nothing_left")
def test_a_second_one_is_refused_while_the_first_one_works_and_only_then(parcels, pooler):
    first = threading.Thread(target=roll_out, args=[parcels, "parcels"], kwargs={"rate": 1_000})
    first.start()
    other = create_engine(pooler.url(), **SETTINGS["psycopg"])
    until(lambda: is_claimed(other))
    with pytest.raises(OptilockError, match="Another roll-out of parcels is running: process"):
        roll_out(other, "parcels")
    first.join()
    assert roll_out(other, "parcels").steps == ()
    assert versions(other) == 2000
    other.dispose()


def is_claimed(engine: Engine) -> bool:
    with engine.connect() as connection:
        asked = text("SELECT to_regclass('optilock_rollout_of_parcels') IS NOT NULL")
        if not connection.scalar(asked):
            return False
        return bool(connection.scalar(text("SELECT holder <> '' FROM optilock_rollout_of_parcels")))


def test_locks_that_others_have_on_the_poolers_connections_stay(parcels, pooler: Pooler):
    """An application may keep them there, in spite of all."""
    url = pooler.url().replace("+psycopg", "")
    for number in range(20):  # on both connections, as chance has it
        with psycopg.connect(url, prepare_threshold=None) as client:
            client.execute("SELECT pg_advisory_lock(%s)", [number])
    before = pooler.states()
    roll_out(parcels, "parcels")
    assert pooler.states() == before
    assert pooler.server.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 20
    pooler.server.ask("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
