"""``python -m checks.history``: run seeds on engines, or clients, and print what they find."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from checks.history import load, soak
from checks.history.appends import WAYS
from checks.history.histories import history
from checks.history.mappings import MAPPINGS
from checks.history.runner import Place
from checks.history.shrink import Finding, finding, shrink
from tests.engines import NAMES, Targets


def main() -> int:
    """0 when no history breaks a promise, 1 otherwise."""
    options = _options()
    if options.clients:
        return (soak if options.soak else load).main(options)
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
    parser = argparse.ArgumentParser(prog="python -m checks.history", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--engines", nargs="+", choices=sorted({*NAMES, *load.ENGINES}))
    parser.add_argument("--mappings", nargs="+", choices=MAPPINGS, default=list(MAPPINGS))
    parser.add_argument("--shrink", action="store_true", help="make what fails as short as it goes")
    parser.add_argument("--show", type=int, default=3, help="how many of one mapping and word")
    many = parser.add_argument_group("many clients at once, in place of seeds")
    many.add_argument("--clients", type=int, default=0, help="how many, such as 16")
    many.add_argument("--seconds", type=float, help="for how long: 60, or 600 with --soak")
    many.add_argument("--way", choices=WAYS, default="units", help="how they write")
    many.add_argument("--faults", action="store_true", help="faults of optilock.testing, at random")
    many.add_argument(
        "--exactly-once", action="store_true", help="units that find out their COMMIT"
    )
    many.add_argument("--broken", choices=["versions", "retry"], help="a test of the test")
    many.add_argument("--soak", action="store_true", help="the server ends now and then")
    many.add_argument("--every", type=float, default=30, help="seconds from one end to the next")
    options = parser.parse_args()
    if options.clients < 0 or (options.soak and not options.clients):
        parser.error("--clients needs a number, such as --clients 16")
    if not options.clients and not {*NAMES}.issuperset(options.engines or ()):
        parser.error(f"seeds run on {', '.join(NAMES)}; name --clients for other engines")
    if options.seconds is None:
        options.seconds = 600 if options.soak else 60
    if options.engines is None:
        several = ["postgresql", "mariadb"] if options.soak else ["sqlite-wal", "postgresql"]
        options.engines = several if options.clients else ["sqlite-wal"]
    return options


if __name__ == "__main__":
    sys.exit(main())
