"""The output of the demo: a bar while the editors work, then table, verdict and story.

The verdict is the exit code of ``optilock demo``: last writer wins must have lost edits (else the
editors never met, and the other rows prove nothing), and every other strategy must have committed
and kept all of them.

The story is one conflict of the run, step by step, with its three values and what came of them. The
values are those of the :class:`~optilock.errors.Entry` that the resolver was given. The merged ones
are asked of the same resolver once more: it is a function of the entry alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from optilock import Entry
from optilock.resolvers import Resolution
from optilock_apps.demo.edits import CREDIT, hot_pages
from optilock_apps.demo.run import Options, Outcome, percentile
from optilock_apps.demo.strategies import LAST_WRITER_WINS, MERGE


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
    """Return a sentence for each wrong result; empty if all is well."""
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
    """Print the options, the table, its legend, and one conflict."""
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
    yield "retries     an edit began again: after a conflict, or the page was leased"
    yield "p50, p99    from reading to committed, pauses and retries included"
    if options.backend == "sqlite":
        yield "SQLite has one lock for all rows: the last two both lock the file here"


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


_MARK = re.compile(r"\[edit (\d+)-\d+\]")


@dataclass(frozen=True)
class Story:
    """Sentences before and after a grid of (attribute, original, yours, theirs, merged)."""

    before: tuple[str, ...]
    rows: tuple[tuple[str, str, str, str, str], ...]
    after: tuple[str, ...]


def story_of(entry: Entry[Any]) -> Story | None:
    """The story of a conflict that was merged; ``None`` if the row is gone or was not merged."""
    resolution = MERGE(entry)
    if entry.database is None or not isinstance(resolution, Resolution):
        return None
    if resolution.decision != "write":
        return None
    return Story(
        before=tuple(_before(entry, entry.database)),
        rows=tuple(_rows(entry, entry.database, resolution.values)),
        after=_AFTER,
    )


_AFTER = (
    "The merged page was written in the same transaction, under a condition on the version just"
    " read, and committed.",
    "Nobody's edit was lost, and nobody had to write it again.",
)


def _before(entry: Entry[Any], database: Mapping[str, Any]) -> Iterator[str]:
    ours = _new_lines(entry.original, entry.current)
    theirs = _new_lines(entry.original, database)
    yield (
        f"{_author(ours)} reads page {entry.identity[0]!r}: version {entry.original['version']},"
        f" {entry.original['views']} views."
    )
    yield (
        f"While {_author(ours)} thinks, version {database['version']} is stored by"
        f" {_author(theirs)}."
    )
    yield (
        f"{_author(ours)} writes ... WHERE version = {entry.original['version']}: no row matches,"
        " so nothing is overwritten. The stored row is read, and each column is settled:"
    )


def _rows(
    entry: Entry[Any], database: Mapping[str, Any], merged: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str, str]]:
    original, current = entry.original, entry.current
    result = {**database, **merged}
    sides = (current, database, result)
    yield ("views", str(original["views"]), *_three(str(side["views"]) for side in sides))
    yield (
        "tags",
        f"{len(original['tags'])} tags",
        *_three(_plus(_new_tags(original, side)) for side in sides),
    )
    yield (
        "body",
        f"{len(original['body'].splitlines())} lines",
        *_three(_plus(_numbered(side, _new_lines(original, side))) for side in sides),
    )


def _three(cells: Iterator[str]) -> tuple[str, str, str]:
    yours, theirs, merged = cells
    return yours, theirs, merged


def _new_tags(original: Mapping[str, Any], side: Mapping[str, Any]) -> list[str]:
    return [tag for tag in side["tags"] if tag not in original["tags"]]


def _new_lines(original: Mapping[str, Any], side: Mapping[str, Any]) -> list[str]:
    known = set(original["body"].splitlines())
    return [line for line in side["body"].splitlines() if line not in known]


def _numbered(side: Mapping[str, Any], lines: Sequence[str]) -> list[str]:
    """Each line with its place in the text; the demo never writes the same line twice."""
    everything = side["body"].splitlines()
    return [f"line {everything.index(line) + 1}: {line}" for line in lines]


def _plus(added: Sequence[str]) -> str:
    return "\n".join(f"+ {each}" for each in added) or "unchanged"


def _author(lines: Sequence[str]) -> str:
    """Return the authors of the lines, by their marks."""
    numbers = sorted({found[1] for line in lines if (found := _MARK.search(line))})
    if not numbers:
        return "an editor"
    return "editor " + " and editor ".join(numbers)
