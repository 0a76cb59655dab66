"""The keeper of a private server: it ends the server of a killed holder, and removes its folder.

:mod:`optilock_apps.servers` starts this file as a program next to each server. It waits for the end
of its input, which comes however the holder ends. A folder that still exists then belongs to a
server that was not stopped. The file imports only the standard library: it starts at once, and in a
Python that finds no optilock.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["keep_server"]

#: Where a server writes its number: PostgreSQL's, and MariaDB's.
_PIDS = ("data/postmaster.pid", "pid")


@contextmanager
def keep_server(folder: Path) -> Iterator[None]:
    """Run the keeper of this process next to the block, in which its server runs in ``folder``."""
    keeper = subprocess.Popen(
        [sys.executable, "-I", __file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what interrupts a terminal's programs is not for it
    )
    assert keeper.stdin is not None
    try:
        yield
    finally:
        keeper.stdin.close()
        keeper.wait()


def end(folder: Path, seconds: float = 20.0) -> None:
    """End the server in ``folder``, and remove it."""
    until = time.monotonic() + seconds
    while (number := _server(folder)) is not None and time.monotonic() < until:
        _send(number, signal.SIGINT if (folder / _PIDS[0]).exists() else signal.SIGTERM)
        time.sleep(0.2)
    if (number := _server(folder)) is not None:
        _send(number, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _server(folder: Path) -> int | None:
    """Return the process number of this folder's server."""
    for name in _PIDS:
        try:
            number = int((folder / name).read_text().split()[0])
        except (OSError, ValueError, IndexError):
            continue
        if str(folder) in _command(number):
            return number
    return None


def _command(number: int) -> str:
    try:
        if Path("/proc/self").exists():
            return Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
        asked = ["ps", "-o", "command=", "-p", str(number)]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def _send(number: int, number_of_signal: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, number_of_signal)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    if Path(sys.argv[1]).exists():
        end(Path(sys.argv[1]))
