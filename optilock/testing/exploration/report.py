"""The findings of an exploration, as values and as a text."""

from __future__ import annotations

from dataclasses import dataclass, field

from optilock.errors import OptilockError
from optilock.testing.exploration.judgement import Outcome, Serial


class NotSerializable(OptilockError, AssertionError):
    """Units that run at once leave what no serial order leaves; the message is the script."""

    #: The letters for ``replay``: a step of the first unit is an ``a``.
    order: str = ""
    #: ``"lost update"``, ``"write skew"``, ``"phantom"``, ``"read skew"``, ``"double apply"``,
    #: ``"broken invariant"`` or ``"not serializable"``.
    anomaly: str = ""


@dataclass(frozen=True)
class Failure:
    """An order that leaves what no serial order leaves, or that breaks the invariant."""

    #: The letters for ``replay``: a step of the first unit is an ``a``.
    order: str
    anomaly: str
    #: How the invariant is broken; None where no serial order leaves the same.
    broken: str | None
    outcome: Outcome
    #: The steps, in a column for each unit.
    script: str
    #: How many lines of the script are steps.
    steps: int

    @property
    def switches(self) -> int:
        """How often another unit goes on than the one before."""
        return sum(one != other for one, other in zip(self.order, self.order[1:], strict=False))


@dataclass(frozen=True)
class Exploration:
    """The results of the orders of some units."""

    #: The names of the units, in the order of their letters.
    units: tuple[str, ...]
    #: Orders that were run to their end and judged.
    orders: int = 0
    #: Orders that were given up, because all that could follow had been run.
    cut: int = 0
    #: What the orders leave, each once.
    outcomes: frozenset[Outcome] = frozenset()
    #: The orders that fail, the ones with the fewest switches first.
    failures: tuple[Failure, ...] = ()
    #: Orders in which a unit ended with a transient error.
    gave_up: int = 0
    #: Steps that waited for a lock, in all orders.
    waits: int = 0
    #: Deadlocks that the database ended. It may end one before it can be counted.
    deadlocks: int = 0
    #: Choices of the database that did not come again: which of two units got a lock first.
    unreached: int = 0
    #: Every order was run, or one that cannot differ from it.
    complete: bool = False
    #: The serial orders, and what they leave.
    serial: tuple[Serial, ...] = field(repr=False, default=())
    prune: str = "source"
    seconds: float = field(default=0.0, compare=False)

    @property
    def summary(self) -> str:
        """How many orders were run, of how many, and what was left out."""
        kind = "orders" if self.prune == "none" else "distinguishable orders"
        text = f"{len(self.failures)} of {self.orders} {kind} fail"
        if self.cut:
            text += f"; {self.cut} more were given up as repetitions"
        if self.unreached:
            text += f"; {self.unreached} choices of the database did not come again"
        if not self.complete:
            text += "; not all orders were run"
        return text

    def require_serializable(self, *, partial: bool = False) -> None:
        """Raise ``NotSerializable`` with the shortest script, if an order fails.

        So does a search that was not complete, unless ``partial``.
        """
        if self.failures:
            raise not_serializable(self, self.failures[0])
        if not self.complete and not partial:
            raise NotSerializable(
                f"{' and '.join(self.units)}: {self.summary}. No order failed, and the others are"
                " not known. Raise limit=, explore fewer statements, or pass partial=True."
            )

    def __str__(self) -> str:
        if not self.failures:
            return f"{' and '.join(self.units)}: {self.summary}."
        return failure_text(self, self.failures[0])


def failure_text(found: Exploration, failure: Failure) -> str:
    """Return one failure as a text for a person."""
    names = " and ".join(found.units)
    if failure.broken is not None:
        head = f"{failure.anomaly}: {names} break the invariant: {failure.broken}"
    else:
        head = f"{failure.anomaly}: what {names} leave is equal to no serial order."
    left = [f"  left: {failure.outcome}"]
    for one in found.serial:
        if len(one.names) == len(found.units):
            left.append(f"  {', then '.join(one.names)}: {one.outcome}")
    return "\n".join(
        [
            head,
            "",
            failure.script,
            "",
            *left,
            f"  {found.summary}.",
            f'  replay("{failure.order}", {", ".join(found.units)}, sessions=..., reset=...)',
        ]
    )


def not_serializable(found: Exploration, failure: Failure) -> NotSerializable:
    """Return the error for a failure."""
    error = NotSerializable(failure_text(found, failure))
    error.order, error.anomaly = failure.order, failure.anomaly
    return error
