"""Many writers on all nodes, and decisions that two nodes make at once.

The longer forms are programs: ``python -m checks.deployments.galera.writers --seconds 60``, and
``python -m checks.deployments.galera.skews --rounds 200``.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from checks.deployments.galera.cluster import Cluster
from checks.deployments.galera.skews import rounds
from checks.deployments.galera.writers import ROWS, START, Bare, Row, write
from checks.history import appends
from checks.history.load import Place, load, of_cluster, quiet


def test_no_acknowledged_unit_is_lost_or_doubled_while_a_node_is_killed_and_comes_back(
    cluster: Cluster,
) -> None:
    told = write(cluster, Row, 16)
    assert len(told.acknowledged) > 100
    assert (told.lost, told.doubled, told.half_done) == ([], [], []), str(told)
    assert told.counted == told.stored.total()
    assert told.money == ROWS * START


def test_without_a_version_units_are_lost(cluster: Cluster) -> None:
    assert write(cluster, Bare, 4, kills=0).lost


@pytest.mark.parametrize("how", ["verify", "verify, pessimistic", "verify_reads", "touch"])
def test_no_two_nodes_decide_on_what_the_other_one_changes(cluster: Cluster, how: str) -> None:
    told = rounds(cluster, how, 60)
    assert told["both"] == 0, told
    assert told["one"] > 30, told


def test_a_lock_of_a_row_does_not_reach_the_other_node(cluster: Cluster) -> None:
    assert rounds(cluster, "lock", 20)["both"] > 0


@pytest.mark.parametrize("broken", [None, "versions"])
def test_histories_of_clients_on_all_nodes_lose_and_double_nothing(
    cluster: Cluster, tmp_path: Path, broken: str | None
) -> None:
    """Under faults; and without versions they lose, which is the test of the test."""
    made, plain = of_cluster(cluster, {"pool_size": 6})
    appends.make(plain)
    options = Namespace(way="units", broken=broken, exactly_once=False, clients=9, first=1)
    options.seconds, options.faults = 4, broken is None
    with quiet():
        outcome = load(Place("galera", [*made], plain), options, tmp_path)
    for engine in (*made, plain):
        engine.dispose()
    assert bool(outcome.broken["lost"]) is (broken is not None), str(outcome)
    assert broken or not outcome.broken, str(outcome)
