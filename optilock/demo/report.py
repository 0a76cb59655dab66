"""What the user sees: a bar while the editors work, then the table, the verdict and the story.

The verdict is the exit code of ``optilock demo``: last writer wins must have lost edits (else the
editors never met, and the other rows prove nothing), and every other strategy must have committed
and kept all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from optilock.demo.run import Options, Outcome, percentile
from optilock.demo.story import Story, story_of
from optilock.demo.strategies import LAST_WRITER_WINS
from optilock.demo.wiki import CREDIT, hot_pages

__all__ = ["as_json", "complaints", "progress_bar", "show", "table", "verdict"]


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


@contextmanager
def progress_bar(strategies: int, edits: int) -> Iterator[Callable[[str, int], None]]:
    """A bar on standard error, gone when done; nothing at all where no terminal is."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("edits"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting editors", total=strategies * edits)

        def progress(strategy: str, written: int) -> None:
            bar.update(task, description=strategy, advance=written)

        yield progress


def show(options: Options, outcomes: Sequence[Outcome], console: Console) -> None:
    """What was run, the table, what its words mean, and one conflict."""
    console.print(_heading(options), highlight=False)
    console.print()
    console.print(table(outcomes))
    console.print(f"\n{verdict(outcomes)}\n", style="bold", highlight=False)
    for line in _legend(options):
        console.print(line, style="dim", highlight=False)
    entry = next((outcome.told for outcome in outcomes if outcome.told is not None), None)
    story = story_of(entry) if entry is not None else None
    if story is not None:
        _tell(story, console)
    console.print(f"\n{CREDIT}", style="dim", highlight=False)


def _heading(options: Options) -> str:
    names = ", ".join(hot_pages(options.pages)) if options.pages <= _FEW else f"{options.pages}"
    return (
        f"{options.editors} editor processes write {options.edits} edits each, the same under"
        f" every strategy.\nPages: {names}. Database: {options.backend}."
    )


def _legend(options: Options) -> Iterator[str]:
    yield "lost        committed, but its mark, tag or view is not in the stored page"
    yield "conflicts   another edit came first, and that was noticed"
    yield "p50, p99    from reading to committed, pauses and retries included"
    if options.backend == "sqlite":
        yield "SQLite has one lock for all rows: the last two are both BEGIN IMMEDIATE here"


_FEW = 8


def _tell(story: Story, console: Console) -> None:
    console.print("\n[bold]One conflict, step by step[/]")
    _say(story.before, 1, console)
    console.print(_three_values(story))
    _say(story.after, len(story.before) + 1, console)


def _say(sentences: Sequence[str], first: int, console: Console) -> None:
    for number, sentence in enumerate(sentences, first):
        console.print(f"{number}. {sentence}", highlight=False, markup=False)


def _three_values(story: Story) -> Table:
    grid = Table(show_lines=True)
    for heading in ("", "original", "yours", "theirs", "merged"):
        grid.add_column(heading, overflow="fold")
    for row in story.rows:
        # The marks are in square brackets, which must not be read as rich's own markup.
        grid.add_row(*(Text(cell) for cell in row))
    return grid
