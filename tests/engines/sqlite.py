"""SQLite files with several connections: rollback journal and write-ahead log."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import Engine, create_engine

from tests.engines.target import Target

FAMILY = "sqlite"
NAMES = ("sqlite-journal", "sqlite-wal")
_MODES = {"sqlite-journal": "DELETE", "sqlite-wal": "WAL"}
CAPABILITIES = dict.fromkeys(NAMES, frozenset({"resolves-in-place"}))


def look() -> None:
    """Python has SQLite."""


def start(stack: ExitStack) -> Engine:
    """SQLite needs no server: this is an engine for the others to be like."""
    engine = create_engine("sqlite://", query_cache_size=3_000)
    engine.connect().close()
    stack.callback(engine.dispose)
    return engine


def target(name: str, server: Engine, folder: Path, module: Path | None) -> Target:
    path = folder / f"{name}.db"
    return Target(
        name=name,
        family=FAMILY,
        url=f"sqlite:///{path}",
        # In this order, or the change of the mode waits for the disk: a tenth of a test's time.
        on_connect=("PRAGMA synchronous=OFF", f"PRAGMA journal_mode={_MODES[name]}"),
        # A writer that waits for a test that steps sessions by hand waits in vain: not for long.
        options={"connect_args": {"timeout": 0.2}},
        like=server,
        capabilities=CAPABILITIES[name],
    )
