"""How many rows at a time, and how long to rest."""

from __future__ import annotations

import pytest

from optilock.rollout.fill import Pace


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
