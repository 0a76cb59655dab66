"""What a run means: numbers in, sentences out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from checks.sqlalchemy_suite.known import covers

__all__ = ["Run", "judge"]


@dataclass(frozen=True)
class Run:
    """One run of SQLAlchemy's tests on one database."""

    passed: tuple[str, ...] = ()
    #: Test -> traceback.
    failed: Mapping[str, str] = field(default_factory=dict)
    skipped: int = 0
    #: See :mod:`checks.sqlalchemy_suite.counting`.
    statements: int = 0
    wanted: int = 0
    guarded: int = 0


def judge(run: Run, known: Collection[str]) -> list[str]:
    """What is wrong with the run, in sentences; nothing if it is as it should be."""
    wrong = [
        f"{test} fails, and is not on the list"
        for test in run.failed
        if not any(covers(listed, test) for listed in known)
    ]
    wrong += [
        f"{test} is on the list of tests that fail, and passes: take it off"
        for test in run.passed
        if any(covers(listed, test) for listed in known)
    ]
    if not run.passed:
        wrong.append("no test ran")
    if not run.statements:
        wrong.append("no guarded statement was sent: the tests have shown nothing about optilock")
    if run.guarded != run.wanted:
        wrong.append(f"{run.wanted - run.guarded} rows with a version passed the guard by")
    return wrong
