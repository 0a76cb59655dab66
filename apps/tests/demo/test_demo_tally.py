"""Conflicts are counted once, whether the guard reports them or the database refuses."""

from __future__ import annotations

from typing import Any

from optilock_apps.demo.run import Tally, counting

from optilock import Entry, events
from optilock.leases import LeaseHeld

RETRY = events.Retry(attempt=1, wait=0.0, error=RuntimeError())
COMMITTED = events.Committed(attempts=2, seconds=0.1)


def entry(*conflicting: str) -> Entry[Any]:
    return Entry(
        model=dict,
        identity=("with",),
        kind="updated",
        action="update",
        original={},
        current={},
        database={},
        changes={},
        conflicting=frozenset(conflicting),
    )


def after(*happened: events.Event) -> Tally:
    tally = Tally()
    for event in happened:
        tally(event)
    return tally


def test_a_conflict_that_is_reported_and_then_retried_is_one_conflict() -> None:
    tally = after(events.Conflict((entry(),)), RETRY, COMMITTED)
    assert (tally.conflicts, tally.retries) == (1, 1)


def test_a_retry_without_a_report_is_a_conflict_that_the_database_saw() -> None:
    tally = after(RETRY, RETRY, COMMITTED)
    assert (tally.conflicts, tally.retries) == (2, 2)


def test_a_page_that_is_leased_is_asked_for_again_and_is_no_conflict() -> None:
    held = events.Retry(attempt=1, wait=0.0, error=LeaseHeld("WikiPage 'with'", "leased"))
    tally = after(held, held, COMMITTED, RETRY)
    assert (tally.conflicts, tally.retries) == (1, 3)


def test_a_conflict_of_one_unit_does_not_hide_the_retry_of_the_next() -> None:
    resolved = (events.Conflict((entry(),)), events.Resolved((entry(),)), COMMITTED)
    tally = after(*resolved, RETRY, COMMITTED)
    assert (tally.conflicts, tally.resolved, tally.retries) == (2, 1, 1)


def test_the_first_resolved_conflict_in_the_text_is_kept_to_be_told() -> None:
    dull, first, second = entry("tags"), entry("body"), entry("body", "tags")
    assert after(*(events.Resolved((each,)) for each in (dull, first, second))).told is first


def test_counting_ends_with_the_block() -> None:
    with counting() as tally:
        events.emit(lambda: RETRY)
    events.emit(lambda: RETRY)
    assert tally.retries == 1
