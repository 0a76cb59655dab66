"""The pytest plugin that SQLAlchemy's tests run with: watch every session, and count.

It is loaded into SQLAlchemy's test run with ``-p``, and there into every worker of pytest-xdist.
At the end it writes what happened, as JSON, to the file that ``OPTILOCK_SUITE_REPORT`` names.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from checks.sqlalchemy_suite.counting import count_into

#: SQLAlchemy names a class after the database that it runs on: ``VersioningTest_sqlite+pysqlite``…
_ON_DATABASE = re.compile(r"_(?:sqlite|postgresql)\+[a-z0-9]+(?:_[0-9]+)*(?=::|$)")

counts: Counter[str] = Counter()
passed: list[str] = []
failed: dict[str, str] = {}
skipped: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch every session there will be."""
    from sqlalchemy.dialects.postgresql import provision
    from sqlalchemy.orm import Session

    from optilock import watch

    watch(Session)
    count_into(counts)
    # citext and hstore, which test/orm does not use and the server in a wheel does not have.
    provision._extensions.clear()  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Tests of events take away all listeners of sessions and mappers: put ours back."""
    _listen_again()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _listen_again()


def _listen_again() -> None:
    from sqlalchemy import event
    from sqlalchemy.orm import Mapper, Session

    from optilock._watched.guard.methods import MAPPER_LISTENERS
    from optilock._watched.session.order import _FIRST, _LISTENERS, _in_order, _of_classes

    ours = {name: listener for name, listener in _LISTENERS.items() if _in_order[name]}
    for name, listener in {**_of_classes, **ours}.items():
        if not event.contains(Session, name, listener):
            event.listen(Session, name, listener, propagate=True, insert=name in _FIRST)
    for name, listener in MAPPER_LISTENERS.items():
        if not event.contains(Mapper, name, listener):
            event.listen(Mapper, name, listener)


def name_of(nodeid: str) -> str:
    """The test's name without the database that it ran on."""
    return _ON_DATABASE.sub("", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = name_of(report.nodeid)
    if report.failed:
        failed[name] = f"{failed.get(name, '')}{report.longreprtext}\n"
    elif report.when == "call" and report.passed:
        passed.append(name)
    elif report.skipped:
        skipped.append(name)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        failed[report.nodeid] = report.longreprtext


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    counts.update(getattr(node, "workeroutput", {}).get("optilock", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workeroutput", None)
    if worker is not None:
        worker["optilock"] = dict(counts)


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    report = {"passed": passed, "failed": failed, "skipped": len(skipped), "counts": dict(counts)}
    Path(os.environ["OPTILOCK_SUITE_REPORT"]).write_text(json.dumps(report))
