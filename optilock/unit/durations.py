"""Durations as callers give them, and the waits between two attempts."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING

from optilock.errors import ConfigurationError

if TYPE_CHECKING:
    import tenacity

#: A duration, in seconds or as a timedelta.
Seconds = float | timedelta


def in_seconds(name: str, value: Seconds) -> float:
    """Return ``value`` in seconds, or raise a ConfigurationError that names the option."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if is_number and 0 <= seconds < math.inf:
        return float(seconds)
    raise ConfigurationError(
        f"{name}={value!r} is not a duration: write seconds (0 or more) or a timedelta."
    )


# -- waits between attempts ------------------------------------------------------------------------


def full_jitter(initial: float, maximum: float) -> tenacity.wait.wait_base:
    """Return the waits that :mod:`~optilock.unit.retries` describes, both limits in seconds."""
    from tenacity import wait_random_exponential

    return wait_random_exponential(multiplier=initial, max=maximum)


#: What happens in place of each wait, for code that this context runs: tests of
#: :mod:`optilock.testing` decide themselves when a unit goes on.
replaced_wait: ContextVar[Callable[[float], object] | None] = ContextVar(
    "replaced_wait", default=None
)


def sleep_for(seconds: float) -> None:
    (replaced_wait.get() or time.sleep)(seconds)


async def sleep_for_async(seconds: float) -> None:
    replaced = replaced_wait.get()
    if replaced is None:
        await asyncio.sleep(seconds)
    else:
        replaced(seconds)
