"""``python -m checks.differential``: run seeds on an engine, and print where sessions differ."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from checks.differential.differences import place_on, shrink
from checks.differential.programs import program
from tests.engines import NAMES, Targets


def main() -> int:
    """0 when no program tells a watched session from a plain one, 1 otherwise."""
    options = _options()
    name = next(name for name in NAMES if name in (options.engine, f"{options.engine}-wal"))
    words: Counter[str] = Counter()
    began = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="optilock-differential-"))
        engine = Targets(stack).get(name, Path(folder)).engine()
        stack.callback(engine.dispose)
        place = stack.enter_context(place_on(engine))
        for seed in range(options.first, options.first + options.seeds):
            found = place.difference(program(seed))
            if found is None:
                continue
            words[found.word] += 1
            if words[found.word] <= options.show:
                print(shrink(place, found) if options.shrink else found, flush=True)
    seconds = time.monotonic() - began
    print(f"{name}: {options.seeds} programs in {seconds:.1f} s, {words.total()} of them differ")
    for word, count in words.most_common():
        print(f"    {count:5} {word}")
    return 1 if words else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m checks.differential", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    engines = ("sqlite", "postgresql", "mariadb")
    parser.add_argument("--engine", choices=engines, default="sqlite")
    parser.add_argument("--shrink", action="store_true", help="leave steps out while it differs")
    parser.add_argument("--show", type=int, default=2, help="how many of one kind")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
