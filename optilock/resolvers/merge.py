"""Field policies: one value out of three, or :class:`~optilock.errors.CannotMerge`.

Two transactions have read the same value and changed it. A policy gets the value that both had
read (``original``), the one that this transaction wants (``current``), and the one that the other
transaction has stored (``database``). It returns the value that keeps both changes::

    >>> from optilock.resolvers.merge import add_delta, merge_json, merge_set, merge_text
    >>> add_delta(100, 70, 150)                      # we took 30, they added 50
    120
    >>> merge_set(["a", "b"], ["a", "b", "c"], ["b", "d"])
    ['b', 'd', 'c']
    >>> merge_text("one two three", "ONE two three", "one two THREE")
    'ONE two THREE'
    >>> merge_json({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1})
    {'a': 2}

The rule: a change of one side is never dropped and never mixed with another into a value that
neither wrote. Where that is impossible, the policy raises ``CannotMerge``, and the conflict goes to
the caller. Its message names the place, never the values: values do not belong in logs.

Any callable ``(original, current, database) -> value`` is a policy: ``max`` is one. Policies are
given to :func:`~optilock.resolvers.rules.per_field`.

Edges: where one side left the value unchanged, the other side is the answer. Equal changes are that
value, except for :func:`add_delta`, where two additions of 1 are an addition of 2. ``None`` is not
a number, a set or a text, so nothing can be added to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Context, Decimal, DecimalException, DivisionByZero, Inexact, InvalidOperation
from decimal import Overflow as DecimalOverflow
from typing import Any

from optilock.errors import CannotMerge
from optilock.resolvers.diff3 import (
    Chunk,
    Effort,
    TooMuchWork,
    chunks,
    normalize_line_ends,
    restore_line_ends,
)

FieldPolicy = Callable[[Any, Any, Any], Any]


# -- numbers ---------------------------------------------------------------------------------------

#: Exact or not at all: a sum that would be rounded is refused.
_EXACT = Context(prec=1000, traps=[DivisionByZero, Inexact, InvalidOperation, DecimalOverflow])


def add_delta(original: Any, current: Any, database: Any) -> Any:
    """Return their number plus our change: ``database + (current - original)``.

    For int, float, Decimal and timedelta. An int may be combined with a float or a Decimal.
    Integers, decimals and time spans are added exactly, floats are rounded once, at the end. Raises
    ``CannotMerge`` for ``None``, for any other type (also bool), and for infinities and NaN.
    """
    values = (original, current, database)
    kinds = {_kind_of_number(value) for value in values}
    if database == original:
        return current
    if kinds == {timedelta}:
        return database + (current - original)
    if kinds == {int}:
        return database + (current - original)
    if kinds <= {int, Decimal}:
        return _exact_sum(original, current, database)
    if kinds <= {int, float}:
        return _rounded_sum(original, current, database)
    raise CannotMerge(
        "add_delta cannot add numbers of different kinds"
        f" ({', '.join(sorted(kind.__name__ for kind in kinds))})"
    )


def _kind_of_number(value: Any) -> type[Any]:
    for kind in (int, float, Decimal, timedelta):
        if isinstance(value, kind) and not isinstance(value, bool):
            if not _is_finite(value):
                raise CannotMerge("add_delta cannot add to infinity or NaN")
            return kind
    if value is None:
        raise CannotMerge("add_delta cannot merge NULL: there is no number to add to")
    raise CannotMerge(f"add_delta cannot add {_named(value)}")


def _is_finite(value: Any) -> bool:
    # math.isfinite() would make a float of a Decimal, and 1E+5000 infinite.
    if isinstance(value, Decimal):
        return value.is_finite()
    return not isinstance(value, float) or math.isfinite(value)


def _exact_sum(original: Any, current: Any, database: Any) -> Decimal:
    # Every step in this context: operators round to the 28 digits of the thread's own.
    exact = _EXACT.create_decimal
    try:
        delta = _EXACT.subtract(exact(current), exact(original))
        return _EXACT.add(exact(database), delta)
    except DecimalException:
        raise CannotMerge("add_delta cannot keep every digit of the sum") from None


def _rounded_sum(original: float, current: float, database: float) -> float:
    try:
        return math.fsum((database, current, -original))
    except OverflowError:
        raise CannotMerge("add_delta: the sum is too large for a float") from None


# -- sets ------------------------------------------------------------------------------------------


def merge_set(original: Any, current: Any, database: Any) -> Any:
    """Return their elements, without those that we removed, and with those that we added.

    For sets and frozensets, and for lists and tuples that are used as sets: the stored order
    stays, our additions follow in our order. The result has the type of ``database``. Raises
    ``CannotMerge`` for ``None``, for other types (a comma-separated string is not a set), for
    elements that cannot be hashed, and for a list that holds an element twice.
    """
    before, ours, theirs = (_elements(value) for value in (original, current, database))
    if list(theirs) == list(before):
        return current
    removed, added = before.keys() - ours.keys(), ours.keys() - before.keys()
    merged = [theirs[key] for key in theirs if key not in removed]
    merged += [ours[key] for key in ours if key in added and key not in theirs]
    return _set_type(database)(merged)


#: 1 and True are equal, and not the same element.
_Key = tuple[type[Any], Hashable]


def _elements(value: Any) -> dict[_Key, Any]:
    _set_type(value)
    try:
        found = {(type(element), element): element for element in value}
    except TypeError:
        raise CannotMerge("merge_set needs elements that can be hashed") from None
    if len(found) != len(value):
        raise CannotMerge("merge_set cannot merge a list that holds an element twice")
    return found


def _set_type(value: Any) -> Callable[[Iterable[Any]], Any]:
    for kind in (set, frozenset, list, tuple):
        if isinstance(value, kind):
            return kind
    hint = ": text is not a set, store a list" if isinstance(value, str) else ""
    raise CannotMerge(f"merge_set cannot merge {_named(value)}{hint}")


# -- text ------------------------------------------------------------------------------------------

#: Comparisons in one merge: about half a second of CPU time. Rows are locked for that time.
_STEPS = 5_000_000

LINES = re.compile(r"[^\n]*\n|[^\n]+")
#: A word is the text between white space ("10.50" is one word), with the space that follows it.
WORDS = re.compile(r"\S+\s*|\s+")


def merge_text(original: str, current: str, database: str) -> str:
    """Merge both edits of a text line by line, and word by word where both changed the same lines.

    Two edits clash when no unchanged line, or inside changed lines no unchanged word, lies between
    them. Then ``CannotMerge`` is raised, as it is for values that are no ``str``, and for texts so
    long and so repetitive that comparing them would take more than about half a second.

    Line ends are no difference, because browsers send CR and LF whichever they received. The result
    has those of ``database`` (:mod:`optilock.resolvers.diff3`).
    """
    for value in (original, current, database):
        if not isinstance(value, str):
            raise CannotMerge(f"merge_text cannot merge {_named(value)}")
    before, ours, theirs = (
        normalize_line_ends(original),
        normalize_line_ends(current),
        normalize_line_ends(database),
    )
    if ours in (before, theirs):
        return database
    merged = ours if theirs == before else _merged_text(before, ours, theirs)
    return restore_line_ends(merged, database, original)


def _merged_text(*texts: str) -> str:
    try:
        return merge_lines(*texts, settle=_refused)
    except TooMuchWork:
        raise CannotMerge("merge_text: the texts are too long and too repetitive") from None


def _refused(clash: Chunk) -> list[str]:
    raise CannotMerge(f"merge_text: both sides changed the text at line {clash.start + 1}")


def merge_lines(
    original: str, current: str, database: str, *, settle: Callable[[Chunk], list[str]]
) -> str:
    """Merge three texts with LF; ``settle`` makes the lines where the same words were changed.

    Raises :class:`~optilock.resolvers.diff3.TooMuchWork`.
    """
    effort = Effort(_STEPS)

    def by_words(clash: Chunk) -> list[str]:
        texts = (_joined(clash.original), _joined(clash.current), _joined(clash.database))
        try:
            return _merged(_cut(WORDS, texts), effort, _words_clash)
        except _WordsClash:
            return settle(clash)

    return "".join(_merged(_cut(LINES, (original, current, database)), effort, by_words))


class _WordsClash(Exception):
    """No unchanged word lies between two edits."""


def _words_clash(_: Chunk) -> list[str]:
    raise _WordsClash


def _cut(pattern: re.Pattern[str], texts: Iterable[str]) -> list[list[str]]:
    return [pattern.findall(text) for text in texts]


def _joined(pieces: Sequence[Any]) -> str:
    return "".join(pieces)


def _merged(
    sides: list[list[str]], effort: Effort, settle: Callable[[Chunk], list[str]]
) -> list[str]:
    """Return the pieces of the merged text; ``settle`` merges a chunk that both sides changed."""
    original, current, database = sides
    merged: list[Any] = []
    for chunk in chunks(original, current, database, effort):
        if chunk.current in (chunk.original, chunk.database):
            merged += chunk.database
        elif chunk.database == chunk.original:
            merged += chunk.current
        else:
            merged += settle(chunk)
    return merged


# -- JSON ------------------------------------------------------------------------------------------


class _Absent:
    """An object does not have the member. That is a value of its own: it is not null."""


_ABSENT = _Absent()


def merge_json(original: Any, current: Any, database: Any) -> Any:
    """Merge both changes of a JSON value, member by member.

    Equal values are kept (``1`` is not ``True``, and not ``1.0``). Where one side is unchanged, the
    other is taken. Objects are merged by member, and removing a member is a change of it. An array
    is one value, and a side that changed it replaced it. Any other change by both sides raises
    ``CannotMerge`` with the place as a JSON Pointer (RFC 6901). The stored order of members stays,
    our additions follow.
    """
    try:
        return _merge_json(original, current, database, "")
    except RecursionError:
        raise CannotMerge("merge_json: the value is nested too deeply") from None


def _merge_json(original: Any, current: Any, database: Any, path: str) -> Any:
    if _same(current, database) or _same(current, original):
        return database
    if _same(database, original):
        return current
    if not all(isinstance(value, Mapping) for value in (original, current, database)):
        raise CannotMerge(f"merge_json: both sides changed {path or 'the whole value'}")
    merged = {}
    for name in [*database, *(name for name in current if name not in database)]:
        before, ours, theirs = (side.get(name, _ABSENT) for side in (original, current, database))
        value = _merge_json(before, ours, theirs, f"{path}/{_escaped(name)}")
        if value is not _ABSENT:
            merged[name] = value
    return merged


def _escaped(name: Any) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    # NaN, which Python's json reads and writes, is the one value that differs from itself.
    return type(a) is type(b) and bool(a == b or (a != a and b != b))


def _named(value: Any) -> str:
    return "NULL" if value is None else f"a value of type {type(value).__name__}"
