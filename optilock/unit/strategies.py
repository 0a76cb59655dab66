"""The option ``strategy=`` of a unit of work: which of the rows that it reads are locked.

``"optimistic"`` locks none, and ``"pessimistic"`` each row that the unit reads as an object, until
the unit ends. ``"adaptive"``, also as :class:`Adaptive`, locks the rows on which units conflict
(:mod:`~optilock.unit.heat`). That is the default where a unit is run again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from optilock.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Thresholds at which ``strategy="adaptive"`` starts to lock a row.

    ``threshold``: the average of conflicts from which on a row is locked, more than 0, up to 1.
    ``weight``: how much one write counts in the average, more than 0, up to 1.
    ``half_life``: seconds or timedelta after which the average has halved by itself.
    ``probe``: how many readings with a lock there are to the first one without, 1 or more.

    Raises ``ConfigurationError`` for anything else.
    """

    threshold: float = 0.1
    weight: float = 0.2
    half_life: float | timedelta = field(default=30.0, compare=False)
    probe: int = 32
    #: ``half_life`` in seconds.
    seconds: float = field(init=False, repr=False)
    #: For how many seconds after a deadlock its tables are crowded.
    crowd: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("threshold", "weight"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value <= 1:
                raise ConfigurationError(
                    f"Adaptive({name}={value!r}) cannot work: write a number above 0, and 1 at"
                    " most."
                )
        seconds = self.half_life
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if not _is_number(seconds) or seconds <= 0:
            raise ConfigurationError(
                f"Adaptive(half_life={self.half_life!r}) cannot work: write seconds, more than 0,"
                " or a timedelta."
            )
        object.__setattr__(self, "seconds", seconds)
        object.__setattr__(self, "crowd", seconds * math.log2(1 / self.threshold))
        if not isinstance(self.probe, int) or isinstance(self.probe, bool) or self.probe < 1:
            raise ConfigurationError(
                f"Adaptive(probe={self.probe!r}) cannot work: write a number of readings, 1 or"
                " more."
            )


Strategy = Literal["optimistic", "pessimistic", "adaptive"] | Adaptive
OPTIMISTIC: Literal["optimistic"] = "optimistic"
PESSIMISTIC: Literal["pessimistic"] = "pessimistic"
ADAPTIVE: Literal["adaptive"] = "adaptive"


def check_strategy(strategy: Any) -> None:
    """Refuse any other value.

    Raises:
        ConfigurationError: the value is no strategy.
    """
    known = (OPTIMISTIC, PESSIMISTIC, ADAPTIVE)
    if isinstance(strategy, Adaptive) or (isinstance(strategy, str) and strategy in known):
        return
    raise ConfigurationError(
        f"strategy={strategy!r} is no strategy: write"
        f" {', '.join(repr(one) for one in known)}, or Adaptive(...) with limits of your own."
    )


def adaptive_of(strategy: Strategy) -> Adaptive | None:
    """Return the limits of an adaptive strategy; None where every row is locked."""
    if isinstance(strategy, Adaptive):
        return strategy
    return _DEFAULT if strategy == ADAPTIVE else None


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


_DEFAULT = Adaptive()
