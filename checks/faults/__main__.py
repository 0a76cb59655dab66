"""``python -m checks.faults``: run trials on engines, and print what they find."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from sqlalchemy import create_engine

from checks.faults.drivers import ENGINES, KINDS
from checks.faults.trials import calls_of, chosen, run
from checks.faults.works import WORKS, World
from tests.engines import Targets

DATABASES = {"sqlite": "sqlite-wal", "aiosqlite": "sqlite-wal"}


def main() -> int:
    """0 when no trial finds anything, 1 otherwise."""
    options = _options()
    began = time.monotonic()
    wrong: list[str] = []
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="optilock-faults-") as folder:
        targets = Targets(stack)
        urls: dict[str, str] = {}
        for engine in options.engine:
            place = Path(folder, engine)
            place.mkdir()
            urls[engine] = targets.get(DATABASES.get(engine, "postgresql"), place).url
            direct = create_engine(urls[engine])
            World(None, direct).prepare()
            direct.dispose()
        calls = cache(lambda engine, name: calls_of(engine, name, urls[engine]))
        trials = chosen(
            options.engine, options.work, options.kind, options.trials, options.seed, calls
        )
        for trial in trials:
            found = run(trial, urls[trial.engine])
            if found is not None:
                wrong.append(found)
                print(found, flush=True)
    for (engine, name), number in sorted(Counter((t.engine, t.work) for t in trials).items()):
        print(f"    {number:5} {engine} {name}")
    seconds = time.monotonic() - began
    print(f"{len(trials)} trials in {seconds:.1f} s, {len(wrong)} of them found something")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m checks.faults")
    kinds = sorted({kind for kind, _ in KINDS})
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--kind", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
