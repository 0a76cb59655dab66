"""The text of docs/reference/not-protected.md, and the outcomes that a written page has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.not_protected.outcomes import COLUMNS, SILENT, Outcomes
from tests.not_protected.ways import WAYS

__all__ = ["PAGE", "TITLES", "page_of", "written"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "not-protected.md"
TITLES = {"sqlite-wal": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
_TEST = "../../tests/not_protected/test_not_protected.py"
_NAME = "test_each_way_to_write_ends_as_the_page_says"
_CELL = re.compile(r"\*{0,2}\[(\w+)\]\[[\w-]+\]\*{0,2}")

_HEAD = """\
# What is not protected

This page answers which ways to write a row can overwrite a change unseen, and what makes them
safe. `python -m tests.not_protected` tries every way on the real databases and writes the page.
Do not edit it. Tests compare each cell with a new run (`python -m pytest tests/not_protected`).

Each cell is the worse outcome of two stories. In the first one an author has read a row, another
program changes it and moves its version, and the author writes in this way. In the second one a
reader has read the row, it is written in this way, and the reader writes what was read. For an
UPDATE or DELETE by the program the WHERE names the key alone.

* **protected**: the write, or that of the reader, is a conflict (`ConcurrencyError`,
  `StaleDataError`), and no change is lost.
* **refused**: an error comes before the row is changed, from optilock or from the trigger.
* **warned**: the change is lost, and the program is warned.
* **silent**: the change is lost, and there is no sign of it.

| column | program |
|---|---|
| plain session | classes with a version (`Versioned`), in sessions of SQLAlchemy |
| watched | the same, with `watch(sessions)` or in a [unit of work](../how-to/sessions/units.md) |
| strict | `watch(sessions, strict=True)`: see \
[sessions](../how-to/sessions/sessions.md#strict-sessions) |
| strict, guard trigger | and `__version_guard__ = "reject"`: see \
[migrations](../how-to/operate/migrations.md) |

With `guard_statements(engine, "forbid")` the statements and the SQL text of all sessions of an
engine are [refused](../how-to/conflicts/statements.md#find-code-that-goes-around-the-version), \
those
of plain ones too.
"""

_TAIL = """\
## What the tables leave out

* A form without the version, whose values are set on a row that is read when it is saved, is a
  flush of values that its author may not have seen, and looks like any other.
  `require_conditions=True` of a [unit](../how-to/sessions/units.md) refuses it; \
a form [with a tag](../how-to/web/forms.md)
  compares it.
* A statement that moves the version by itself (`version = version + 1`) is taken at its word, by
  the trigger as well.
* A DELETE by another program. Those that have read the row get a conflict; what the DELETE
  itself has not seen is gone.
* MariaDB fires no trigger for what a foreign key does by itself (`ON DELETE SET NULL`,
  `ON UPDATE CASCADE`), so a strict session refuses the DELETE, or the new key, of the row that it
  refers to. Another program's DELETE of that row is not seen: `optilock check` finds such keys
  (`silent-cascade`).
* Rows that were not there to be read: see [guarantees](guarantees.md#what-the-tables-leave-out).
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
        raise ValueError("the page has other tables: run python -m tests.not_protected")
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
            test = f"tests/not_protected/test_not_protected.py::{_NAME}[{name}-{number}]"
            yield f'[{name}-{number}]: {_TEST} "{test}"'
