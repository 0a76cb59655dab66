"""What the private servers have in common: what they tell, and where they live."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from optilock.errors import OptilockError

__all__ = ["Server", "ServerMissing", "folder_for", "free_port", "last_lines"]


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


@contextmanager
def folder_for(name: str) -> Iterator[Path]:
    """A new folder with a short path, removed afterwards.

    The path of a unix socket may have 107 bytes, 103 on macOS, and whoever runs the server must
    reach it: neither is sure where TMPDIR points.
    """
    place = "/tmp" if os.path.isdir("/tmp") else None
    with tempfile.TemporaryDirectory(prefix=f"optilock-{name}-", dir=place) as folder:
        yield Path(folder)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def last_lines(*logs: Path, count: int = 12) -> str:
    """The end of the logs that exist, for an error message."""
    texts = [log.read_text(errors="replace") for log in logs if log.exists()]
    return "\n".join("\n".join(text.splitlines()[-count:]) for text in texts)
