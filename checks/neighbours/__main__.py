"""``python -m checks.neighbours``: run, compare, and print a few lines."""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checks.neighbours.comparison import MODES, Run, compare, differences
from checks.neighbours.environments import Neighbour, neighbours, prepared
from checks.neighbours.runner import run

#: Tracebacks that are printed of a run.
SHOWN = 5


def main() -> int:
    """0 when every run is as it should be, 1 otherwise."""
    known = neighbours()
    parser = argparse.ArgumentParser(
        prog="python -m checks.neighbours",
        description="Run other packages' tests with every session watched by optilock.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    unknown = sorted({*options.names} - known.keys())
    if unknown:
        parser.error(f"there is no {unknown[0]}: choose from {', '.join(known)}")
    chosen = [known[name] for name in options.names or known]
    with (
        tempfile.TemporaryDirectory(prefix="optilock-neighbours-") as folder,
        ThreadPoolExecutor(options.workers) as pool,
    ):
        places = [pool.submit(prepared, one, Path(folder, one.name)) for one in chosen]
        modes = ("plain", *MODES)
        runs = [
            {mode: pool.submit(run, one, place.result(), mode) for mode in modes}
            for one, place in zip(chosen, places, strict=True)
        ]
        good = [
            _report(one, {mode: future.result() for mode, future in of.items()})
            for one, of in zip(chosen, runs, strict=True)
        ]
    print("the neighbours' tests hold" if all(good) else "they do not hold: see above")
    return 0 if all(good) else 1


def _report(neighbour: Neighbour, runs: dict[str, Run]) -> bool:
    print(f"{neighbour.source}: {runs['plain']}", flush=True)
    good = True
    for mode in MODES:
        listed = [
            one for one in differences() if one.neighbour == neighbour.name and one.mode == mode
        ]
        wrong = compare(
            runs["plain"],
            runs[mode],
            listed,
            updates=neighbour.updates and mode == "versioned",
        )
        counts = runs[mode].counts
        print(
            f"  {mode}: {runs[mode]}; {len(listed)} known differences; {counts.get('flushes', 0)}"
            f" flushes, {counts.get('statements', 0)} guarded statements",
            flush=True,
        )
        for number, sentence in enumerate(wrong):
            print(f"  WRONG: {sentence}")
            if number < SHOWN:
                print(runs[mode].tracebacks.get(sentence.split(": ", 1)[0], ""), end="")
        good = good and not wrong
    return good


if __name__ == "__main__":
    raise SystemExit(main())
