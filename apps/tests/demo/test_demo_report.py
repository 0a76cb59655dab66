"""The verdict, the figures and the table."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

from optilock_apps.demo.edits import Losses
from optilock_apps.demo.report import as_json, complaints, table, verdict
from optilock_apps.demo.run import Outcome, percentile
from rich.console import Console

NONE_LOST = Losses(0, 0, ())
PLAIN = Outcome(
    name="last writer wins",
    asked=100,
    committed=100,
    losses=Losses(60, 0, ()),
    conflicts=0,
    resolved=0,
    retries=0,
    seconds=0.5,
    latencies=(10.0, 20.0, 30.0),
    told=None,
)
GUARDED = replace(PLAIN, name="serializable, retry", losses=NONE_LOST, conflicts=9, retries=9)


def test_losses_under_last_writer_wins_and_none_elsewhere_is_what_the_demo_shows() -> None:
    assert complaints([PLAIN, GUARDED]) == []


def test_last_writer_wins_without_a_loss_shows_nothing() -> None:
    assert "never met" in complaints([replace(PLAIN, losses=NONE_LOST), GUARDED])[0]


def test_any_other_strategy_must_not_lose_double_damage_or_give_up_an_edit() -> None:
    bad = (
        replace(GUARDED, losses=Losses(1, 0, ())),
        replace(GUARDED, losses=Losses(0, 1, ())),
        replace(GUARDED, losses=Losses(0, 0, ("with",))),
        replace(GUARDED, committed=99),
    )
    assert [len(complaints([PLAIN, each])) for each in bad] == [1, 1, 1, 1]


def test_the_verdict_names_the_strategies_that_lost_edits() -> None:
    said = "last writer wins lost 60 of 100 committed edits; the others lost none."
    assert verdict([PLAIN, GUARDED]) == said
    assert verdict([GUARDED]) == "all strategies lost none."


def test_the_json_has_every_figure_of_every_strategy() -> None:
    first, second = json.loads(as_json([PLAIN, GUARDED]))["strategies"]
    assert first == {
        "name": "last writer wins",
        "asked": 100,
        "committed": 100,
        "lost": 60,
        "conflicts": 0,
        "resolved": 0,
        "retries": 0,
        "edits_per_second": 200.0,
        "p50_ms": 20.0,
        "p99_ms": 30.0,
    }
    assert second["conflicts"] == 9


def test_the_table_fits_a_terminal_of_80_columns_without_cutting_a_number() -> None:
    wide = replace(GUARDED, asked=640, committed=640, conflicts=1234, latencies=(1.0, 9999.0))
    console = Console(width=80, record=True, file=StringIO())
    console.print(table([PLAIN, wide]))
    text = console.export_text()
    assert "1234" in text
    assert "9999" in text
    assert "…" not in text
    assert "serializable, retry" in text  # on one line


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(each) for each in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([], 99)) == (50.0, 99.0, 0.0)
