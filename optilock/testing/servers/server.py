"""What the private servers have in common: what they tell, where they live, and who runs them.

That is ourselves, or for root an unprivileged user: PostgreSQL refuses root, and MariaDB does so
too unless it is told to. As root we hand the server's folder to another user and run its programs
in that user's name; for everybody else there is nothing to do.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optilock.errors import OptilockError

__all__ = ["Account", "Server", "ServerMissing", "account_for", "free_port"]

#: What programs print goes there.
_LOG = "programs.log"


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


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Account:
    """The user who runs programs in ``folder``; ``name`` is ``None`` when that is ourselves."""

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
        """The end of the logs that exist, for an error message."""
        found = [self.folder / log for log in logs if (self.folder / log).exists()]
        texts = [log.read_text(errors="replace") for log in found]
        return "\n".join("\n".join(text.splitlines()[-count:]) for text in texts)

    def can_run(self, program: Path) -> bool:
        """May the user reach and run ``program``? Root's folders are often closed to others."""
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
    """Ourselves, or for root the first of these users who exists, in a new folder.

    It is removed afterwards, and has a short path: that of a unix socket may have 107 bytes, 103 on
    macOS, and whoever runs the server must reach it. Neither is sure where TMPDIR points.
    """
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    user = next((name for name in unprivileged if _user(name)), None) if root else None
    place = "/tmp" if os.path.isdir("/tmp") else None
    with tempfile.TemporaryDirectory(prefix=f"optilock-{name}-", dir=place) as folder:
        yield Account(Path(folder), user)


def _user(name: str) -> tuple[int, int] | None:
    """The numbers of a user and of his group, or ``None`` when there is no such user."""
    import pwd  # not on Windows, where nobody is root

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid


def _environment() -> dict[str, str]:
    """Ours, without the PG* variables that would send the programs elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
