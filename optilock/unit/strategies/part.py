"""``strategy=``: how a unit reads the rows that it will write.

``"optimistic"`` (the default): without locks; who was slower is told.
``"pessimistic"``: every row that the unit reads as an object is locked until the unit is over.
``"adaptive"``, or an :class:`~optilock.Adaptive`: rows on which units conflict are locked, the
others are not.
"""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError
from optilock.session.watched import READS
from optilock.unit.parts import Part
from optilock.unit.sessions import choose_no_more, lock_where_written
from optilock.unit.strategies.heat import Adaptive, Memory
from optilock.unit.strategies.reading import Reading

__all__ = ["MEMORY", "OPTIMISTIC", "PESSIMISTIC", "Locking", "Strategy", "check_strategy"]

Strategy = Literal["optimistic", "pessimistic", "adaptive"] | Adaptive
OPTIMISTIC: Literal["optimistic"] = "optimistic"
PESSIMISTIC: Literal["pessimistic"] = "pessimistic"
ADAPTIVE: Literal["adaptive"] = "adaptive"

#: What all units of the process have found out.
MEMORY = Memory()
_DEFAULT = Adaptive()


def check_strategy(strategy: Any) -> None:
    """Refuse what is no strategy.

    Raises:
        ConfigurationError: so it is.
    """
    known = (OPTIMISTIC, PESSIMISTIC, ADAPTIVE)
    if isinstance(strategy, Adaptive) or (isinstance(strategy, str) and strategy in known):
        return
    raise ConfigurationError(
        f"strategy={strategy!r} is no strategy: write"
        f" {', '.join(repr(one) for one in known)}, or Adaptive(...) with limits of your own."
    )


class Locking(Part, option="strategy"):
    """The part of a unit whose reads may lock."""

    def __init__(self, strategy: Strategy) -> None:
        if isinstance(strategy, Adaptive):
            self.adaptive: Adaptive | None = strategy
        else:
            self.adaptive = _DEFAULT if strategy == ADAPTIVE else None

    def begin(self, session: Session) -> None:
        session.__dict__[READS] = Reading(session, self.adaptive, MEMORY)
        lock_where_written(session)

    def after(self, session: Session, error: BaseException | None) -> None:
        choose_no_more(session)
        reading: Reading | None = session.__dict__.pop(READS, None)
        if reading is not None and error is not None:
            reading.remember(session, error)
