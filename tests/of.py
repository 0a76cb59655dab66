"""Find the tests that protect a source file: the test files whose words are closest to it.

    python -m tests.of optilock/watched/guard/batch.py          print them
    python -m tests.of --run optilock/watched/guard/batch.py    run them

``tests/MAP.md`` has them for all files (:mod:`tests.map`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import map as map_of_words

__all__ = ["ROOT", "tests_of"]

ROOT = Path(__file__).resolve().parents[1]


def tests_of(files: Sequence[str]) -> list[str]:
    """Return the test files of source files, relative to the root; the closest one first."""
    closest = map_of_words.read(ROOT).closest
    return [*dict.fromkeys(test for name in files for test in closest(name))]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.of", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--run", action="store_true", help="run the tests")
    options = parser.parse_args()
    found = tests_of([_below_root(name) for name in options.files])
    if not found:
        parser.error("no test is known for it: name a file of optilock/")
    if not options.run:
        print(*found, sep="\n")
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *found], cwd=ROOT).returncode


def _below_root(name: str) -> str:
    path = Path(name).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else name


if __name__ == "__main__":
    sys.exit(main())
