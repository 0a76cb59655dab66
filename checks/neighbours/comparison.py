"""What two runs of the same tests mean: outcomes in, sentences out."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MODES", "Difference", "Run", "compare", "differences"]

#: Each is compared with the run without optilock.
MODES = ("watched", "versioned")
_LIST = Path(__file__).with_name("differences.toml")


@dataclass(frozen=True)
class Run:
    """One run of a neighbour's tests."""

    outcomes: Mapping[str, str] = field(default_factory=dict)
    #: Test -> traceback.
    tracebacks: Mapping[str, str] = field(default_factory=dict)
    #: ``flushes``, and what :mod:`checks.sqlalchemy_suite.counting` counts.
    counts: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        found = Counter(self.outcomes.values())
        named = [f"{found[one]} {one}" for one in ("passed", "failed", "skipped") if found[one]]
        return ", ".join(named)


@dataclass(frozen=True)
class Difference:
    """A test that may have another outcome than without optilock."""

    neighbour: str
    mode: str
    test: str
    reason: str

    def covers(self, test: str) -> bool:
        """Is this the test, with any of its parameters?"""
        return test == self.test or test.startswith(f"{self.test}[")


def differences() -> list[Difference]:
    """All tests that may differ."""
    return [Difference(**one) for one in tomllib.loads(_LIST.read_text()).get("differs", [])]


def compare(plain: Run, other: Run, known: list[Difference], *, updates: bool) -> list[str]:
    """What is wrong with the other run, in sentences; nothing if it is as it should be."""
    tests = plain.outcomes.keys() | other.outcomes.keys()
    differ = {one for one in tests if plain.outcomes.get(one) != other.outcomes.get(one)}
    wrong = [
        f"{test}: {plain.outcomes.get(test)} without optilock, {other.outcomes.get(test)} with it"
        for test in sorted(differ)
        if not any(one.covers(test) for one in known)
    ]
    wrong += [
        f"{one.test} is on the list of tests that differ, and does not: take it off"
        for one in known
        if not any(one.covers(test) for test in differ)
    ]
    if not other.counts.get("flushes"):
        wrong.append("no session was flushed: the tests have shown nothing about optilock")
    if updates and not other.counts.get("statements"):
        wrong.append("no guarded statement was sent: the tests have shown nothing about versions")
    passed_by = other.counts.get("wanted", 0) - other.counts.get("guarded", 0)
    if passed_by:
        wrong.append(f"{passed_by} rows with a version passed the guard by")
    return wrong
