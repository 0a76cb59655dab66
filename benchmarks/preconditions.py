"""What does it take to judge the conditions of a request, against PyPI's etag?

Both get the usual requests: a GET with If-None-Match and a PUT with If-Match, which hit or miss,
with 1, 8 or 64 tags. *The field* is the field's value alone, which is all that ``etag`` reads;
*10 lines* is a browser's request as a server holds it, in which each has to find the field, and
``etag`` is given the lines of it. What ``etag`` does not look at, dates, whether a write has a
condition, and the limits, optilock does within the same time. The rest is what a hostile request
can cost: twice the length, and more than is read.

It is arithmetic in one process, so the time is that of its processor, and no database takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from time import process_time

from etag import evaluate_preconditions

from benchmarks.measure import SPANS, Timing, interleave, median, ratio
from benchmarks.plan import LONG, MEDIUM, Plan
from benchmarks.servers import Place
from benchmarks.table import CountLine, Line, RatioLine
from optilock.conditions.request import LONGEST, MOST
from optilock.preconditions.rfc9110 import evaluate, required

__all__ = ["DATABASES", "run"]

DATABASES = ("none",)

_THEIRS = f"etag {version('etag')}"
_CPU = SPANS["load to COMMIT, CPU"]
_CURRENT, _OTHER = '"gM0kXw2f.3"', '"gM0kXw2f.2"'
#: Tags judged in one timing: some milliseconds.
_JUDGED = 512
_TWICE = 2.2
#: Microseconds.
_REFUSED = 1_000

Lines = list[tuple[bytes, bytes]]

#: What a browser sends beside.
_BESIDE: Lines = [
    (b"host", b"wiki.example.org"),
    (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    (b"accept", b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    (b"accept-language", b"en-GB,en;q=0.5"),
    (b"accept-encoding", b"gzip, deflate, br, zstd"),
    (b"referer", b"https://wiki.example.org/pages/7"),
    (b"connection", b"keep-alive"),
    (b"cookie", b"session=f2e0c6a9d1b34c58"),
    (b"priority", b"u=0, i"),
]


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question."""
    for method, name in (("GET", "If-None-Match"), ("PUT", "If-Match")):
        for tags in (1, 8, MOST):
            for hit in (True, False):
                yield from _compared(place, plan, method, name, tags, hit)
    yield from _twice(place, plan)
    yield from _refused(place, plan)


def _compared(
    place: Place, plan: Plan, method: str, name: str, tags: int, hit: bool
) -> Iterator[Line]:
    value = ", ".join([*(f'"gM0kXw2f.{n}"' for n in range(10, 9 + tags)), _tag(hit)])
    raw = [*_BESIDE, (name.lower().encode(), value.encode())]
    ways = {
        "the field": (_ours(method, [(name, value)]), _theirs(method, name, value)),
        "10 lines": (_ours(method, raw), _theirs_of_lines(method, raw)),
    }
    for way, (ours, theirs) in ways.items():
        assert ours() == theirs()
        subjects = {
            _THEIRS: _timed(theirs, _JUDGED // tags),
            "optilock": _timed(ours, _JUDGED // tags),
        }
        timings = interleave(subjects, rounds=plan.rounds_for(MEDIUM))
        question = f"{method}, {name} {'hits' if hit else 'misses'}, {way}"
        yield RatioLine(
            question,
            place.label,
            tags,
            _THEIRS,
            {each: ratio(timings, each, _THEIRS, _CPU) for each in subjects},
            {each: median(timings, each, _CPU) * tags / _JUDGED for each in subjects},
            goal=1.0,
        )


def _tag(hit: bool) -> str:
    return _CURRENT if hit else _OTHER


def _ours(method: str, lines: list[tuple[str, str]] | Lines) -> Callable[[], int | None]:
    return lambda: evaluate(method, lines, etag=_CURRENT).status


def _theirs(method: str, name: str, value: str) -> Callable[[], int | None]:
    if name == "If-Match":
        return lambda: evaluate_preconditions(method, _CURRENT, if_match=value)
    return lambda: evaluate_preconditions(method, _CURRENT, if_none_match=value)


def _theirs_of_lines(method: str, lines: Lines) -> Callable[[], int | None]:
    def judged() -> int | None:
        match = [value for name, value in lines if name == b"if-match"]
        none = [value for name, value in lines if name == b"if-none-match"]
        return evaluate_preconditions(method, _CURRENT, if_match=match, if_none_match=none)

    return judged


def _timed(work: Callable[[], object], times: int) -> Callable[[], Timing]:
    def timed() -> Timing:
        begun = process_time()
        for _ in range(times):
            work()
        return Timing(cpu=process_time() - begun)

    return timed


# -- what a hostile request can cost ---------------------------------------------------------------


def _twice(place: Place, plan: Plan) -> Iterator[Line]:
    """Up to the limits, twice as long takes twice the time."""
    for what, piece, most in (
        ("tags", '"a",', MOST),
        ("characters of a tag", "a", LONGEST - 2),
        ("commas", ",", LONGEST),
        ("spaces", " ", LONGEST),
        ("lines", "", MOST),
    ):
        whole, half = _long(what, piece, most), _long(what, piece, most // 2)
        timings = interleave(
            {"half": _timed(half, 200), "optilock": _timed(whole, 200)},
            rounds=plan.rounds_for(MEDIUM),
        )
        ratios = {"optilock": ratio(timings, "optilock", "half", _CPU)}
        yield RatioLine(f"twice the {what}", place.label, most, "half", ratios, goal=_TWICE)


def _long(what: str, piece: str, times: int) -> Callable[[], object]:
    lines = [("If-Match", piece * times)]
    if what == "characters of a tag":
        lines = [("If-Match", f'"{piece * times}"')]
    elif what == "lines":
        lines = [("If-Match", '"a"')] * times
    return lambda: required("PUT", lines)


def _refused(place: Place, plan: Plan) -> Iterator[Line]:
    """What is longer is refused at once, however long it is."""
    for what, lines in {
        "8 KiB and a byte": [(b"if-match", b'"' + b"a" * (LONGEST - 1) + b'"')],
        "16 MiB": [(b"if-match", b'"a",' * (1 << 22))],
        "65 tags": [(b"if-match", b'"a",' * (MOST + 1))],
        "100,000 lines": [(b"if-match", b'"a"')] * 100_000,
    }.items():
        assert required("PUT", lines).status == 400
        slowest = max(
            _timed(lambda lines=lines: required("PUT", lines), 1)().cpu  # type: ignore[misc]
            for _ in range(40 * plan.rounds_for(LONG))
        )
        question = f"{what}: the slowest 400, µs"
        yield CountLine(question, place.label, 1, round(slowest * 1e6), goal=_REFUSED)
