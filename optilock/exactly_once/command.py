"""The command ``optilock purge``. Exit codes: 0 done, 1 the database failed, 2 bad input."""

from __future__ import annotations

from datetime import timedelta

import rich_click as click

from optilock.dialects.commands import exit_codes, open_engine
from optilock.exactly_once.retention import purge as delete_old


@click.command()
@click.option("--url", required=True, help="The database, as SQLAlchemy writes it.")
@click.option("--tokens", default=24.0, show_default=True, help="Hours to keep random tokens.")
@click.option("--keys", default=30.0, show_default=True, help="Days to keep keys.")
@click.option("--batch", default=1000, show_default=True, help="Rows a transaction.")
@click.option("--batches", type=int, help="Transactions at most, for each kind.")
def purge(url: str, tokens: float, keys: float, batch: int, batches: int | None) -> None:
    """Delete old commit tokens and keys of units with exactly_once=.

    After that, a call with a deleted key runs again.
    """
    with exit_codes("purge"), open_engine(url) as engine:
        deleted = delete_old(
            engine, timedelta(hours=tokens), timedelta(days=keys), batch=batch, batches=batches
        )
    print(f"{deleted:,} old tokens and keys deleted.")
