"""``python -m checks.sqlalchemy_suite``: run, judge, and say so in a few lines."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import sqlalchemy

from checks.sqlalchemy_suite.databases import NAMES, database
from checks.sqlalchemy_suite.known import differences
from checks.sqlalchemy_suite.runner import run
from checks.sqlalchemy_suite.source import unpacked
from checks.sqlalchemy_suite.verdict import Run, judge


def main() -> int:
    """0 when every database's run is as it should be, 1 otherwise."""
    options = _options()
    print(f"SQLAlchemy {sqlalchemy.__version__}: {' '.join(options.files)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="optilock-suite-") as folder:
        source = options.source or unpacked(Path(folder))
        good = [_run_on(name, source, options) for name in options.database]
    print(
        "SQLAlchemy's tests hold, with every session watched"
        if all(good)
        else "SQLAlchemy's tests do not hold: see above"
    )
    return 0 if all(good) else 1


def _run_on(name: str, source: Path, options: argparse.Namespace) -> bool:
    with database(name) as url:
        done = run(source, url, options.files, workers=options.workers)
    known = differences(sqlalchemy.__version__)
    wrong = judge(done, known)
    _print(name, done, wrong)
    return not wrong


def _print(name: str, done: Run, wrong: list[str]) -> None:
    print(
        f"{name}: {done.statements} guarded statements were sent, for {done.guarded} of the"
        f" {done.wanted} rows with a version that were written;"
        f" {len(done.passed)} tests as before, {len(done.failed)} not, {done.skipped} skipped",
        flush=True,
    )
    for test in sorted({name.split("[", 1)[0] for name in done.failed}):
        print(f"  not as before: {test}")
    for sentence in wrong:
        print(f"  WRONG: {sentence}")
        print(done.failed.get(sentence.split(" ", 1)[0], ""), end="", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m checks.sqlalchemy_suite",
        description="Run SQLAlchemy's own ORM tests with every session watched by optilock.",
    )
    parser.add_argument("--database", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument(
        "--files",
        nargs="+",
        default=["test/orm"],
        help="in SQLAlchemy's source",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--source", type=Path, help="unpacked source distribution")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
