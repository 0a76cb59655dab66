"""A few of the trials of ``checks/lease_trials.py``; that script runs any number of them."""

from __future__ import annotations

from typing import Any

import pytest

from checks.lease_trials import WRONG, race, stopped

pytestmark = pytest.mark.full


def test_a_holder_who_was_stopped_writes_nothing_after_the_end_of_his_lease(database: Any) -> None:
    found = stopped(database, 8)
    assert (found["trials"], found["told that it is lost"]) == (8, 8)
    assert found["written in time"] > 0
    assert [found[one] for one in WRONG] == [0] * len(WRONG), found


def test_of_eight_who_want_it_one_is_the_holder_at_any_time(database: Any, tries: Any) -> None:
    found = race(database, tries(0, 2, 4))
    assert (found["disturbed"], found["older"]) == (0, 0)
    assert found["held"] == found["holders"] == found["last number"] > 0
