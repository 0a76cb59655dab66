"""The cluster that tests are given: private, and gone with whoever holds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from checks.deployments.galera.cluster import Cluster
from tests.support.waiting import until

HOLDER = """
import time
from checks.deployments.galera.cluster import running

with running(1) as cluster:
    print(cluster.nodes[0].user.folder, flush=True)
    time.sleep(60)
"""


def test_three_nodes_listen_on_this_machine_only_and_have_one_state(cluster: Cluster) -> None:
    assert cluster.agree("SHOW STATUS LIKE 'wsrep_cluster_size'") == [("wsrep_cluster_size", "3")]
    assert cluster.agree("SELECT @@bind_address") == [("127.0.0.1",)]


def test_a_holder_that_is_killed_leaves_no_node_and_no_folder() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        number = (folder / "pid").read_text().strip()
        holder.kill()
    until(lambda: not folder.exists(), every=0.1)
    command = subprocess.run(["ps", "-o", "command=", "-p", number], capture_output=True, text=True)
    assert str(folder) not in command.stdout
