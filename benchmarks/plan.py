"""How much a run does: rounds, sizes, and what ``--quick`` leaves out."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.servers import Place

__all__ = ["LONG", "MANY", "MEDIUM", "SHORT", "TURNS", "Plan"]

#: What a round costs, as a factor of the rounds: many of what is short and jumps, few of seconds.
SHORT, MEDIUM, LONG = 2.0, 1.0, 0.25
#: Of rounds in which each of a dozen subjects has a turn of seconds.
TURNS = 0.125

#: Rows of the batch that the goals speak of.
MANY = 1_000

_ROUNDS = 24
_QUICK_ROUNDS = 4
_AT_LEAST = 3
#: Runs in one timing of a small flush: it shall be longer than the noise of clock and scheduler.
_REPEATS = {"socket": 20, "delayed": 4, "far": 4, "sqlite": 20, "memory": 20, "mariadb": 20}


@dataclass(frozen=True)
class Plan:
    """The options of a run. ``rounds`` is taken as it is; without it the cost decides."""

    rounds: int | None = None
    quick: bool = False
    many: int = MANY
    #: Of benchmarks with many writers: how many, for how long, and which subjects; all without.
    writers: tuple[int, ...] = ()
    seconds: float | None = None
    subjects: tuple[str, ...] = ()

    def rounds_for(self, cost: float) -> int:
        """How many rounds something of this cost gets."""
        if self.rounds is not None:
            return self.rounds
        return max(_AT_LEAST, round(cost * (_QUICK_ROUNDS if self.quick else _ROUNDS)))

    def turns(self) -> int:
        """How many turns each subject gets among many writers."""
        return 1 if self.quick and self.rounds is None else self.rounds_for(TURNS)

    def repeats_for(self, place: Place, rows: int) -> int:
        """How many runs are summed up to one timing."""
        if self.many < MANY:
            return 1
        return max(1, _REPEATS[place.name] // rows)

    def sizes(self, place: Place) -> tuple[int, ...]:
        """The sizes of a batch; the largest only where a row is not a round trip."""
        if self.quick:
            return (self.many,)
        sizes = (self.many // 100, self.many // 10, self.many, 10 * self.many)
        return tuple(size for size in sizes if size > 1 and _bearable(place, size, self.many))

    def goal(self, rows: int, value: float) -> float | None:
        """The goal, for the sizes it was set for; nothing for a run of another size."""
        return value if rows in (1, MANY, 10 * MANY) else None


def _bearable(place: Place, size: int, many: int) -> bool:
    return place.name not in ("delayed", "far") or size <= many
