"""``explore``, ``assert_serializable`` and ``replay``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError, describe
from optilock.testing.exploration.explorer import Explorer
from optilock.testing.exploration.judgement import Outcome
from optilock.testing.exploration.report import Exploration
from optilock.testing.exploration.search import Prune
from optilock.testing.exploration.stage import Stage, engine_of
from optilock.testing.exploration.stops import Stops
from optilock.testing.exploration.units import Unit, require_units

#: The most orders that are run without ``limit=``.
LIMIT = 5_000


def explore(
    *units: Unit,
    sessions: Any,
    reset: Callable[[], object],
    tables: Sequence[Any] | None = None,
    invariant: Callable[[Session], object] | None = None,
    ignoring: Iterable[Any] = (),
    values: bool = True,
    limit: int = LIMIT,
    prune: Prune = "source",
) -> Exploration:
    """Run two or three units in every order of their statements that can differ, and judge each.

    Args:
        units: functions without arguments that open their own sessions or units of work.
        sessions: the ``sessionmaker`` that they use, or the engine.
        reset: puts the rows back and commits; it is called before each order.
        tables: the mapped classes or tables that are compared; by default those of the units.
        invariant: a function of a session that asserts what must be true of the rows.
        ignoring: columns that may differ from order to order, such as times.
        values: compare what the units return, too.
        limit: the most orders that are run; ``complete`` is False if that was reached.
        prune: ``"none"`` runs every order, ``"sleep"`` and ``"source"`` leave out repetitions.

    Raises:
        ConfigurationError: units that cannot be put in order.
        NotDeterministic: units that depend on chance, or on the clock.
        OutOfStep: a unit that does not end.
    """
    _require_limit(limit)
    if prune not in get_args(Prune):
        raise ConfigurationError(f'prune={prune!r} must be "source", "sleep" or "none".')
    with _opened(
        *units,
        sessions=sessions,
        reset=reset,
        tables=tables,
        invariant=invariant,
        ignoring=ignoring,
        values=values,
    ) as explorer:
        return explorer.search(prune, limit)


def assert_serializable(*units: Unit, partial: bool = False, **options: Any) -> Exploration:
    """Raise ``NotSerializable`` with a script if an order leaves what no serial order leaves.

    It takes the options of :func:`explore`. A search that was not complete fails, unless
    ``partial=True``.
    """
    found = explore(*units, **options)
    found.require_serializable(partial=partial)
    return found


def replay(order: str, /, *units: Unit, **options: Any) -> Outcome:
    """Run one order of the units, as a failure names it; raise ``NotSerializable`` if it fails.

    The letters are steps: ``a`` of the first unit, ``b`` of the second one. It takes the options of
    :func:`explore`, without ``limit`` and ``prune``.

    Raises:
        ConfigurationError: a letter of no unit, or of a unit that cannot take a step there.
    """
    with _opened(*units, **options) as explorer:
        return explorer.replay(order)


@contextmanager
def _opened(
    *units: Unit,
    sessions: Any,
    reset: Callable[[], object],
    tables: Sequence[Any] | None = None,
    invariant: Callable[[Session], object] | None = None,
    ignoring: Iterable[Any] = (),
    values: bool = True,
) -> Iterator[Explorer]:
    """Check what was given, and run the serial orders."""
    engine = engine_of(sessions)
    is_async = hasattr(engine, "sync_engine")
    require_units(units, is_async=is_async)
    for name, function in (("reset", reset), ("invariant", invariant)):
        if not callable(function) and (name == "reset" or function is not None):
            raise ConfigurationError(
                f"{name}= must be a function. Got {describe(function)}. Nothing was run."
            )
    stage = Stage(engine, reset, tables=tables, ignoring=ignoring, invariant=invariant)
    try:
        with stage, Stops(stage.engine, stage.threads) as stops:
            explorer = Explorer(units, stage, stops, values=values)
            explorer.run_serial()
            yield explorer
    finally:
        stage.forget_connections()


def _require_limit(limit: object) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigurationError(
            f"limit={limit!r} must be a number of orders, 1 or more. Nothing was run."
        )
