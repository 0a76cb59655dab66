"""Programs in processes of their own: the wiki, and those of the documentation."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from apps.tests.wiki.browsing import Visitor
from tests.support.waiting import until

__all__ = ["ROOT", "served_by", "visitor", "wiki_at"]

ROOT = Path(__file__).parents[2]


@contextmanager
def wiki_at(*options: str, folder: Path) -> Iterator[str]:
    """``optilock wiki`` on a free port: its address. It ends as by Ctrl-C, in good order."""
    command = [sys.executable, "-m", "optilock.cli", "wiki", "--port", "0", *options]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "apps")]),
        "TMPDIR": str(folder),
    }
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            watchdog.cancel()
            assert said.startswith("The wiki is at http://"), said
            yield said.split()[4]
        finally:
            watchdog.cancel()
            process.terminate()
            try:
                code = process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert code == 0


@contextmanager
def served_by(*words: str, folder: Path) -> Iterator[int]:
    """A program of the documentation that takes ``--port``, once it listens: its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, *words, "--port", str(port)]
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": ""}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            _wait(port, process, folder / "log")
            yield port
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def listens() -> bool:
        if process.poll() is not None:
            pytest.fail(f"It does not listen: {log.read_text()}")
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return True
        return False

    until(listens, 120, every=0.05)


@contextmanager
def visitor(address: str) -> Iterator[Visitor]:
    """Somebody who visits a server."""
    with httpx2.Client(base_url=address, timeout=60) as client:
        yield Visitor(client)
