"""Explore the pairs of the tests, and print what it costs: python -m checks.explore sqlite-wal."""

from __future__ import annotations

import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from checks.explore.pairs import RIGHT, WRONG, Pair
from checks.explore.rows import Base, reset_of
from optilock.testing import explore
from tests.engines import running


def main(names: list[str], prunes: tuple[str, ...]) -> None:
    with contextmanager(running)() as targets, tempfile.TemporaryDirectory() as folder:
        for name in names:
            engine = targets.get(name, Path(folder)).engine()
            Base.metadata.create_all(engine)
            for pair in [*WRONG, *RIGHT]:
                if not name.startswith(pair.without or ("-",)):
                    for prune in prunes:
                        print(f"{name:16} {line(pair, engine, prune)}", flush=True)
            engine.dispose()


def line(pair: Pair, engine, prune: str) -> str:  # type: ignore[no-untyped-def]
    sessions = pair.sessions(engine)
    found = explore(
        *pair.units(sessions),
        sessions=sessions,
        reset=reset_of(engine, pair.rows),
        prune=prune,  # type: ignore[arg-type]
        ignoring=["x_bookings.id", "x_slots.id"],
    )
    runs = found.orders + found.cut
    anomaly = found.failures[0].anomaly if found.failures else "nothing"
    steps = found.failures[0].steps if found.failures else 0
    return (
        f"{pair.name:24} {prune:7} {found.orders:5} orders, {found.cut:3} cut,"
        f" {len(found.failures):4} fail: {anomaly} ({steps} steps), {len(found.outcomes)} outcomes,"
        f" {found.waits} waits, {found.deadlocks} deadlocks, {found.unreached} unreached,"
        f" {found.seconds / runs * 1000:.1f} ms an order"
    )


if __name__ == "__main__":
    main(sys.argv[1:] or ["sqlite-wal"], ("source",))
