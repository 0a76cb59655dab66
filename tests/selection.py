"""Which tests run: without more words the quick ones, with ``--full`` all there are.

A test runs on the engines that it is about (``@pytest.mark.engines``, ``@pytest.mark.needs``).
Without ``--full`` three things are left out, on every machine the same:

* what is marked ``@pytest.mark.full``, as the other modes of an engine are by
  ``@pytest.mark.modes(full=True)``;
* of a test with three or more parameters, the engine among them, what shows no new *pair* of
  values. Two kinds that go wrong together are met once on SQLite and PostgreSQL, and each kind once
  on MariaDB; every combination of three waits for the full run;
* of what a test tries again and again for chance to find it (random histories, cancelled tasks)
  most: such a test asks for the option itself.

What is named by its id (``tests/unit/test_merge.py::test_...``) runs with all of its parameters and
modes; how often it tries again depends on the option alone.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

import pytest

from tests.engines import ASYNC, CAPABILITIES

__all__ = ["covering", "quick", "suits"]

Row = Sequence[Hashable]


def suits(item: pytest.Item) -> bool:
    """Is the test about the engine that it would run on, and can that do what it needs?"""
    engine = _engine(item)
    if engine is None:
        return True
    for about in _marks(item, "engines"):
        if not engine.startswith(about.args):
            return False
    can = CAPABILITIES[engine if engine in CAPABILITIES else ASYNC[engine][0]]
    return all(can.issuperset(needed.args) for needed in _marks(item, "needs"))


def quick(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those of the default run."""
    tests: dict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full") is None:
            tests[getattr(item, "originalname", item), item.parent].append(item)
    return {item for test in tests.values() for item in _pairs_shown(test)}


def covering(rows: Sequence[Row], late: Callable[[int], bool]) -> list[int]:
    """The numbers of rows that show every pair of values of any two columns.

    Rows that are ``late`` are taken for what no other row shows.
    """
    pairs = [set(itertools.combinations(enumerate(row), 2)) for row in rows]
    missing = set().union(*pairs)
    chosen = []
    for group in (False, True):
        numbers = [number for number in range(len(rows)) if late(number) is group]
        while numbers:
            best = max(numbers, key=lambda number: len(pairs[number] & missing))
            if not pairs[best] & missing:
                break
            chosen.append(best)
            missing -= pairs[best]
    return chosen


def _pairs_shown(test: list[pytest.Item]) -> list[pytest.Item]:
    rows = [_row(item) for item in test]
    if len(rows[0]) < 3:
        return test
    chosen = covering(rows, late=lambda number: (_engine(test[number]) or "").startswith("mariadb"))
    return [test[number] for number in chosen]


def _row(item: pytest.Item) -> Row:
    """What the test is run with: a value for each ``parametrize``, and for each fixture's own."""
    called = getattr(item, "callspec", None)
    if called is None:
        return ()
    together = [_names(mark.args[0]) for mark in item.iter_markers("parametrize")]
    named = {name for names in together for name in names}
    alone = [(name,) for name in called.params if name not in named]
    # The same object wherever the same value is meant; it may equal another, or be unhashable.
    return [tuple(id(called.params[name]) for name in names) for names in (*together, *alone)]


def _names(arguments: str | Sequence[str]) -> Sequence[str]:
    if isinstance(arguments, str):
        return [name.strip() for name in arguments.split(",")]
    return arguments


def _engine(item: pytest.Item) -> str | None:
    called = getattr(item, "callspec", None)
    values = called.params if called else {}
    given = (values.get(name) for name in ("database", "async_database"))
    return next((name for name in given if isinstance(name, str) and name in _ENGINES), None)


_ENGINES = {*CAPABILITIES, *ASYNC}


def _marks(item: pytest.Item, name: str) -> list[pytest.Mark]:
    """The mark of the test or, without one, of its class or module, and those of its parameters."""
    closest = item.get_closest_marker(name)
    own = [mark for mark in item.callspec.marks if mark.name == name]  # type: ignore[attr-defined]
    return [closest, *own] if closest else own
