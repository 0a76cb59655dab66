"""A failover to a standby that has lost the transaction whose COMMIT was cut."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import Session

from checks.deployments.postgresql import Node, primary, standby_of
from checks.deployments.standby.conftest import Pair
from checks.exactly_once.cut_commits import CommitCutter
from checks.exactly_once.increments import count, options, prepare
from optilock import unit_of_work
from tests.support.models import Account
from tests.support.waiting import until


def url_to(node: Node):
    return make_url(f"postgresql+psycopg://postgres@127.0.0.1:{node.port}/postgres")


@pytest.mark.parametrize("mode", ["true", "key"])
@pytest.mark.parametrize("lossy", [True, False])
def test_a_unit_is_on_the_new_primary_once(mode, lossy):
    with primary() as first, standby_of(first) as second:
        both, direct = Pair(first, second), create_engine(url_to(first))
        prepare(direct)
        both.wait()
        ways: list[str | None] = []
        line = CommitCutter(url_to(first), lambda: ways.pop(0) if ways else None)
        engine = create_engine(line.url, pool_size=1)
        bodies = []

        @unit_of_work(engine, **options(mode))
        def increase(session: Session, number: int) -> int:
            bodies.append(number)
            account = session.get_one(Account, 1)
            account.balance += 1
            session.flush()
            if len(bodies) == 2:
                if lossy:
                    second.ask("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
                ways.append("after")
                line.refuses = True
                threading.Thread(target=fail_over).start()
            return account.balance

        def fail_over() -> None:
            until(lambda: line.cuts)
            if not lossy:
                both.wait()
            first.crash()
            second.promote()
            line.to(url_to(second))
            line.refuses = False

        assert increase(1) == 1
        both.wait()
        assert increase(2) == 2
        survivor = create_engine(url_to(second))
        assert count(survivor)[0] == 2
        assert len(bodies) == (3 if lossy else 2)
        for one in (direct, engine, survivor):
            one.dispose()
        line.close()
