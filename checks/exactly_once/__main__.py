"""``python -m checks.exactly_once``: make runs, and print what they have counted."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from checks.exactly_once.cut_commits import WAYS, seeded
from checks.exactly_once.increments import DRIVERS, MODES, run
from tests.engines import Targets


def main() -> int:
    """0 where each run is right, or wrong in a mode that must be; 1 otherwise."""
    options = _options()
    failed = 0
    with ExitStack() as stack:
        targets = Targets(stack)
        for driver in options.engine or DRIVERS:
            name = "postgresql" if DRIVERS[driver][0].startswith("postgresql") else "mariadb"
            engine = targets.get(name, Path(tempfile.gettempdir())).engine()
            for mode in options.mode or ("true", "key"):
                failed += not _run(engine, driver, mode, options)
            engine.dispose()
    return 1 if failed else 0


def _run(engine, driver: str, mode: str, options: argparse.Namespace) -> bool:
    if mode == "pipelined" and not driver.startswith("psycopg"):
        return True
    ways = ("late",) if mode == "unfenced" else WAYS
    began = time.monotonic()
    found = run(engine, driver, mode, options.increments, seeded(options.share, options.seed, ways))
    wrong = mode in ("naive", "unfenced")
    print(
        f"{driver:14} {mode:10} {options.increments:6} increments: counter {found.counter},"
        f" {found.bodies} bodies, {sum(found.cuts.values())} cuts {found.cuts},"
        f" {found.fences} fences, {'right' if found.is_right else 'WRONG'}"
        f"{' (as it must be)' if wrong and not found.is_right else ''},"
        f" {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return found.is_right is not wrong


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m checks.exactly_once")
    parser.add_argument("--increments", type=int, default=2000)
    parser.add_argument("--engine", action="append", choices=DRIVERS)
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--share", type=float, default=0.06, help="of all COMMITs that are cut")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
