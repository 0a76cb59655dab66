"""What comes of the scenarios: possible, prevented, or refused with an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from checks.guarantees.rows import LEVELS, PROTECTIONS, Base
from checks.guarantees.stepping import Run, Scenario, run
from tests.engines import Target

__all__ = ["POSSIBLE", "PREVENTED", "PUBLISHED", "Outcomes", "opened", "outcomes"]

POSSIBLE, PREVENTED = "possible", "prevented"
#: One outcome for each protection, for each level of an engine.
Outcomes: TypeAlias = tuple[tuple[str, ...], ...]

_AT_READ_COMMITTED = frozenset(
    [
        *("PMP", "PMP-write", "P4"),
        *("G-single", "G-single-predicate", "G-single-write"),
        *("G2-item", "G2", "G2-read-only"),
    ]
)
#: What Hermitage has found possible; MariaDB has the results of MySQL.
PUBLISHED: dict[tuple[str, str], frozenset[str]] = {
    ("postgresql", "read committed"): _AT_READ_COMMITTED,
    ("postgresql", "repeatable read"): frozenset({"G2-item", "G2", "G2-read-only"}),
    ("postgresql", "serializable"): frozenset(),
    ("mariadb", "read committed"): _AT_READ_COMMITTED,
    ("mariadb", "repeatable read"): frozenset(
        {"PMP-write", "P4", "G-single-write", "G2-item", "G2", "G2-read-only"}
    ),
    ("mariadb", "serializable"): frozenset(),
}


@contextmanager
def opened(database: Target) -> Iterator[Engine]:
    """An engine with the tables of the scenarios, whose writers wait for each other."""
    waits = {"connect_args": {"timeout": 10}} if database.family == "sqlite" else {}
    engine = database.engine(**waits)
    Base.metadata.create_all(engine)
    try:
        yield engine
    finally:
        Base.metadata.drop_all(engine)
        engine.dispose()


def outcomes(scenario: Scenario, engine: Engine, name: str) -> Outcomes:
    """Run the scenario at each level of the engine ``name``, with each protection."""
    return tuple(
        tuple(_outcome(scenario, run(scenario, engine, level, one)) for one in PROTECTIONS)
        for level in LEVELS[name]
    )


def _outcome(scenario: Scenario, made: Run) -> str:
    if scenario.happened(made):
        return POSSIBLE
    return ", ".join(sorted({_named(error) for error in made.errors})) or PREVENTED


def _named(error: BaseException) -> str:
    """The name of the error, and the code of the database's error in it."""
    inner = error if isinstance(error, DBAPIError) else error.__cause__
    name = f"`{type(error).__name__}`"
    return f"{name} {_code(inner.orig)}" if isinstance(inner, DBAPIError) else name


def _code(error: BaseException | None) -> str:
    named = getattr(error, "sqlite_errorname", None)
    if named is not None:
        return str(named)
    number = error.args[0] if error is not None and error.args else None
    return str(number if isinstance(number, int) else getattr(error, "sqlstate", None))
