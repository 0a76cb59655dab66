"""Pipelined units of work through PgBouncer: a transaction may have any server connection."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from checks.deployments import find
from optilock import AsyncUnitOfWork, ConcurrencyError, UnitOfWork, retry, retrying, unit_of_work
from optilock.unit import set_trip_time
from tests.engines import Target
from tests.support.models import Account

pytestmark = pytest.mark.engines("postgresql")

#: Its statements would be prepared on one server connection, and executed on another one.
UNPREPARED = {"prepare_threshold": None}


@pytest.fixture
def engine(database: Target) -> Iterator[Engine]:
    """Straight to the server."""
    made = database.engine()
    yield made
    made.dispose()


@pytest.fixture
def pooled(database: Target, tmp_path: Path) -> Iterator[str]:
    """The URL of the database through PgBouncer, with two connections for all clients."""
    url = make_url(database.url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    users, settings = tmp_path / "users.txt", tmp_path / "pgbouncer.ini"
    users.write_text(f'"{url.username}" ""\n')
    settings.write_text(
        "[databases]\n"
        f"{url.database} = host={url.host} port={url.port} dbname={url.database}\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {users}\n"
        "pool_mode = transaction\ndefault_pool_size = 2\n"
        "ignore_startup_parameters = extra_float_digits,options\n"
    )
    program = find("pgbouncer")
    assert program is not None
    as_another = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [program, *as_another, settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait(process, port)
        yield url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        assert process.poll() is None, "pgbouncer has ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("pgbouncer does not answer")


@pytest.fixture
def through(pooled: str) -> Iterator[Engine]:
    engine = create_engine(pooled, connect_args=UNPREPARED, pool_size=4)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("pipelined", [True, "auto"])
def test_four_threads_lose_no_update(account, through, engine, pipelined) -> None:
    set_trip_time(through, 0.005)

    @unit_of_work(through, pipelined=pipelined, retry=retrying(attempts=100, wait_max=0.05))
    def work(session: Session) -> None:
        session.get_one(Account, 1).balance += 1

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work) for _ in range(60)]:
            done.result()

    with engine.connect() as connection:
        assert connection.scalar(select(Account.balance).where(Account.id == 1)) == 10 + 60


@pytest.mark.parametrize("pipelined", [True, "auto"])
def test_a_setting_of_the_transaction_survives_a_miss_and_goes_with_it(
    account, through, engine, other, pipelined
) -> None:
    set_trip_time(through, 0.005)
    unit = UnitOfWork(through, pipelined=pipelined)
    with pytest.raises(ConcurrencyError), unit as session:
        session.execute(text("SET LOCAL application_name = 'ours'"))
        session.get_one(Account, 1).owner = "Eve"
        other(Account, 1, balance=7)
    with UnitOfWork(through, pipelined=pipelined) as session:
        assert session.execute(text("SHOW application_name")).scalar() != "ours"
        session.get_one(Account, 1).owner = "Eve"
        session.get_one(Account, 2).owner = "Eve"
    with engine.connect() as connection:
        assert connection.scalars(select(Account.owner)).all() == ["Eve", "Eve"]


@pytest.mark.anyio
@pytest.mark.parametrize("pipelined", [True, "auto"])
async def test_async_units_lose_no_update(account, pooled, engine, pipelined) -> None:
    made = create_async_engine(pooled, connect_args=UNPREPARED)
    set_trip_time(made, 0.005)

    @retry(attempts=50, wait_max=0.05)
    async def work() -> None:
        async with AsyncUnitOfWork(made, pipelined=pipelined) as session:
            (await session.get_one(Account, 1)).balance += 1

    await asyncio.gather(*(work() for _ in range(20)))
    with engine.connect() as connection:
        assert connection.scalar(select(Account.balance).where(Account.id == 1)) == 10 + 20
    await made.dispose()
