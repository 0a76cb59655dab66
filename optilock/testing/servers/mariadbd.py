"""MariaDB from the ``mariadbd`` that is installed on this machine, on data of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optilock.errors import OptilockError
from optilock.testing.servers.server import Account, Server, ServerMissing, account_for, free_port

__all__ = ["mariadb"]

#: Where distributions put daemons: beside /usr/bin, and seldom on the PATH of a plain user.
_BESIDE = ("sbin", "libexec")
_INSTALL = ("--auth-root-authentication-method=normal", "--skip-test-db")


@contextmanager
def mariadb() -> Iterator[Server]:
    """A MariaDB server with an empty database ``test`` and the user ``root`` without a password.

    Raises ``ServerMissing`` when no ``mariadbd`` is installed, and ``OptilockError`` with the
    server's last words when it does not start.
    """
    daemon, installer = _program("mariadbd"), _program("mariadb-install-db")
    with account_for("maria", "mysql", "nobody") as user:
        folder = user.folder
        # In a directory that it shares, a server that starts deletes the others' temporary tables.
        port, places = free_port(), (f"--datadir={folder}/data", f"--tmpdir={folder}")
        user.run(installer, "--no-defaults", *places, *_INSTALL)
        with _running(user, [daemon, "--no-defaults", *places, *_listening(folder, port)], port):
            address = f"mysql+pymysql://root@127.0.0.1:{port}"
            _create_database(address)
            yield Server(
                host="127.0.0.1",
                port=port,
                url=f"{address}/test",
                socket_url=f"mysql+pymysql://root@localhost/test?unix_socket={folder}/socket",
            )


def _program(name: str) -> str:
    folders = [Path(each) for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if each]
    beside = [folder.parent / other for folder in folders for other in _BESIDE]
    found = shutil.which(name, path=os.pathsep.join(map(str, (*folders, *beside))))
    if found is None:
        raise ServerMissing(
            f"There is no {name} on PATH: install your system's package mariadb-server"
        )
    return found


def _listening(folder: Path, port: int) -> list[str]:
    return [
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--socket={folder}/socket",
        f"--pid-file={folder}/pid",
        f"--log-error={folder}/server.log",
        "--skip-name-resolve",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-size=64M",
        # A writer that waits for a test that steps sessions by hand waits in vain: not for long.
        "--innodb-lock-wait-timeout=3",
    ]


@contextmanager
def _running(user: Account, command: list[str], port: int) -> Iterator[None]:
    process = user.start(*command)
    try:
        _wait_until_it_listens(process, port, user)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_listens(
    process: subprocess.Popen[bytes], port: int, user: Account, seconds: float = 60.0
) -> None:
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    code = process.poll()
    how = "did not answer" if code is None else f"ended with exit code {code}"
    raise OptilockError(f"mariadbd {how}:\n" + user.last_lines("server.log"))


def _create_database(address: str) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(address)
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE IF NOT EXISTS test CHARACTER SET utf8mb4"))
    engine.dispose()
