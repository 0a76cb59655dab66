"""The text of docs/reference/not-protected.md, and the outcomes that a written page has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from checks.not_protected.outcomes import COLUMNS, SILENT, Outcomes
from checks.not_protected.ways import WAYS

__all__ = ["PAGE", "TITLES", "page_of", "written"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "not-protected.md"
TITLES = {"sqlite-wal": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
_TEST = "../../checks/not_protected/test_not_protected.py"
_NAME = "test_each_way_to_write_ends_as_the_page_says"
_CELL = re.compile(r"\*{0,2}\[(\w+)\]\[[\w-]+\]\*{0,2}")

_HEAD = """\
# What is not protected

Find your way to write a row in the tables. **silent** means that a change can be lost without any
sign. A strict session refuses most of these ways, and a guard trigger the others.

Each cell is the worse outcome of two stories. In the first one an author reads a row, another
program changes it and moves its version, and the author then writes in this way. In the second
one a reader reads the row, another program writes it in this way, and the reader then writes its
older values. The WHERE of an UPDATE or DELETE by the program names only the key.

* **protected**: this write, or the reader's, is a conflict (`ConcurrencyError`,
  `StaleDataError`), and no change is lost.
* **refused**: an error comes before the row is changed, from optilock or from the trigger.
* **warned**: the change is lost, with a warning.
* **silent**: the change is lost without any sign.

| column | program |
|---|---|
| plain session | classes with a version (`Versioned`), in sessions of SQLAlchemy |
| watched | the same, with `watch(sessions)` or in a [unit of work](../how-to/sessions/units.md) |
| strict | `watch(sessions, strict=True)`: see \
[sessions](../how-to/sessions/sessions.md#strict-sessions) |
| strict, guard trigger | and `__version_guard__ = "reject"`: see \
[migrations](../how-to/operate/migrations.md) |

`guard_statements(engine, "forbid")` \
[refuses](../how-to/conflicts/statements.md#find-code-that-goes-around-the-version)
the statements and the SQL text of all sessions of an engine, including plain ones.

A unit that runs again writes no value over a change that its author has not seen: \
[`WouldOverwrite`](../how-to/sessions/retry.md#a-value-that-is-wanted-again). Its \
`update()` statements are not compared.
"""

_TAIL = """\
## What the tables leave out

* A form without the version may be saved onto a row that is read only then. The flush cannot show
  that the form's author has not seen that row. `require_conditions(session)` in a
  [unit](../how-to/sessions/conditions.md) refuses such a save. A form
  [with an ETag](../how-to/web/forms.md) compares the version.
* optilock trusts a statement that moves the version (`version = version + 1`), but no
  [given one](../how-to/conflicts/statements.md#versions-that-you-give). The trigger trusts both.
* A DELETE by another program. Later writes of readers are conflicts, but changes that the DELETE's
  author has not seen are lost.
* MariaDB fires no trigger for the actions of a foreign key (`ON DELETE SET NULL`,
  `ON UPDATE CASCADE`). So a strict session refuses the DELETE, or the new key, of the parent row.
  It cannot see another program's DELETE of that row. `optilock check` finds such foreign keys
  (`silent-cascade`).
* A write inside a CTE (PostgreSQL) is checked in strict sessions only. Elsewhere there is no
  warning, and a version that it gives is stored as it is.
* Row-level security of PostgreSQL may hide a row, which then looks deleted. Where it is active for
  the table, a conflict has `maybe_hidden`, and `store_wins` and `OnDelete.IGNORE_GONE` do not
  settle it. A mapped view does not show it.
* A transaction that the driver's own cursor has ended and begun again commits its
  [second half](../how-to/sessions/units.md#transactions-that-have-ended).
* Rows that did not exist at the read: see [guarantees](guarantees.md#what-the-tables-leave-out).

`python -m checks.not_protected` tries every way on the databases and writes this page. Tests
compare each cell with a new run.
"""


def page_of(found: Mapping[str, Outcomes]) -> str:
    """Return the text of the page."""
    tables = [_table(name, found[name]) for name in TITLES]
    links = "\n".join(_links()) + "\n"
    return "\n".join([_HEAD, *tables, _TAIL, links])


def written(text: str) -> dict[str, Outcomes]:
    """Return the outcomes in the text of a page; ``ValueError``: it has other tables than today."""
    cells = _CELL.findall(text)
    if len(cells) != len(TITLES) * len(WAYS) * len(COLUMNS):
        raise ValueError("the page has other tables: run python -m checks.not_protected")
    rest = iter(cells)
    return {name: {way: tuple(next(rest) for _ in COLUMNS) for way in WAYS} for name in TITLES}


def _table(name: str, found: Outcomes) -> str:
    lines = [
        f"## {TITLES[name]}\n",
        f"| way to write | {' | '.join(one.title for one in COLUMNS)} |",
        f"|---|{'---|' * len(COLUMNS)}",
    ]
    for number, (way, outcomes) in enumerate(found.items()):
        cells = [_cell(outcome, f"{name}-{number}") for outcome in outcomes]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(outcome: str, link: str) -> str:
    marks = "**" if outcome == SILENT else ""
    return f"{marks}[{outcome}][{link}]{marks}"


def _links() -> Iterator[str]:
    for name in TITLES:
        for number in range(len(WAYS)):
            test = f"checks/not_protected/test_not_protected.py::{_NAME}[{name}-{number}]"
            yield f'[{name}-{number}]: {_TEST} "{test}"'
