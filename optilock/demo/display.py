"""What the user sees: a bar while the editors work, then the table and the story."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from optilock.demo.outcome import Outcome
from optilock.demo.pages import CREDIT, hot_pages
from optilock.demo.report import table, verdict
from optilock.demo.run import Options
from optilock.demo.story import Story, story_of

__all__ = ["progress_bar", "show"]


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
