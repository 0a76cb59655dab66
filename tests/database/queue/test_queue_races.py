"""Workers that are killed while they work: see :mod:`tests.support.queue_races`."""

from __future__ import annotations

import pytest

from tests.support.queue_races import race


@pytest.mark.full
@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
@pytest.mark.timeout(300)
def test_nothing_is_lost_and_nobody_has_what_another_one_has(database):
    outcome = race(database.url, messages=500, workers=3, kills=4)
    assert outcome.good, outcome
    assert outcome.deliveries >= 500
