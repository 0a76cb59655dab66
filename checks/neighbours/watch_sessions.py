"""The pytest plug-in that a neighbour's tests run with; it is no part of the package ``tests``.

That name is their own package's. ``OPTILOCK_NEIGHBOUR_MODE`` is ``plain``, ``watched``, or
``versioned``, where every declarative base is ``Versioned``, too. At the end the outcome of each
test is written, as JSON, to the file that ``OPTILOCK_NEIGHBOUR_REPORT`` names.
"""

from __future__ import annotations

import json
import os
import types
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

MODE = os.environ["OPTILOCK_NEIGHBOUR_MODE"]

counts: Counter[str] = Counter()
outcomes: dict[str, str] = {}
tracebacks: dict[str, str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before a model of theirs is imported."""
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    event.listen(Session, "after_flush", _flushed, propagate=True)
    if MODE == "plain":
        return
    from counting import count_into  # of checks/sqlalchemy_suite

    from optilock import watch

    watch(Session)
    count_into(counts)
    if MODE == "versioned":
        _version_declarative_bases()
        _version_flask_sqlalchemy()
        _version_sqlmodel()


def _flushed(*_: object) -> None:
    counts["flushes"] += 1


def _version_declarative_bases() -> None:
    from sqlalchemy.orm import registry

    from optilock import Versioned

    try:
        from sqlalchemy_continuum.transaction import TransactionBase
        from sqlalchemy_continuum.version import VersionClassBase
    except ImportError:
        history: tuple[type, ...] = ()
    else:
        history = TransactionBase, VersionClassBase

    class Base(Versioned):
        """As docs/how-to/models/models.md has it for Continuum, whose history has no versions."""

        def __init_subclass__(cls, **options: Any) -> None:
            if issubclass(cls, history):
                cls.__version_token__ = None
            super().__init_subclass__(**options)

    generate_base = registry.generate_base

    def generate_versioned(self: Any, mapper: Any = None, cls: Any = object, **given: Any) -> Any:
        classes = cls if isinstance(cls, tuple) else (cls,)
        named = tuple(one for one in classes if one is not object)
        return generate_base(self, mapper, cls=(Base, *named), **given)

    registry.generate_base = generate_versioned  # type: ignore[method-assign]


def _version_flask_sqlalchemy() -> None:
    """Its bases of SQLAlchemy 2.0's kind, which it makes from the application's."""
    try:
        from flask_sqlalchemy import extension
    except ImportError:
        return
    from optilock import Versioned

    def new_class(name: str, bases: tuple[type, ...], *rest: Any) -> type:
        return types.new_class(name, (Versioned, *bases), *rest)

    extension.types = SimpleNamespace(new_class=new_class)


def _version_sqlmodel() -> None:
    try:
        from sqlmodel.main import SQLModelMetaclass
    except ImportError:
        return
    from optilock import Versioned

    new = SQLModelMetaclass.__new__

    def new_versioned(meta: Any, name: str, bases: Any, body: Any, **given: Any) -> Any:
        if given.get("table") and not any(issubclass(base, Versioned) for base in bases):
            bases = (Versioned, *bases)
        return new(meta, name, bases, body, **given)

    SQLModelMetaclass.__new__ = new_versioned  # type: ignore[method-assign]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        outcomes[report.nodeid] = "failed"
        tracebacks[report.nodeid] = f"{tracebacks.get(report.nodeid, '')}{report.longreprtext}\n"
    elif report.when == "call" or report.skipped:
        outcomes[report.nodeid] = report.outcome


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        outcomes[report.nodeid] = "failed"
        tracebacks[report.nodeid] = report.longreprtext


def pytest_unconfigure(config: pytest.Config) -> None:
    found = {"outcomes": outcomes, "tracebacks": tracebacks, "counts": dict(counts)}
    Path(os.environ["OPTILOCK_NEIGHBOUR_REPORT"]).write_text(json.dumps(found))
