"""The functions that are explored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError, describe
from optilock.unit.durations import replaced_wait

#: A function without arguments, sync or async.
Unit = Callable[[], Any]
#: More units have more orders than a test can run.
MOST = 3


def names_of(units: Sequence[Unit]) -> list[str]:
    """Return a name for each unit, different from the others'."""
    names: list[str] = []
    for unit in units:
        name = base = str(getattr(getattr(unit, "func", unit), "__name__", type(unit).__name__))
        count = 1
        while name in names:
            count += 1
            name = f"{base}_{count}"
        names.append(name)
    return names


def work_of(unit: Unit) -> Callable[[], Any]:
    """Return the unit as a function of its thread: retries do not wait, and a loop runs there."""

    def work() -> Any:
        replaced_wait.set(lambda seconds: None)
        if iscoroutinefunction(getattr(unit, "func", unit)):
            return asyncio.run(unit())
        return unit()

    return work


def require_units(units: Sequence[Unit], *, is_async: bool) -> None:
    """Refuse what cannot be explored, before anything is run.

    Raises:
        ConfigurationError: too few or too many, no functions, or one with a session from outside.
    """
    if not 2 <= len(units) <= MOST:
        raise ConfigurationError(
            f"explore() takes two or three units. Got {len(units)}. Nothing was run."
        )
    for unit, name in zip(units, names_of(units), strict=True):
        if not callable(unit):
            raise ConfigurationError(
                f"A unit is a function without arguments. Got {describe(unit)}. Nothing was run."
            )
        if iscoroutinefunction(getattr(unit, "func", unit)) is not is_async:
            kind, engine = ("def", "an AsyncEngine") if is_async else ("async def", "an Engine")
            raise ConfigurationError(
                f"{name} is {kind}, and sessions= is of {engine}. Use one kind for all units."
                " Nothing was run."
            )
        if any(_is_session(value) for value in _values_of(unit)):
            raise ConfigurationError(
                f"{name} has a session or connection that was opened outside of it, which keeps its"
                " objects from order to order. Open it inside the unit. Nothing was run."
            )


def _values_of(unit: Any) -> Iterator[Any]:
    """Yield what a function brings along: arguments of a partial, and variables around it."""
    if isinstance(unit, partial):
        yield from (*unit.args, *unit.keywords.values())
        yield from _values_of(unit.func)
    if hasattr(unit, "__wrapped__"):
        yield from _values_of(unit.__wrapped__)
    yield getattr(unit, "__self__", None)
    code, names = getattr(unit, "__code__", None), getattr(unit, "__globals__", {})
    yield from (names[name] for name in getattr(code, "co_names", ()) if name in names)
    for cell in getattr(unit, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty
            continue
    yield from getattr(unit, "__defaults__", None) or ()


def _is_session(value: Any) -> bool:
    return isinstance(getattr(value, "sync_session", value), (Session, Connection)) or isinstance(
        getattr(value, "sync_connection", None), Connection
    )
