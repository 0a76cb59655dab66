"""The command ``optilock migrate``. Exit codes: 0 the version is there, 1 not yet, 2 bad input."""

from __future__ import annotations

from typing import Any

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy import Engine

from optilock.dialects.commands import exit_codes, open_engine
from optilock.errors import ConfigurationError
from optilock.rollout.dry import dry_run as statements_of
from optilock.rollout.fill import SHARE, pace_of
from optilock.rollout.report import Report, kind_of_option, token_kinds
from optilock.rollout.run import abort as take_back
from optilock.rollout.run import roll_out
from optilock.tokens.guard_trigger import Policy

_NAME = "{task.description}"


@click.command()
@click.argument("table")
@click.option("--url", required=True, help="The database, as SQLAlchemy writes it.")
@click.option("--schema", help="The table's schema, if it is not the default one.")
@click.option(
    "--token",
    default="counter",
    show_default=True,
    metavar=f"{'|'.join(sorted(token_kinds()))}|MODULE:KIND",
    help="The kind of version.",
)
@click.option("--column", default="version", show_default=True, help="The version's column.")
@click.option(
    "--guard",
    type=click.Choice(["bump", "reject"]),
    help="Also create the guard trigger, before the rows are filled.",
)
@click.option("--ignore", multiple=True, help="A column that does not count for the guard trigger.")
@click.option("--node", multiple=True, help="host:port of each node of a Galera cluster.")
@click.option("--rate", type=float, help="Rows a second at most.")
@click.option("--batch", type=int, help="Rows a batch, however long that takes.")
@click.option(
    "--share", default=SHARE, show_default=True, help="Of its time, to work; 1: no rests."
)
@click.option("--lock-timeout", default=0.1, show_default=True, help="Seconds to wait for a lock.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds to go on trying.")
@click.option("--dry-run", is_flag=True, help="Only print the SQL.")
@click.option("--abort", is_flag=True, help="Take back a roll-out that was not finished.")
def migrate(
    table: str,
    url: str,
    schema: str | None,
    token: str,
    column: str,
    guard: Policy | None,
    ignore: tuple[str, ...],
    node: tuple[str, ...],
    rate: float | None,
    batch: int | None,
    share: float,
    lock_timeout: float,
    patience: float,
    dry_run: bool,
    abort: bool,
) -> None:
    """Put a version on TABLE while others write it.

    After an interruption, run the same command again to continue, or undo the roll-out with
    --abort.
    """
    with exit_codes("migrate"):
        kind = kind_of_option(token)
        version = kind(column=column) if column != "version" else kind()
        named: dict[str, Any] = {"schema": schema, "token": version}
        triggers: dict[str, Any] = {"guard": guard, "ignore": ignore}
        pace: dict[str, Any] = {"rate": rate, "batch": batch, "share": share}
        waits: dict[str, Any] = {"lock_timeout": lock_timeout, "patience": patience, "nodes": node}
        if dry_run and abort:
            raise ConfigurationError("--dry-run shows a roll-out, and --abort takes one back.")
        pace_of(**pace)  # also for what is only shown
        with open_engine(url) as engine:
            if dry_run:
                lines = statements_of(engine, table, batch=batch, **named, **triggers)
                _show(table, column, lines)
            elif abort:
                print(_gone(table, column, take_back(engine, table, **named, **waits)))
            else:
                report = _rolled_out(engine, table, **named, **triggers, **pace, **waits)
                print(_sentence(table, column, report))


def _rolled_out(engine: Engine, table: str, **options: Any) -> Report:
    """Roll out with a progress bar on standard error."""
    columns = (TextColumn(_NAME), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        return roll_out(engine, table, progress=_Bar(shown), **options)


def _sentence(table: str, column: str, report: Report) -> str:
    if not report.steps:
        return f"{table}.{column} was there already, filled and NOT NULL: nothing to do."
    return (
        f"{table}.{column} is there: {', '.join(report.steps)}."
        f" {report.filled:,} rows filled in {report.batches:,} batches,"
        f" {report.waits} waits, {report.seconds:.1f} seconds."
    )


def _show(table: str, column: str, lines: list[str]) -> None:
    if not lines:
        print(f"-- {table}.{column} was there already, filled and NOT NULL: nothing to do.")
    for line in lines:
        print(line if line.startswith("--") else f"{line};")


def _gone(table: str, column: str, steps: tuple[str, ...]) -> str:
    if not steps:
        return f"Nothing is left of a roll-out of {table}.{column}: nothing to do."
    return f"The roll-out of {table}.{column} is taken back: {', '.join(steps)}."


class _Bar:
    """The progress of the roll-out, as a bar on standard error."""

    def __init__(self, shown: Progress) -> None:
        self._bar = shown

    def step(self, name: str, total: int | None = None) -> None:
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._task = self._bar.add_task(name, total=total)

    def filled(self, rows: int) -> None:
        self._bar.advance(self._task, rows)

    def waiting(self, why: str) -> None:
        self._bar.update(self._task, description=why)
