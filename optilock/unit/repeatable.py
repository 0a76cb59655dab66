"""The functions that a retry can run again as a whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from optilock.errors import ConfigurationError

R = TypeVar("R")


def require_repeatable(function: object) -> None:
    """Refuse to decorate what cannot run again as a whole."""
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, (classmethod, staticmethod)):
        raise ConfigurationError(f"write @retry below @{type(function).__name__}, not above it.")
    if isinstance(function, type):
        raise ConfigurationError(f"{name} is a class: decorate the method that does the work.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{name} is a generator: what it has yielded cannot be taken back. Decorate a function"
            " that returns a list, or use `for attempt in retrying(...)` around the whole work."
        )
    if not callable(function):
        raise ConfigurationError(f"{name} is not a function: retry decorates def and async def.")


def is_async(function: object) -> bool:
    """Return whether a call of it must be awaited."""
    call = getattr(function, "__call__", None)  # noqa: B004  # an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def returned_by(function: Callable[..., object], result: R) -> R:
    """Refuse a coroutine from a plain function: it has not run, so nothing was protected."""
    if inspect.iscoroutine(result):
        result.close()
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(
            f"{name} is a plain function that returned a coroutine, whose errors retry would not"
            " see: decorate the async def itself."
        )
    return result
