"""How long to wait before the next attempt: exponential, with full jitter.

The n-th wait is drawn evenly from zero to ``initial * 2 ** (n - 1)`` seconds, and never more than
``maximum``. Writers that met once are spread over the whole range, so that they do not meet again;
a fixed wait with a little jitter would keep them together
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
"""

from __future__ import annotations

import math
from datetime import timedelta

from tenacity import wait_random_exponential
from tenacity.wait import wait_base

from optilock.errors import ConfigurationError

Seconds = float | timedelta


def full_jitter(initial: float, maximum: float) -> wait_base:
    """The waits described above, both limits in seconds."""
    return wait_random_exponential(multiplier=initial, max=maximum)


def in_seconds(name: str, value: Seconds) -> float:
    """``value`` as seconds; a ConfigurationError that names the option for anything else."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if is_number and 0 <= seconds < math.inf:
        return float(seconds)
    raise ConfigurationError(
        f"{name}={value!r} is not a duration: write seconds (0 or more) or a timedelta."
    )
