"""Run the benchmarks, or list them.

::

    python -m benchmarks                                 # the list
    python -m benchmarks overhead batch                  # these two, as a Markdown table
    python -m benchmarks batch --quick --database sqlite
    python -m benchmarks overhead --rounds 100 --markdown overhead.md --json
    python -m benchmarks contention --writers 1 --writers 8
    python -m benchmarks --report                        # all, into docs/contributing/benchmarks

The table goes to standard output, progress to standard error. ``--json`` prints JSON in the table's
place, with the seconds behind the ratios.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.environment import facts
from benchmarks.plan import MANY, Plan
from benchmarks.report import FIGURES, RUNS, write
from benchmarks.servers import DATABASES, USUAL, Place, places
from benchmarks.stores.peers import PEERS
from benchmarks.table import Line, markdown, to_json

__all__ = ["BENCHMARKS", "main"]

#: Every benchmark: a module of this package with ``run(place, plan)``.
BENCHMARKS = (
    "overhead",
    "batch",
    "conflicts",
    "contention",
    "isolation",
    "network",
    "scale",
    "memory",
    "ycsb",
    "smallbank",
    "tpcb",
    "overlap",
    "trips",
    "exactly_once",
    "rollout",
    "guard_trigger",
    "entities",
    "preconditions",
    "leases",
    "queue",
    "scopes",
    "telemetry",
    "live",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; 0, or 1 when a goal was not reached."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.benchmark) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if asked.report:
        return _report(asked.benchmark or BENCHMARKS, FIGURES)
    if not asked.benchmark:
        print(_listing(), end="")
        return 0
    plan = Plan(
        rounds=asked.rounds,
        quick=asked.quick,
        many=asked.rows,
        writers=tuple(asked.writers or ()),
        seconds=asked.seconds,
        subjects=tuple(asked.subject or ()),
    )
    with places(_wanted(asked.benchmark, asked.database)) as found:
        by_name = {name: list(_run(name, found, plan)) for name in asked.benchmark}
        about = facts(_command(arguments), found)
    lines = [line for each in by_name.values() for line in each]
    table = markdown(lines, about)
    if asked.markdown is not None:
        asked.markdown.write_text(table, encoding="utf-8")
    print(to_json(lines, about) if asked.json else table)
    return int(any(line.reached is False for line in lines))


def _report(names: Sequence[str], folder: Path) -> int:
    """Run these as a report does, each one's figures written when it is done."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        plan, databases = RUNS[name].plan, RUNS[name].databases
        with places(_wanted([name], databases)) as found:
            lines = list(_run(name, found, plan))
            about = facts(f"python -m benchmarks --report {name}", found)
        (folder / f"{name}.json").write_text(to_json(lines, about) + "\n", encoding="utf-8")
    for path in write(folder, _questions()):
        print(path, file=sys.stderr)
    return 0


def _run(name: str, found: Sequence[Place], plan: Plan) -> Iterator[Line]:
    for place in (place for place in found if place.name in _databases(name)):
        print(f"{name}: {place.label}", file=sys.stderr)
        yield from importlib.import_module(f"benchmarks.{name}").run(place, plan)


def _databases(name: str) -> Sequence[str]:
    """The databases that a benchmark runs on."""
    known: Sequence[str] = getattr(
        importlib.import_module(f"benchmarks.{name}"), "DATABASES", USUAL
    )
    return known


def _wanted(names: Sequence[str], asked: Sequence[str] | None) -> list[str]:
    """What has to be started: what was asked for, or all that can be."""
    used = [one for one in DATABASES if any(one in _databases(name) for name in names)]
    return [one for one in used if one in asked] if asked else used


def _listing() -> str:
    """The name and the question of every benchmark."""
    return "".join(f"{name:<15}{question}\n" for name, question in _questions().items())


def _questions() -> dict[str, str]:
    texts = {name: importlib.import_module(f"benchmarks.{name}").__doc__ for name in BENCHMARKS}
    return {name: (text or "").splitlines()[0] for name, text in texts.items()}


def _command(arguments: Sequence[str] | None) -> str:
    return " ".join(["python -m benchmarks", *(sys.argv[1:] if arguments is None else arguments)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Ratios of optilock to SQLAlchemy's own check, measured in one run.",
    )
    parser.add_argument("benchmark", nargs="*", help=f"any of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds of every comparison")
    parser.add_argument("--quick", action="store_true", help="few rounds and only the main sizes")
    parser.add_argument(
        "--rows", type=_positive, default=MANY, metavar="N", help="rows of a batch (default 1000)"
    )
    parser.add_argument(
        "--database", action="append", choices=DATABASES, help="only this one; may be repeated"
    )
    parser.add_argument(
        "--writers", type=_positive, action="append", metavar="N", help="how many write at once"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="of a turn of many writers")
    parser.add_argument(
        "--subject", action="append", choices=[*PEERS], help="of those; may be repeated"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument(
        "--report",
        action="store_true",
        help="run all, or those that are named, as the documentation shows them, and write their"
        " figures and pictures into docs/contributing/benchmarks",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    return parser


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
