"""An order as a script: a column of statements for each unit, and how it was judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optilock.testing.exploration.turns import Step

#: Characters of a column.
WIDTH = 46


def script(steps: Sequence[Step], names: Sequence[str]) -> str:
    """Return the steps as numbered lines, in a column for each unit.

    Rollbacks that one unit sends in a row, of savepoints and of their transaction, are one line.
    """
    lines = ["      " + "".join(name[: WIDTH - 2].ljust(WIDTH) for name in names)]
    for number, step in enumerate(_together(steps), 1):
        suffix = "  (waits)" if step.waited else ""
        text = _short(step.shown, WIDTH - 2 - len(suffix)) + suffix
        lines.append(f"{number:4}  " + " " * (WIDTH * step.unit) + text)
        lines += ["      " + " " * (WIDTH * other) + "(goes on)" for other in step.woken]
    return "\n".join(line.rstrip() for line in lines)


def script_length(steps: Sequence[Step]) -> int:
    """Return the number of lines that a script of these steps numbers."""
    return sum(1 for _ in _together(steps))


def _together(steps: Sequence[Step]) -> Iterator[Step]:
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        goes_on = following is not None and following.unit == step.unit
        if not (goes_on and not step.woken and _rolls_back(step) and _rolls_back(following)):
            yield step


def _rolls_back(step: Step | None) -> bool:
    return step is not None and step.text.lstrip().upper().startswith("ROLLBACK")


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
