"""The command ``optilock conflicts``. Exit codes: 0 done, 1 the database failed or has no table,
2 bad input.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine, inspect, select

from optilock.dialects.commands import end, exit_codes, open_engine
from optilock.errors import ConfigurationError
from optilock.tables.conflicts import conflicts as log

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
#: The parts of a summary, and the heads of their first columns.
_HEADS = {"classes": "class", "rows": "row", "columns": "column", "outcomes": "outcome"}


@click.command("conflicts")
@click.option("--url", required=True, help="The database, as SQLAlchemy writes it.")
@click.option("--since", default="7d", show_default=True, help="30m, 24h, 7d, or an ISO time.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Lines of a list at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")
def report_conflicts(url: str, since: str, count: int, as_json: bool) -> None:
    """List the classes, rows and columns with the most conflicts, from the conflict log."""
    with exit_codes("conflicts"), open_engine(url) as engine:
        begin = _begin(since)
        if not inspect(engine).has_table(log.name):
            end(
                "conflicts",
                1,
                f"there is no table {log.name}, so no conflict is logged here. Create it in a"
                ' migration with op.create_optilock_tables("conflicts"), and call'
                " conflict_log.instrument(engine) in the application.",
            )
        total, found = _summary(engine, begin)
    top = {name: counted.most_common(count) for name, counted in found.items()}
    if as_json:
        lists = {name: [{"name": n, "conflicts": c} for n, c in some] for name, some in top.items()}
        print(json.dumps({"since": begin.isoformat(), "conflicts": total, **lists}, indent=2))
    elif not total:
        print(f"There is no conflict since {begin:%Y-%m-%d %H:%M} UTC.")
    else:
        _print(total, begin, top)


def _begin(since: str) -> datetime:
    """Return the moment that ``--since`` means, in UTC.

    Raises:
        ConfigurationError: it means none.
    """
    try:
        if found := re.fullmatch(r"([0-9]+)([mhd])", since):
            return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
        moment = datetime.fromisoformat(since)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"--since={since} is no time: write 30m, 24h, 7d, or 2026-01-31T12:00 in UTC."
        ) from None


def _summary(engine: Engine, begin: datetime) -> tuple[int, dict[str, Counter[str]]]:
    """Return how many conflicts there are, and how many of each class, row and so on."""
    found: dict[str, Counter[str]] = {name: Counter() for name in _HEADS}
    total, c = 0, log.c
    query = select(c.model, c.identity, c.conflicting, c.outcome, c.resolver)
    with engine.connect() as connection:
        options = {"yield_per": 1000}
        rows = connection.execute(query.where(c.occurred_at >= begin), execution_options=options)
        for model, identity, columns, outcome, resolver in rows:
            total += 1
            found["classes"][model] += 1
            found["rows"][f"{model} {_key(identity)}"] += 1
            found["columns"].update(f"{model}.{name}" for name in columns)
            found["outcomes"][f"{outcome} by {resolver}" if resolver else outcome] += 1
    return total, found


def _key(identity: str) -> str:
    """Return a key of one column without the brackets of its list."""
    return identity[1:-1] if identity.startswith("[") and identity.endswith("]") else identity


def _print(total: int, begin: datetime, top: dict[str, list[tuple[str, Any]]]) -> None:
    console = Console()
    if not console.is_terminal:  # a program reads it: no name is broken into lines
        console = Console(width=100_000)
    console.print(Text(f"{total:,} conflicts since {begin:%Y-%m-%d %H:%M} UTC"))
    for name, some in top.items():
        table = Table(box=None, pad_edge=False)
        table.add_column(_HEADS[name], overflow="fold")
        table.add_column("conflicts", justify="right")
        for one, conflicts in some:
            table.add_row(Text(_visible(one)), f"{conflicts:,}")
        if some:
            console.print("", table, sep="\n")


def _visible(text: str) -> str:
    """Return it with escapes for characters that would move the cursor or cannot be seen."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
