"""The text of docs/reference/guarantees.md, and the outcomes that a written page has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from checks.guarantees.orders import OF_TWO, pair_of
from checks.guarantees.outcomes import POSSIBLE, PUBLISHED, Outcomes
from checks.guarantees.rows import LEVELS, PROTECTIONS, Level
from checks.guarantees.scenarios import HERMITAGE, SCENARIOS
from checks.guarantees.stepping import Scenario
from checks.guarantees.twice import REQUESTS

__all__ = ["PAGE", "TITLES", "Page", "page_of", "written"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "guarantees.md"
TITLES = {"postgresql": "PostgreSQL", "mariadb": "MariaDB", "sqlite-wal": "SQLite"}
_TEST = "../../checks/guarantees/test_guarantees.py"
_SCENARIO = "test_a_scenario_ends_as_the_page_says"
_ORDERS = "test_every_order_of_two_transactions_ends_as_the_page_says"
_REQUEST = "test_a_request_that_is_sent_twice_ends_as_the_page_says"
_SPECS = "https://github.com/postgres/postgres/blob/master/src/test/isolation/specs"
_CELL = re.compile(r"\*{0,2}\[([^\]]*)\]\[[\w-]+\]\*{0,2}")

_HEAD = f"""\
# Guarantees by engine and level

After this page you know which anomalies are possible in your program, on its database and at its
isolation level, and how to prevent them.

Each table has one isolation level. Its columns are the program's additions to the level:

| column | program |
|---|---|
| nothing | models without a version |
| version | models with a version (`Versioned`), in a unit of work |
| `verify` | the same, and `verify(obj)` for each object that it reads |
| `verify_reads` | the same, in `unit_of_work(..., verify_reads=True)` |

