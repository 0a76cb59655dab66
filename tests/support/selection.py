"""Which tests run: without more words the quick ones, with ``--full`` all there are.

A test runs on the engines that it is about (``@pytest.mark.engines``, ``@pytest.mark.needs``).
Without ``--full`` four things are left out, on every machine the same:

* what is marked ``@pytest.mark.full``, as the tests of :mod:`tests.deployments` are, and the other
  modes of an engine by ``@pytest.mark.modes(full=True)``; and the engines that
  ``@pytest.mark.usually`` does not name, unless the test is about none that it names;
* of a test with parameters beside the engine: each value runs on the first engine that has it
  (SQLite, as a rule), and the last one on each of the others;
* of a test with three or more parameters, the engine among them, what shows no new *pair* of
  values: two kinds that go wrong together are met once, every combination of three waits for the
  full run;
* of what a test tries again and again for chance to find it (random histories, cancelled tasks)
  most: such a test asks for the option itself.

What is named by its id (``tests/unit/test_merge.py::test_...``) runs with all of its parameters and
modes; how often it tries again depends on the option alone.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from operator import itemgetter

import pytest

from tests import deployments
from tests.engines import ASYNC, CAPABILITIES, missing

__all__ = ["cannot_run", "covering", "quick", "shown_before", "suits"]

Row = Sequence[Hashable]
#: The number of a parameter, and a value of it.
Place = tuple[int, Hashable]
Pair = tuple[Place, Place]


def suits(item: pytest.Item) -> bool:
    """Is the test about the engine that it would run on, and can that do what it needs?"""
    engine = _engine(item)
    if engine is None:
        return True
    if not _is_about(item, engine):
        return False
    can = CAPABILITIES[engine if engine in CAPABILITIES else ASYNC[engine][0]]
    return all(can.issuperset(needed.args) for needed in _marks(item, "needs"))


def cannot_run(item: pytest.Item) -> str | None:
    """Why not on this machine."""
    engine = _engine(item)
    if engine is None:
        return deployments.missing(item)
    return missing(engine if engine in CAPABILITIES else ASYNC[engine][0])


def quick(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those of the default run."""
    tests: dict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full") is None and _is_usual(item):
            tests[getattr(item, "originalname", item), item.parent].append(item)
    return {item for test in tests.values() for item in _pairs_shown(test)}


def _is_usual(item: pytest.Item) -> bool:
    mark, engine = item.get_closest_marker("usually"), _engine(item)
    if mark is None or engine is None:
        return mark is None
    named = [name for name in mark.args if _is_about(item, name)]
    return not named or engine in named


def _is_about(item: pytest.Item, engine: str) -> bool:
    return all(engine.startswith(about.args) for about in _marks(item, "engines"))


def covering(
    rows: Sequence[Row], late: Callable[[int], bool], spare: Collection[Pair] = ()
) -> list[int]:
    """The numbers of rows that show every pair of values of any two columns, but for ``spare``.

    Rows that are ``late`` are taken for what no other row shows.
    """
    pairs = [{*itertools.combinations(enumerate(row), 2)}.difference(spare) for row in rows]
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


def shown_before(rows: Sequence[Row]) -> set[Pair]:
    """The pairs of an engine, each row's first value, and a value that an engine before it shows.

    But for the last one of each parameter, so that every engine has one.
    """
    first: dict[Hashable, Hashable] = {}
    others: dict[Hashable, dict[Place, None]] = defaultdict(dict)
    for engine, *values in rows:
        for place in enumerate(values, 1):
            if first.setdefault(place, engine) != engine:
                others[engine][place] = None
    found = set()
    for engine, places in others.items():
        for _, column in itertools.groupby(sorted(places, key=itemgetter(0)), itemgetter(0)):
            found |= {((0, engine), place) for place in [*column][:-1]}
    return found


def _pairs_shown(test: list[pytest.Item]) -> list[pytest.Item]:
    rows = [_row(item) for item in test]
    if len(rows[0]) < 2:
        return test
    spare = shown_before(rows)
    if len(rows[0]) == 2:
        pairs = [((0, engine), (1, value)) for engine, value in rows]
        return [item for item, pair in zip(test, pairs, strict=True) if pair not in spare]
    late = [str(engine).startswith("mariadb") for engine, *_ in rows]
    return [test[number] for number in covering(rows, late.__getitem__, spare)]


def _row(item: pytest.Item) -> Row:
    """The engine, and what else the test is run with: of each ``parametrize`` and each fixture."""
    called = getattr(item, "callspec", None)
    if called is None:
        return (None,)
    together = [_names(mark.args[0]) for mark in item.iter_markers("parametrize")]
    named = {name for names in together for name in names}
    alone = [(name,) for name in called.params if name not in named]
    # The same object wherever the same value is meant; it may equal another, or be unhashable.
    values = [
        tuple(id(called.params[name]) for name in names)
        for names in (*together, *alone)
        if names not in _OF_THE_ENGINE
    ]
    return (_engine(item), *values)


def _names(arguments: str | Sequence[str]) -> Sequence[str]:
    if isinstance(arguments, str):
        return [name.strip() for name in arguments.split(",")]
    return arguments


def _engine(item: pytest.Item) -> str | None:
    called = getattr(item, "callspec", None)
    values = called.params if called else {}
    given = (values.get(name) for (name,) in _OF_THE_ENGINE)
    return next((name for name in given if isinstance(name, str) and name in _ENGINES), None)


_ENGINES = {*CAPABILITIES, *ASYNC}
_OF_THE_ENGINE = (("database",), ("async_database",))


def _marks(item: pytest.Item, name: str) -> list[pytest.Mark]:
    """The mark of the test or, without one, of its class or module, and those of its parameters."""
    closest = item.get_closest_marker(name)
    own = [mark for mark in item.callspec.marks if mark.name == name]  # type: ignore[attr-defined]
    return [closest, *own] if closest else own
