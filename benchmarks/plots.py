"""The lines of a run as pictures: PNG files, one for each benchmark and database, or question.

Many writers are drawn as units a second and p99, over the number of writers, or as bars where there
is one number. Ratios are drawn as a row of their own each: the median, the smallest and the
largest, and the goal. What is only counted is not drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.table import CountLine, Line, LoadLine, RatioLine

__all__ = ["can_draw", "draw"]

_WIDE = 9.0
#: Inches of a row of ratios, and of what stands around them.
_ROW, _AROUND = 0.24, 1.2
_OURS, _MISSED, _PLAIN = "tab:blue", "tab:red", "dimgrey"
_MARKS = "osv^D<>PX*hp"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(name: str, lines: Iterable[Line], folder: Path) -> list[Path]:
    """Draw the lines of one benchmark into this folder; the files."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    all_of = list(lines)
    loads = [line for line in all_of if isinstance(line, LoadLine)]
    ratios = [line for line in all_of if isinstance(line, RatioLine)]
    files = [_loads(name, found, folder) for found in _grouped(loads, "question")]
    # Beside a picture of the writers, only what is held against a goal says more.
    shown = [line for line in ratios if not loads or line.goal is not None]
    files += [_ratios(name, found, folder) for found in _grouped(shown)]
    counts = [line for line in all_of if isinstance(line, CountLine)]
    for found in _grouped(counts):
        compared = _compared(found)
        files += [_counts(name, found[0].database, compared, folder)] if compared else []
    return files


def _grouped(lines: Sequence[Any], *further: str) -> Iterable[list[Any]]:
    groups: dict[tuple[str, ...], list[Any]] = {}
    for line in lines:
        key = (line.database, *(getattr(line, each) for each in further))
        groups.setdefault(key, []).append(line)
    return groups.values()


def _loads(name: str, lines: Sequence[LoadLine], folder: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(2 * _WIDE, _WIDE / 1.6))
    subjects = list(dict.fromkeys(line.subject for line in lines))
    if len({line.writers for line in lines}) > 1:
        _over_writers(left, right, subjects, lines)
        figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    else:
        _bars(left, right, lines)
    left.set_title("units stored a second")
    right.set_title("p99 of a unit, ms")
    writers = sorted({line.writers for line in lines})
    question, database = lines[0].question, lines[0].database
    figure.suptitle(f"{question}, {database}: {', '.join(map(str, writers))} writers")
    return _saved(figure, folder, name, database, question)


def _over_writers(
    left: Any, right: Any, subjects: Sequence[str], lines: Sequence[LoadLine]
) -> None:
    for number, subject in enumerate(subjects):
        found = sorted((line for line in lines if line.subject == subject), key=_writers)
        ours = subject.startswith("optilock")
        look = {
            "marker": _MARKS[number % len(_MARKS)],
            "linewidth": 2.5 if ours else 1.0,
            "label": subject,
        }
        counts = list(map(_writers, found))
        left.plot(counts, [line.goodput for line in found], **look)
        right.plot(counts, [line.p99 * 1000 for line in found], **look)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({*map(_writers, lines)}))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_xlabel("writers")
        axes.grid(alpha=0.3)
    left.set_ylim(bottom=0)
    right.set_yscale("log")


def _writers(line: LoadLine) -> int:
    return line.writers


def _bars(left: Any, right: Any, lines: Sequence[LoadLine]) -> None:
    names = [line.subject + " (loses)" * (line.lost + line.broken > 0) for line in lines]
    colours = [_OURS if line.subject.startswith("optilock") else _PLAIN for line in lines]
    left.barh(names, [line.goodput for line in lines], color=colours)
    right.barh(names, [line.p99 * 1000 for line in lines], color=colours)
    right.set_xscale("log")
    right.tick_params(labelleft=False)  # the names stand on the left, in the same order
    for axes in (left, right):
        axes.invert_yaxis()


def _ratios(name: str, lines: Sequence[RatioLine], folder: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(1.6 * _WIDE, _AROUND + _ROW * len(lines)))
    for place, line in enumerate(lines):
        found = line.ratios.get(line.subject)
        if found is None:
            continue
        colour = _MISSED if line.reached is False else _OURS
        axes.plot([found.low, found.high], [place, place], color=colour, linewidth=1)
        axes.plot([found.median], [place], "o", color=colour)
        if line.goal is not None:
            axes.plot([line.goal], [place], "|", color="black", markersize=12)
    labels = [f"{line.question}, {line.rows:,}, against {line.against}" for line in lines]
    axes.set_yticks(range(len(lines)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1.0, color="grey", linewidth=0.5)
    database = lines[0].database
    axes.set_title(f"{name}, {database}: ratio (median, smallest, largest; goal: |)")
    return _saved(figure, folder, name, database, "ratios")


def _compared(lines: Sequence[CountLine]) -> dict[str, dict[str, int]]:
    """Question -> subject -> count, where several subjects were counted."""
    counts: dict[str, dict[str, int]] = {}
    for line in lines:
        counts.setdefault(f"{line.question}, {line.rows:,}", {})[line.subject] = line.count
    return {question: each for question, each in counts.items() if len(each) > 1}


def _counts(
    name: str, database: str, counts: Mapping[str, Mapping[str, int]], folder: Path
) -> Path:
    import matplotlib.pyplot as plt

    subjects = list(dict.fromkeys(subject for each in counts.values() for subject in each))
    height = 0.8 / len(subjects)
    figure, axes = plt.subplots(figsize=(1.6 * _WIDE, _AROUND + 3 * _ROW * len(counts)))
    for number, subject in enumerate(subjects):
        places = [place + number * height for place in range(len(counts))]
        axes.barh(places, [each.get(subject, 0) for each in counts.values()], height, label=subject)
    middle = (len(subjects) - 1) * height / 2
    axes.set_yticks([place + middle for place in range(len(counts))], list(counts), fontsize=8)
    axes.invert_yaxis()
    axes.legend()
    axes.set_title(f"{name}, {database}")
    return _saved(figure, folder, name, database, "counts")


def _saved(figure: Any, folder: Path, *names: str) -> Path:
    import matplotlib.pyplot as plt

    slug = "-".join(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in names)
    path = folder / f"{slug}.png"
    figure.savefig(path, dpi=90, bbox_inches="tight")
    plt.close(figure)
    return path