Where the level is an engine's own, the first column is SQLAlchemy without optilock.
`repeatable_read` and `serializable` are [optilock's units](../explanation/isolation.md), \
which set the level.

A cell is the outcome of one run, and links to its test. The title of the link is the name for
`python -m pytest`.

* **possible**: the transactions committed, and the anomaly happened.
* **prevented**: the anomaly did not happen, and no transaction failed. Some had to wait.
* An error, with the code of the database if the database decided: a transaction was refused. A
  retry ([`unit_of_work`](../how-to/sessions/retry.md)) runs it again.
* **Bold**: the anomaly is possible with the level alone, and the column's addition prevents it.

The first {len(HERMITAGE)} rows are the scenarios of [Hermitage](https://github.com/ept/hermitage)
(© 2014 Martin Kleppmann, [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/)). The order of
the steps and the values are Hermitage's. Its SQL became objects of SQLAlchemy that are read and
changed. Rows with the name of a spec re-express one of
[PostgreSQL's isolation specs]({_SPECS})
(PostgreSQL License). The last row is another form of P4. `checks/guarantees/scenarios.py` has all
of them.
"""

_EVERY = """\
## Every order of two transactions

A cell above is one order of the steps. `optilock.testing.explore` runs *every* order of two
transactions that can differ, at the engine's own level. Each line of this table is a pair of units
with the same steps as the two transactions of the scenario. **possible** is a counterexample: the
anomaly happened in some order. **prevented** is a proof for these units and rows: it happened in
no order.

The words of a cell are for the columns nothing, version and `verify`. The table omits scenarios
of three transactions.

"""

_EVERY_TAIL = """\
Two lines are **possible** here with `verify`, though their one order above ends in an error: the
project of a former manager, and the child of a deleted row. In another order the new row comes
after the query for it, and no version of a row sees that ([below](#what-the-tables-leave-out)).
"""

_TWICE = """\
## Double apply

A client sends a request again, because the answer was lost after COMMIT; or the connection was
lost inside COMMIT, and the server runs its work again. Isolation levels and versions do not help:
the second run reads the values that the first one has stored. A version that the *client* has seen
helps, and so does [an `Idempotency-Key`](../how-to/web/idempotent-requests.md), or
[`exactly_once=`](../how-to/sessions/exactly-once.md).

"""

_TAIL = """\
## What the tables leave out

* Phantoms (PMP, G2, a room that is booked twice) are rows that did not exist at the read, so no
  version of a row prevents them. Use `serializable`, a unique key, or one row that represents the
  set: the root of an [aggregate](../how-to/models/aggregates.md), or a
  [lease](../how-to/long-work/leases.md).
* `verify` and `verify_reads` lock the rows when they compare them, before COMMIT. If each of two
  transactions has written a row that the other one has read, they deadlock, and the database
  refuses one.
* SQLite runs with a write-ahead log here. With a rollback journal it prevents the same anomalies,
  sometimes with another error.
* On a Galera cluster, levels hold within one node: see
  [deployments](../how-to/operate/galera.md).
* [Isolation levels](../explanation/isolation.md) shows the statements of each level, and the
  error of a conflict.

`python -m checks.guarantees` runs every scenario on the databases and writes this page. Tests
compare each cell with a new run.
"""


@dataclass(frozen=True)
class Page:
    """All outcomes by engine: of each scenario, of the requests, and of each pair's orders."""

    scenarios: Mapping[tuple[str, str], Outcomes]
    requests: Mapping[str, tuple[str, ...]]
    #: Of each scenario of two transactions in every order, by engine.
    orders: Mapping[tuple[str, str], tuple[str, ...]]


def page_of(page: Page) -> str:
    """Return the text of the page."""
    every = f"{_EVERY}{_orders(page)}\n{_EVERY_TAIL}"
    parts = [
        _HEAD,
        *_engines(page),
        every,
        _TWICE + _requests(page),
        _TAIL,
        "\n".join(_links()) + "\n",
    ]
    return "\n".join(parts)


def written(text: str) -> Page:
    """Return the outcomes in the text of a page.

    Raises ValueError where the page has other tables than it would be written with today.
    """
    cells = iter(_CELL.findall(text))
    scenarios: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    try:
        for name, levels in LEVELS.items():
            for _ in levels:
                for key in SCENARIOS:
                    row = tuple(next(cells) for _ in PROTECTIONS)
                    scenarios.setdefault((name, key), []).append(row)
        orders = {(name, key): tuple(next(cells).split(", ")) for key in OF_TWO for name in TITLES}
        rows = [[next(cells) for _ in TITLES] for _ in REQUESTS]
    except RuntimeError as error:
        raise ValueError("the page has too few cells: run python -m checks.guarantees") from error
    return Page(
        {key: tuple(rows) for key, rows in scenarios.items()},
        dict(zip(TITLES, zip(*rows, strict=True), strict=True)),
        orders,
    )


def _engines(page: Page) -> Iterator[str]:
    for name, levels in LEVELS.items():
        yield f"## {TITLES[name]}\n"
        for number, level in enumerate(levels):
            yield f"### {TITLES[name]}: {level.title}\n"
            yield _table(page, name, number)
            yield _compared(page, name, number, level)


def _table(page: Page, name: str, number: int) -> str:
    lines = [
        f"| anomaly | {' | '.join(one.title for one in PROTECTIONS)} |",
        f"|---|{'---|' * len(PROTECTIONS)}",
    ]
    for key, scenario in SCENARIOS.items():
        row = page.scenarios[name, key][number]
        cells = [_cell(outcome, f"{name}-{key}", bold=_is_better(outcome, row)) for outcome in row]
        lines.append(f"| {_title(scenario)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _title(scenario: Scenario) -> str:
    if scenario.spec is None:
        return f"{scenario.title} ({scenario.key})"
    return f"{scenario.title} ([{scenario.spec}])"


def _is_better(outcome: str, row: tuple[str, ...]) -> bool:
    return row[0] == POSSIBLE != outcome


def _cell(outcome: str, link: str, *, bold: bool) -> str:
    marks = "**" if bold else ""
    return f"{marks}[{outcome}][{link}]{marks}"


def _compared(page: Page, name: str, number: int, level: Level) -> str:
    """The difference from what Hermitage has published for the level."""
    if level.published is None:
        return "Hermitage has no results of SQLite.\n"
    published = PUBLISHED[name, level.published]
    hermitage = [one.key for one in HERMITAGE]
    lines = []
    for place, protection in enumerate(PROTECTIONS):
        found = {k for k in hermitage if page.scenarios[name, k][number][place] == POSSIBLE}
        better = ", ".join(key for key in hermitage if key in published - found)
        lines.append(f"* {protection.title}: {f'prevents {better}' if better else 'the same'}.")
    head = f'Compared with Hermitage\'s results for "{level.published}"'
    if not any("prevents" in line for line in lines):
        return f"{head}, every column is the same.\n"
    return "\n".join([f"{head}{level.note}:\n", *lines]) + "\n"


def _orders(page: Page) -> str:
    lines = [
        f"| anomaly | pair of units | {' | '.join(TITLES.values())} |",
        f"|---|---|{'---|' * len(TITLES)}",
    ]
    for key in OF_TWO:
        scenario = SCENARIOS[key]
        cells = [
            _cell(", ".join(page.orders[name, key]), f"{name}-{key}-orders", bold=False)
            for name in TITLES
        ]
        lines.append(f"| {_title(scenario)} | {pair_of(scenario)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _requests(page: Page) -> str:
    lines = [
        f"| request | the server uses | {' | '.join(TITLES.values())} |",
        f"|---|---|{'---|' * len(TITLES)}",
    ]
    for number, request in enumerate(REQUESTS.values()):
        outcomes = [page.requests[name][number] for name in TITLES]
        cells = [
            _cell(outcome, f"{name}-twice", bold=outcome != POSSIBLE)
            for name, outcome in zip(TITLES, outcomes, strict=True)
        ]
        lines.append(f"| {request.title} | {request.protection} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _links() -> Iterator[str]:
    for name in TITLES:
        for key in SCENARIOS:
            yield _link(f"{name}-{key}", f"{_SCENARIO}[{name}-{key}]")
        for key in OF_TWO:
            yield _link(f"{name}-{key}-orders", f"{_ORDERS}[{name}-{key}]")
        yield _link(f"{name}-twice", f"{_REQUEST}[{name}]")
    for scenario in SCENARIOS.values():
        if scenario.spec is not None:
            yield f"[{scenario.spec}]: {_SPECS}/{scenario.spec}.spec"


def _link(label: str, test: str) -> str:
    return f'[{label}]: {_TEST} "checks/guarantees/test_guarantees.py::{test}"'
