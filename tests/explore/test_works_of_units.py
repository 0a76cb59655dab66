"""Units of optilock's own kinds, explored in pairs: none loses what another one has stored."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

import pytest
from sqlalchemy.orm import Session

from checks.explore.pairs import GUARDED, LIKES
from checks.explore.rows import Guarded, Likes
from optilock import (
    lock,
    merge_fields,
    touch,
    unit_of_work,
    verify,
    watch,
)
from optilock.testing import explore

#: An increment of the row, and of another column, in each way.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pipelined": {"pipelined": True},
    "pessimistic": {"strategy": "pessimistic"},
    "verifying reads": {"verify_reads": True},
}
ENGINES = {"pipelined": ("postgresql",)}


def options_of(sessions: Any, **options: Any) -> Callable[[Any], Callable[[], Any]]:
    return unit_of_work(watch(sessions), attempts=6, **options)


def increment(session: Session) -> int:
    row = session.get_one(Guarded, 1)
    row.n += 1
    return row.n


def locked(session: Session) -> int:
    row = session.get_one(Guarded, 1)
    lock(row)
    session.refresh(row)
    row.n += 1
    return row.n


def note(session: Session) -> None:
    session.get_one(Guarded, 1).note += 1


def touched(session: Session) -> None:
    touch(session.get_one(Guarded, 1))


def verified(session: Session) -> int:
    first, second = session.get_one(Guarded, 1), session.get_one(Guarded, 2)
    verify(second)
    first.n = second.n + 1
    return first.n


def liked(session: Session) -> None:
    session.get_one(Likes, 1).n += 1


def liked_and_noted(session: Session) -> None:
    row = session.get_one(Likes, 1)
    row.n += 1
    row.note += 1


WORKS = [increment, locked, note, touched, verified, liked, liked_and_noted]
PAIRS = [*combinations_with_replacement(WORKS, 2)]


@pytest.mark.full
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(one.__name__ for one in pair))
def test_no_two_units_of_optilock_lose_what_the_other_one_has_stored(
    pair: tuple[Any, Any], sessions: Any, put_back: Any
) -> None:
    units = [options_of(sessions)(work) for work in pair]
    found = explore(*units, sessions=sessions, reset=put_back(GUARDED | LIKES), limit=400)
    assert found.failures == (), str(found)
    assert not found.unreached


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_with_each_option_of_a_unit(
    kind: str, sessions: Any, put_back: Any, engine: Any
) -> None:
    if not engine.dialect.name.startswith(ENGINES.get(kind, ("",))):
        pytest.skip("its driver has no such option")
    with_option = options_of(sessions, **KINDS[kind])(increment)
    for other in (with_option, options_of(sessions)(increment), options_of(sessions)(note)):
        found = explore(with_option, other, sessions=sessions, reset=put_back(GUARDED), limit=400)
        assert found.failures == (), str(found)
        assert found.complete


@pytest.mark.full
def test_equal_edits_of_one_column_are_one_edit_for_merge_fields(
    sessions: Any, put_back: Any
) -> None:
    """So an increment is a column of ``__version_commutes__``, or has no such resolver."""
    merging = options_of(sessions, on_conflict=merge_fields)
    units = merging(increment), merging(increment)
    found = explore(*units, sessions=sessions, reset=put_back(GUARDED))
    assert {one.anomaly for one in found.failures} == {"lost update"}
    units = merging(liked), merging(liked_and_noted)
    assert not explore(*units, sessions=sessions, reset=put_back(LIKES)).failures
