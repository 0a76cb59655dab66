"""Which of a test's executions run: the quick ones, with ``--full`` pairs, with ``--product`` all.

A test runs on the engines that it is about (``@pytest.mark.engines``, ``@pytest.mark.needs``).
pytest would run it once for each combination of an engine and its parameters, and what repeats
finds little:

* Without an option each value of each parameter runs once. The engine changes from one to the
  next, and a test without parameters runs on one engine; a hash of its name says which, among
  those that this machine has. What is marked ``@pytest.mark.full`` does not run, as the tests of
  :mod:`checks.deployments` and the other modes of an engine by ``@pytest.mark.modes(full=True)``;
  nor do the engines that ``@pytest.mark.usually`` does not name, unless the test is about none
  that it names. Of what ``@pytest.mark.tenth`` marks, because it is dear, a tenth of that runs.
* With ``--full`` each *pair* of two values runs, too, the engine among them: two kinds that go
  wrong together are met.
* With ``--product`` everything runs.

What chance has to find (random histories, cancelled tasks) is tried more often with the options:
such a test asks for ``--full`` itself. What is named by its id
(``tests/unit/test_merge.py::test_...``) runs with all of its parameters and modes; how often it
tries again depends on the options alone.

``--write-ids=FILE`` notes what was run, and ``--not-in=FILE`` leaves it out: so that a second run
in the same environment only adds to the first one. ``--part=1/2`` runs every second test function,
and ``--functions=FILE`` those that the file names.
"""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from checks import deployments
from tests.engines import ASYNC, CAPABILITIES, missing

__all__ = [
    "Execution",
    "cannot_run",
    "chosen",
    "covering",
    "executions",
    "in_part",
    "repeats",
    "suits",
]

Row = Sequence[Hashable]
#: The number of a parameter, and a value of it.
Place = tuple[int, Hashable]


@dataclass(frozen=True, eq=False)
class Execution:
    """A test function with one of its combinations of parameters; with none where it has none."""

    test: pytest.Item
    #: pytest's ``CallSpec``.
    parameters: Any = None

    @property
    def engine(self) -> str | None:
        values = self.parameters.params if self.parameters else {}
        given = (values.get(name) for (name,) in _OF_THE_ENGINE)
        return next((name for name in given if isinstance(name, str) and name in _ENGINES), None)

    @property
    def values(self) -> Row:
        """What it is run with beside the engine: of each ``parametrize`` and each fixture."""
        if self.parameters is None:
            return ()
        params = self.parameters.params
        together = [_names(mark.args[0]) for mark in self.test.iter_markers("parametrize")]
        named = {name for names in together for name in names}
        alone = [(name,) for name in params if name not in named]
        # The same object wherever the same value is meant; it may equal another, or be unhashable.
        return [
            tuple(id(params[name]) for name in names)
            for names in (*together, *alone)
            if names not in _OF_THE_ENGINE
        ]

    @property
    def is_full(self) -> bool:
        """Does it wait for ``--full``?"""
        marked = any(self.marks("full")) or deployments.of(self.test) is not None
        return marked or not self._is_usual()

    def marks(self, name: str) -> Iterator[pytest.Mark]:
        """The test's or, without one, its class's or module's, and those of its parameters."""
        closest = self.test.get_closest_marker(name)
        if closest is not None:
            yield closest
        for mark in self.parameters.marks if self.parameters else ():
            if mark.name == name:
                yield mark

    def is_about(self, engine: str) -> bool:
        return all(engine.startswith(about.args) for about in self.marks("engines"))

    def _is_usual(self) -> bool:
        named = [name for mark in self.marks("usually") for name in mark.args]
        about = [name for name in named if self.is_about(name)]
        return self.engine is None or not about or self.engine in about


def executions(metafunc: pytest.Metafunc) -> list[Execution]:
    """Those that pytest would make of a test function."""
    return [Execution(metafunc.definition, one) for one in metafunc._calls]


def suits(one: Execution) -> bool:
    """Is the test about the engine that it would run on, and can that do what it needs?"""
    engine = one.engine
    if engine is None:
        return True
    can = CAPABILITIES[_sync(engine)]
    about = one.is_about(engine)
    return about and all(can.issuperset(needed.args) for needed in one.marks("needs"))


def cannot_run(one: Execution) -> str | None:
    """Why not on this machine."""
    engine = one.engine
    return deployments.missing(one.test) if engine is None else missing(_sync(engine))


def chosen(test: list[Execution], *, full: bool) -> list[Execution]:
    """Those of a test's executions that run, of the ones that suit it."""
    usual = [one for one in test if not one.is_full]
    quick = _each_value_once([one for one in usual if not cannot_run(one)] or usual)
    if not full:
        return quick
    rows = [(one.engine, *one.values) for one in test]
    first = [number for number, one in enumerate(test) if one in quick]
    found = covering(rows, lambda number: bool(cannot_run(test[number])), first=first)
    return [test[number] for number in found]


def _each_value_once(test: list[Execution]) -> list[Execution]:
    """And the engines in turn, from one that the test's name chooses."""
    by_values: dict[Row, list[Execution]] = defaultdict(list)
    for one in test:
        by_values[tuple(one.values)].append(one)
    groups = [*by_values.values()]
    turn = zlib.crc32(test[0].test.nodeid.encode()) if test else 0
    numbers = covering([*by_values], lambda number: False, together=1)
    if test and any(test[0].marks("tenth")):
        numbers = numbers[turn % 10 :: 10] or numbers[:1]
    ways = [groups[number] for number in numbers]
    return [engines[(turn + place) % len(engines)] for place, engines in enumerate(ways)]


def in_part(function: str, part: str | None) -> bool:
    """Return whether the test function is in this part of all, such as ``2/3``, by its name."""
    number, _, count = (part or "1/1").partition("/")
    return zlib.crc32(function.encode()) % int(count) == int(number) - 1


def repeats(one: Execution) -> bool:
    """May it try more with ``--full``, so that a run without does not stand for one with it?"""
    return "pytestconfig" in getattr(one.test, "fixturenames", ())


def covering(
    rows: Sequence[Row],
    late: Callable[[int], bool],
    *,
    together: int = 2,
    first: Sequence[int] = (),
) -> list[int]:
    """The numbers of rows that show all values of any ``together`` columns; one row at least.

    The rows ``first`` are among them. Rows that are ``late`` are taken for what no other row shows.
    """
    if not rows:
        return []
    width = min(together, len(rows[0]))
    shown = [{*itertools.combinations(enumerate(row), width)} for row in rows]
    missing = set().union(*shown).difference(*(shown[number] for number in first))
    found = [*first]
    for group in (False, True):
        numbers = [number for number in range(len(rows)) if late(number) is group]
        while numbers:
            best = max(numbers, key=lambda number: len(shown[number] & missing))
            if not shown[best] & missing:
                break
            found.append(best)
            missing -= shown[best]
    return found


def _names(arguments: str | Sequence[str]) -> Sequence[str]:
    if isinstance(arguments, str):
        return tuple(name.strip() for name in arguments.split(","))
    return tuple(arguments)


def _sync(engine: str) -> str:
    return engine if engine in CAPABILITIES else ASYNC[engine][0]


_ENGINES = {*CAPABILITIES, *ASYNC}
_OF_THE_ENGINE = (("database",), ("async_database",))
