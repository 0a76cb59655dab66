"""Units, entities, leases and messages through a pooler: none is lost, and nothing stays on it."""

from __future__ import annotations

import pytest

from checks.deployments.messages import messages
from checks.deployments.pgbouncer.pooler import SETTINGS
from checks.deployments.pgbouncer.run import DRIVERS, written
from checks.deployments.writers import STORIES

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("way", DRIVERS)
def test_no_unit_is_lost_and_none_ends_in_an_error(pooler, way, story):
    tally, verdict = written(pooler, way, story, seconds=1.5)
    assert verdict.harm == 0, verdict
    assert not tally.refused
    assert not tally.unknown
    assert verdict.stored > 20


@pytest.mark.parametrize("way", DRIVERS)
def test_two_processes_whose_drivers_begin_to_count_at_one_do_not_meet(pooler, way):
    tally, verdict = written(pooler, way, "units", seconds=1.5, processes=2)
    assert verdict.harm == 0, verdict
    assert not tally.refused


@pytest.mark.parametrize("way", DRIVERS)
def test_a_worker_gets_every_message_once(pooler, way):
    driver, is_async = DRIVERS[way]
    url, settings = pooler.url(driver), SETTINGS[driver]
    booked = messages(pooler.server.url, url, settings, 100, is_async=is_async)
    assert {*booked.values()} == {1}
