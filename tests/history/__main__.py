"""``python -m tests.history``: run seeds on engines, and print what they find."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.engines import NAMES, Targets
from tests.history.histories import history
from tests.history.mappings import MAPPINGS
from tests.history.runner import Place
from tests.history.shrink import Finding, finding, shrink


def main() -> int:
    """0 when no history breaks a promise, 1 otherwise."""
    options = _options()
    found: list[Finding] = []
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="optilock-history-") as folder:
        targets = Targets(stack)
        for name in options.engines:
            place = Place(targets.get(name, Path(folder)))
            try:
                found += _run(place, options)
            finally:
                place.close()
    return 1 if found else 0


def _run(place: Place, options: argparse.Namespace) -> list[Finding]:
    found: list[Finding] = []
    began = shown = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    for number, seed in enumerate(seeds, 1):
        one = finding(place, history(seed, tuple(options.mappings)))
        if one is not None:
            known = sum(other.key == one.key for other in found)
            found.append(one)
            if known < options.show:
                print(_told(one, options), flush=True)
        if time.monotonic() - shown > 5 and sys.stderr.isatty():
            shown = time.monotonic()
            print(f"{place.target.name}: {number} of {len(seeds)}", file=sys.stderr)
    seconds = time.monotonic() - began
    print(
        f"{place.target.name}: {len(seeds)} histories in {seconds:.1f} s, {len(found)} of them"
        " break a promise"
    )
    for (on, word), count in sorted(Counter(one.key for one in found).items()):
        print(f"    {count:5} {on}: {word}")
    return found


def _told(one: Finding, options: argparse.Namespace) -> str:
    return str(shrink(one) if options.shrink else one)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--engines", nargs="+", choices=NAMES, default=["sqlite-wal"])
    parser.add_argument("--mappings", nargs="+", choices=MAPPINGS, default=list(MAPPINGS))
    parser.add_argument("--shrink", action="store_true", help="make what fails as short as it goes")
    parser.add_argument("--show", type=int, default=3, help="how many of one mapping and word")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
