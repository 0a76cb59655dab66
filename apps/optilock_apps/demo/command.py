"""The command line of the demo. Exit codes: 0 shown, 1 not shown, 2 could not begin."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import rich_click as click
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from optilock.errors import ConfigurationError
from optilock_apps.demo.report import as_json, complaints, progress_bar, show
from optilock_apps.demo.run import DemoFailed, Options, Outcome, run
from optilock_apps.demo.strategies import STRATEGIES


@click.command()
@click.option("--url", help="Database to run on; without it a temporary SQLite file.")
@click.option("--editors", default=4, show_default=True, help="Processes that edit at once.")
@click.option("--edits", default=25, show_default=True, help="Edits per editor.")
@click.option("--pages", default=3, show_default=True, help="Pages they share.")
@click.option("--seed", default=1, show_default=True, help="Another number, other edits.")
@click.option("--json", "only_json", is_flag=True, help="Print the figures as JSON, nothing else.")
def demo(url: str | None, editors: int, edits: int, pages: int, seed: int, only_json: bool) -> None:
    """Let several editors change the same wiki pages under six strategies, and count the losses.

    The database gets tables named optilock_demo_..., which are dropped at the end.
    Exit code 0: last writer wins lost edits and no other strategy did.
    """
    with _errors_as_sentences():
        options = Options(editors=editors, edits=edits, pages=pages, seed=seed, url=url)
        with progress_bar(len(STRATEGIES), options.editors * options.edits) as progress:
            outcomes = run(options, progress)
    if only_json:
        print(as_json(outcomes))
    else:
        show(options, outcomes, Console())
    _end(outcomes)


def _end(outcomes: Sequence[Outcome]) -> NoReturn:
    found = complaints(outcomes)
    for sentence in found:
        print(f"optilock demo: {sentence}", file=sys.stderr)
    sys.exit(1 if found else 0)


@contextmanager
def _errors_as_sentences() -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        print(f"optilock demo: {error}", file=sys.stderr)
        sys.exit(2)
    except DemoFailed as error:
        print(f"optilock demo: {error}", file=sys.stderr)
        sys.exit(1)
    except SQLAlchemyError as error:
        # The database went away under the demo: nothing in our code to look for.
        first_line = str(error).split("\n")[0]
        print(f"optilock demo: The database failed: {first_line}", file=sys.stderr)
        sys.exit(1)
