"""The table, the JSON and the verdict over the outcomes.

The verdict is the exit code of ``optilock demo``: last writer wins must have lost edits (else the
editors never met, and the other rows prove nothing), and every other strategy must have committed
and kept all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from optilock.demo.outcome import Outcome, percentile
from optilock.demo.strategies import LAST_WRITER_WINS

__all__ = ["as_json", "complaints", "table", "verdict"]


def as_json(outcomes: Sequence[Outcome]) -> str:
    """One JSON object, ``{"strategies": [...]}``; latencies in milliseconds."""
    return json.dumps({"strategies": [_figures(outcome) for outcome in outcomes]}, indent=2)


def table(outcomes: Sequence[Outcome]) -> Table:
    """One row per strategy."""
    grid = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    grid.add_column("strategy", min_width=13)
    for heading in _HEADINGS:
        grid.add_column(heading, justify="right", no_wrap=True)
    for outcome in outcomes:
        grid.add_row(outcome.name, *_cells(outcome))
    return grid


def verdict(outcomes: Sequence[Outcome]) -> str:
    """One sentence: how many edits each strategy lost."""
    lossy = [outcome for outcome in outcomes if outcome.losses.lost]
    told = ", ".join(
        f"{outcome.name} lost {outcome.losses.lost} of {outcome.committed} committed edits"
        for outcome in lossy
    )
    others = "all strategies" if not lossy else "the others"
    return f"{told}{'; ' if lossy else ''}{others} lost none."


def complaints(outcomes: Sequence[Outcome]) -> list[str]:
    """What is not as it must be, one sentence each; empty when all is well."""
    return [text for outcome in outcomes for text in _complaints(outcome)]


# Two lines where that saves width: the table fits a terminal of 80 columns, p99 of seconds too.
_HEADINGS = (
    "asked",
    "com-\nmitted",
    "lost",
    "conflicts",
    "resolved",
    "retries",
    "edits\nper s",
    "p50\nms",
    "p99\nms",
)


def _figures(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "asked": outcome.asked,
        "committed": outcome.committed,
        "lost": outcome.losses.lost,
        "conflicts": outcome.conflicts,
        "resolved": outcome.resolved,
        "retries": outcome.retries,
        "edits_per_second": round(outcome.edits_per_second, 1),
        "p50_ms": round(percentile(outcome.latencies, 50), 1),
        "p99_ms": round(percentile(outcome.latencies, 99), 1),
    }


def _cells(outcome: Outcome) -> list[str]:
    _, asked, committed, lost, *counts, speed, p50, p99 = _figures(outcome).values()
    colour = "bold red" if lost else "green"
    return [
        str(asked),
        str(committed),
        f"[{colour}]{lost}[/]",
        *map(str, counts),
        f"{speed:.0f}",
        f"{p50:.0f}",
        f"{p99:.0f}",
    ]


def _complaints(outcome: Outcome) -> list[str]:
    if outcome.name == LAST_WRITER_WINS.name:
        return [] if outcome.losses.lost else [_NEVER_MET]
    found = []
    if outcome.losses.lost:
        found.append(f"{outcome.name} lost {outcome.losses.lost} edits.")
    if outcome.losses.surplus:
        found.append(f"{outcome.name} stored {outcome.losses.surplus} edits twice or unasked.")
    if outcome.losses.damaged:
        found.append(f"{outcome.name} damaged the text of {', '.join(outcome.losses.damaged)}.")
    if outcome.committed < outcome.asked:
        found.append(f"{outcome.name} gave up {outcome.asked - outcome.committed} edits.")
    return found


_NEVER_MET = (
    "last writer wins lost nothing: the editors never met on a page, so this run shows nothing."
    " Ask for more --editors or --edits, or for fewer --pages."
)
