"""Workers that are killed: see :mod:`checks.queue_races` and :mod:`checks.queue_chaos`."""

from __future__ import annotations

import pytest

from checks.queue_chaos import Plan, run
from checks.queue_races import race


@pytest.mark.full
@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
@pytest.mark.timeout(300)
def test_nothing_is_lost_and_nobody_has_what_another_one_has(database):
    outcome = race(database.url, messages=500, workers=3, kills=4)
    assert outcome.good, outcome
    assert outcome.deliveries >= 500


@pytest.mark.full
@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
@pytest.mark.timeout(300)
def test_each_effect_is_stored_once_whatever_handlers_do(database):
    """E1, E2: they hang, raise what has no text, and are killed."""
    outcome = run(database.url, Plan(messages=200, workers=2, kills=4, hangs=2, raises=2))
    assert outcome.good, outcome
    assert (outcome.effects, outcome.kills) == (200, 4)
    assert outcome.hung
