"""COMMITs that are cut in front of PgBouncer, which may still send them on."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, make_url

from checks.deployments.pgbouncer.pooler import Pooler
from checks.exactly_once.cut_commits import seeded
from checks.exactly_once.increments import run


@pytest.mark.parametrize("mode", ["true", "key", "pipelined", "naive"])
def test_each_increment_is_stored_once_behind_a_pooler(pooler: Pooler, mode: str):
    plain = make_url(f"postgresql+psycopg://postgres@127.0.0.1:{pooler.server.port}/postgres")
    through = make_url(pooler.url())
    direct = create_engine(plain)
    found = run(direct, "psycopg", mode, 60, seeded(0.3, 7), through=through, hold=0.1)
    direct.dispose()
    assert sum(found.cuts.values()) > 10
    assert found.is_right is (mode != "naive"), found
