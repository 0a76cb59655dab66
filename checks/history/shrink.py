"""A history that fails, made as short as it goes while it still fails in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from checks.history.authors import Settings
from checks.history.histories import History
from checks.history.model import Fault
from checks.history.runner import Place, Run

__all__ = ["Finding", "finding", "shrink"]


class Finding:
    """A history that breaks a promise on a database."""

    def __init__(self, place: Place, history: History, fault: Fault, run: Run | None) -> None:
        self.place, self.history, self.fault, self.run = place, history, fault, run

    @property
    def key(self) -> tuple[str, str]:
        return self.history.mapping, self.fault.word

    def __str__(self) -> str:
        lines = [
            f"seed {self.history.seed} on {self.place.target.name}, {self.history.mapping}:"
            f" {self.fault}",
        ]
        for name, settings in zip("ABC", self.history.authors, strict=False):
            lines.append(f"    {name}: {settings}")
        lines += [f"    {line}" for line in (self.run.lines if self.run else ())]
        return "\n".join(lines)


def finding(place: Place, history: History) -> Finding | None:
    """What the history shows, if anything."""
    runs: list[Run] = []
    try:
        place.run(history, runs)
    except Fault as fault:
        return Finding(place, history, fault, runs[0])
    return None


def shrink(found: Finding) -> Finding:
    """Drop steps from the end, then settings, until nothing more can be dropped."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(found.history):
            again = finding(found.place, candidate)
            if again is not None and again.fault.word == found.fault.word:
                found, smaller = again, True
                break
    return found


def _smaller(history: History) -> Iterator[History]:
    count = len(history.steps)
    for size in (8, 4, 2, 1):
        for start in range(count - size, -1, -1):
            yield history.without(start, start + size)
    plain = Settings()
    for number, settings in enumerate(history.authors):
        for name in (one.name for one in fields(Settings)):
            if getattr(settings, name) != getattr(plain, name) and name != "plain":
                changed = replace(settings, **{name: getattr(plain, name)})
                authors = list(history.authors)
                authors[number] = changed
                yield replace(history, authors=tuple(authors))
