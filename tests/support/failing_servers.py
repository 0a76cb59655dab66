"""Servers of this machine that stop answering, or end and come back, while a test runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, make_url, text

from tests.support.needed import needed
from tests.support.waiting import until

__all__ = ["frozen", "restarted"]


def _process(engine: Engine) -> int:
    """The server's own."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            folder = connection.scalar(text("SHOW data_directory"))
            place = Path(str(folder), "postmaster.pid")
        else:
            place = Path(str(connection.scalar(text("SELECT @@pid_file"))))
    if not place.exists():
        needed("The server runs on another machine, and cannot be stopped from here")
    return int(place.read_text().split()[0])


@contextmanager
def frozen(engine: Engine) -> Iterator[None]:
    """Whoever connects waits. On PostgreSQL those who are connected already do not."""
    process = _process(engine)
    engine.dispose()
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)
        for thread in threading.enumerate():
            if thread.name == "optilock attempt":
                thread.join(20)


@contextmanager
def restarted(engine: Engine, *, away: float = 0.0) -> Iterator[None]:
    """The server ends, and all connections with it; ``away`` seconds later it is started again."""
    process = _process(engine)
    command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[:-1]
    folder, owner = Path(f"/proc/{process}/cwd").resolve(), os.stat(f"/proc/{process}")
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
    postgresql = engine.dialect.name == "postgresql"
    # Whoever is killed outright leaves children (PostgreSQL), or what it has not synced (MariaDB).
    os.kill(process, signal.SIGQUIT if postgresql else signal.SIGTERM)
    until(lambda: not Path(f"/proc/{process}/exe").is_symlink() or not _lives(process))
    threading.Event().wait(away)
    with tempfile.TemporaryFile() as output:
        again = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, **identity)
        engine.dispose()
    try:
        until(lambda: _answers(engine) or again.poll() is not None)
        assert again.poll() is None, command
        yield
    finally:
        if postgresql:  # whoever has started the first one stops it by its folder
            again.returncode = 0
        else:
            again.terminate()
            again.wait(30)


def _lives(process: int) -> bool:
    """A process that nobody has waited for is dead, too."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def _answers(engine: Engine) -> bool:
    url = make_url(engine.url)
    try:
        socket.create_connection((url.host or "127.0.0.1", url.port or 0), timeout=1).close()
        with engine.connect():
            return True
    except Exception:
        return False
