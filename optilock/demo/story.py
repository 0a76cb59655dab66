"""One conflict of the run, told step by step, with its three values and what came of them.

The values are those of the :class:`~optilock.errors.Entry` that the resolver was given. The merged
ones are asked of the same resolver once more: it is a function of the entry alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optilock import Entry, Resolution
from optilock.demo.strategies import MERGE

__all__ = ["Story", "story_of"]

_MARK = re.compile(r"\[edit (\d+)-\d+\]")


@dataclass(frozen=True)
class Story:
    """Sentences before and after a grid of (attribute, original, yours, theirs, merged)."""

    before: tuple[str, ...]
    rows: tuple[tuple[str, str, str, str, str], ...]
    after: tuple[str, ...]


def story_of(entry: Entry[Any]) -> Story | None:
    """The story of a conflict that was merged; ``None`` if the row is gone or was not merged."""
    resolution = MERGE(entry)
    if entry.database is None or not isinstance(resolution, Resolution):
        return None
    if resolution.decision != "write":
        return None
    return Story(
        before=tuple(_before(entry, entry.database)),
        rows=tuple(_rows(entry, entry.database, resolution.values)),
        after=_AFTER,
    )


_AFTER = (
    "The merged page was written in the same transaction, under a condition on the version just"
    " read, and committed.",
    "Nobody's edit was lost, and nobody had to write it again.",
)


def _before(entry: Entry[Any], database: Mapping[str, Any]) -> Iterator[str]:
    ours = _new_lines(entry.original, entry.current)
    theirs = _new_lines(entry.original, database)
    yield (
        f"{_author(ours)} reads page {entry.identity[0]!r}: version {entry.original['version']},"
        f" {entry.original['views']} views."
    )
    yield (
        f"While {_author(ours)} thinks, version {database['version']} is stored by"
        f" {_author(theirs)}."
    )
    yield (
        f"{_author(ours)} writes ... WHERE version = {entry.original['version']}: no row matches,"
        " so nothing is overwritten. The stored row is read, and each column is settled:"
    )


def _rows(
    entry: Entry[Any], database: Mapping[str, Any], merged: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str, str]]:
    original, current = entry.original, entry.current
    result = {**database, **merged}
    sides = (current, database, result)
    yield ("views", str(original["views"]), *_three(str(side["views"]) for side in sides))
    yield (
        "tags",
        f"{len(original['tags'])} tags",
        *_three(_plus(_new_tags(original, side)) for side in sides),
    )
    yield (
        "body",
        f"{len(original['body'].splitlines())} lines",
        *_three(_plus(_numbered(side, _new_lines(original, side))) for side in sides),
    )


def _three(cells: Iterator[str]) -> tuple[str, str, str]:
    yours, theirs, merged = cells
    return yours, theirs, merged


def _new_tags(original: Mapping[str, Any], side: Mapping[str, Any]) -> list[str]:
    return [tag for tag in side["tags"] if tag not in original["tags"]]


def _new_lines(original: Mapping[str, Any], side: Mapping[str, Any]) -> list[str]:
    known = set(original["body"].splitlines())
    return [line for line in side["body"].splitlines() if line not in known]


def _numbered(side: Mapping[str, Any], lines: Sequence[str]) -> list[str]:
    """Each line with its place in the text; the demo never writes the same line twice."""
    everything = side["body"].splitlines()
    return [f"line {everything.index(line) + 1}: {line}" for line in lines]


def _plus(added: Sequence[str]) -> str:
    return "\n".join(f"+ {each}" for each in added) or "unchanged"


def _author(lines: Sequence[str]) -> str:
    """Who wrote the lines, by their marks."""
    numbers = sorted({found[1] for line in lines if (found := _MARK.search(line))})
    if not numbers:
        return "an editor"
    return "editor " + " and editor ".join(numbers)
