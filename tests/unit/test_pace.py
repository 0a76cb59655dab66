"""How many rows at a time, and how long to rest."""

from __future__ import annotations

import math

import pytest

from optilock import ConfigurationError
from optilock.rollout.fill import Pace, pace_of


def test_a_batch_that_took_too_long_is_followed_by_a_smaller_one():
    pace = Pace(seconds=0.01)
    assert pace.next(1000, 0.02) == 500


def test_a_batch_that_was_quick_is_followed_by_one_twice_as_large_at_most():
    pace = Pace(seconds=0.01)
    assert pace.next(1000, 0.0001) == 2000
    assert pace.next(1000, 0.0) == 2000


def test_the_size_stays_within_its_limits():
    pace = Pace(smallest=10, largest=100)
    assert pace.next(100, 1e-9) == 100
    assert pace.next(10, 1e9) == 10


def test_it_rests_in_proportion_to_its_work():
    assert Pace(share=0.5).rest(100, 0.2) == pytest.approx(0.2)
    assert Pace(share=1.0).rest(100, 0.2) == 0


def test_a_rate_makes_it_rest_longer():
    assert Pace(rate=100, share=1.0).rest(50, 0.1) == pytest.approx(0.4)
    assert Pace(rate=1).first() == 1


def test_a_busy_server_is_given_longer_rests():
    assert Pace().rest(100, 0.02) > 0.1
    assert Pace().rest(100, 0.04) == pytest.approx(2 * Pace().rest(100, 0.02))


def test_a_batch_that_was_asked_for_has_that_many_rows_however_long_it_takes():
    pace = pace_of(None, 2000, 0.15)
    assert pace.first() == pace.next(2000, 9.0) == pace.next(2000, 1e-9) == 2000
    assert pace_of(500, 2000, 1).first() == 500


def test_who_may_work_all_the_time_does_not_rest():
    assert pace_of(None, None, 1).rest(100, 0.5) == 0


@pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan, True, "9"])
def test_a_rate_is_a_number_of_rows(rate):
    with pytest.raises(ConfigurationError, match="rate="):
        pace_of(rate, None, 0.15)


@pytest.mark.parametrize("batch", [0, -1, 10_001, 5.0, True, "9"])
def test_a_batch_is_a_number_of_rows(batch):
    with pytest.raises(ConfigurationError, match="batch="):
        pace_of(None, batch, 0.15)


@pytest.mark.parametrize("share", [0, -1, 1.1, math.inf, math.nan, True])
def test_a_share_is_a_part_of_the_time(share):
    with pytest.raises(ConfigurationError, match="share="):
        pace_of(None, None, share)
