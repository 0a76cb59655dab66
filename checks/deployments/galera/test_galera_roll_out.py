"""A version for a table of a cluster: every node gets it, or nothing is changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from checks.deployments.galera.cluster import Cluster
from optilock import ConfigurationError, OptilockError, is_transient
from optilock.cli import commands
from optilock.rollout import Report, roll_out
from optilock.rollout.report import Silent
from optilock.rollout.run import abort
from optilock.tokens import Counter, Unique
from tests.support.migrating import migrate

Engines = list[Engine]

COLUMNS = (
    "SELECT column_name, is_nullable FROM information_schema.columns"
    " WHERE table_schema = 'test' AND table_name = 'parcels' ORDER BY column_name"
)
TRIGGERS = "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = 'test'"
VERSIONED = [("id", "NO"), ("owner", "YES"), ("version", "NO")]


@pytest.fixture(autouse=True)
def parcels(cluster: Cluster) -> None:
    cluster.nodes[0].ask(
        "CREATE TABLE test.parcels (id INTEGER PRIMARY KEY, owner VARCHAR(20))",
        "INSERT INTO test.parcels SELECT seq, 'Ada' FROM test.seq_1_to_2000",
    )
    cluster.agree("SELECT COUNT(*) FROM parcels")


@pytest.fixture(params=[0, 1], ids=["on this node", "on another node"])
def busy(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Connection]:
    """A transaction that has read the table, and has written a row of it."""
    # The ROLLBACK of an engine that nobody watches may be told what has ended its transaction.
    with suppress(OperationalError), engines[request.param].connect() as connection:
        connection.execute(text("SELECT * FROM parcels"))
        connection.execute(text("UPDATE parcels SET owner = 'Bob' WHERE id = 1"))
        yield connection


def test_a_roll_out_beside_an_open_transaction_leaves_all_nodes_equal(
    cluster: Cluster, engines: Engines, busy: Connection
) -> None:
    report = roll_out(engines[0], "parcels", token=Counter(), guard="bump")
    assert report.filled == 2000
    with pytest.raises(OperationalError) as caught:
        busy.execute(text("UPDATE parcels SET owner = 'Bob' WHERE id = 2"))
    assert is_transient(caught.value)
    assert cluster.agree(COLUMNS) == VERSIONED
    assert len(cluster.agree(TRIGGERS)) == 1
    assert cluster.agree("SELECT DISTINCT version FROM parcels") == [(1,)]


def test_of_two_roll_outs_from_two_nodes_one_is_refused(cluster: Cluster, engines: Engines) -> None:
    told: list[Report | OptilockError] = []

    class Other(Silent):
        def step(self, name: str, total: int | None = None) -> None:
            try:
                roll_out(engines[1], "parcels", token=Unique())
            except OptilockError as error:
                told.append(error)

    roll_out(engines[0], "parcels", token=Unique(), progress=Other())
    assert len(told) == 3
    assert all("Another roll-out of parcels is running" in str(error) for error in told)
    assert cluster.agree(COLUMNS) == VERSIONED


def test_two_roll_outs_that_begin_at_once_leave_all_nodes_equal(
    cluster: Cluster, engines: Engines
) -> None:
    together, told = threading.Barrier(2), []

    def begin(engine: Engine) -> None:
        together.wait()
        try:
            told.append(roll_out(engine, "parcels", token=Counter()).filled)
        except OptilockError as error:
            told.append(error)

    threads = [threading.Thread(target=begin, args=(engine,)) for engine in engines[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(filled for filled in told if isinstance(filled, int)) == 2000, told
    assert cluster.agree(COLUMNS) == VERSIONED


def test_a_table_that_is_not_the_same_on_all_nodes_is_told(
    cluster: Cluster, engines: Engines
) -> None:
    cluster.nodes[1].ask(
        "SET SESSION wsrep_on = OFF",
        "ALTER TABLE test.parcels ADD COLUMN version INT NOT NULL DEFAULT 1",
    )
    with pytest.raises(OptilockError, match="do not have the same table parcels") as caught:
        roll_out(engines[1], "parcels", token=Counter())
    assert f"127.0.0.1:{cluster.nodes[0].port} has none" in str(caught.value)
    cluster.nodes[1].ask(
        "SET SESSION wsrep_on = OFF", "ALTER TABLE test.parcels DROP COLUMN version"
    )


def test_a_node_that_keeps_changes_of_tables_to_itself_is_refused(
    cluster: Cluster, engines: Engines
) -> None:
    engine = create_engine(f"{cluster.nodes[0].url}?init_command=SET SESSION wsrep_OSU_method=RSU")
    with pytest.raises(ConfigurationError, match="RSU"):
        roll_out(engine, "parcels")
    engine.dispose()
    assert cluster.agree(COLUMNS) == [("id", "NO"), ("owner", "YES")]


@pytest.mark.parametrize(
    ("named", "match"),
    [
        (["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], "does not answer"),
        (["127.0.0.1:1"], "3 nodes"),
        (["a", "b", "c"], "name all of them"),
    ],
)
def test_nothing_is_changed_where_not_every_node_can_be_asked(
    cluster: Cluster, engines: Engines, named: list[str], match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        roll_out(engines[0], "parcels", nodes=named)
    assert cluster.agree(COLUMNS) == [("id", "NO"), ("owner", "YES")]


def test_the_command_takes_the_addresses_of_the_nodes(cluster: Cluster) -> None:
    nodes = [word for node in cluster for word in ("--node", f"localhost:{node.port}")]
    command = ["migrate", "parcels", "--url", cluster.nodes[0].url, *nodes]
    ended = CliRunner().invoke(commands(), command)
    assert ended.exit_code == 0, ended.output
    assert cluster.agree(COLUMNS) == VERSIONED


def test_an_operation_takes_the_addresses_of_the_nodes(cluster: Cluster, engines: Engines) -> None:
    nodes = [f"localhost:{node.port}" for node in cluster]

    def named(addresses: list[str]) -> None:
        roll = {"token": Counter(), "nodes": addresses}
        migrate(engines[0], lambda op: op.roll_out_version_column("parcels", **roll))

    with pytest.raises(ConfigurationError, match="3 nodes"):
        named(nodes[:1])
    named(nodes)
    assert cluster.agree(COLUMNS) == VERSIONED


def test_what_is_taken_back_is_gone_on_all_nodes(
    cluster: Cluster, engines: Engines, busy: Connection
) -> None:
    cluster.nodes[0].ask("ALTER TABLE test.parcels ADD COLUMN version INT NULL DEFAULT 1")
    abort(engines[0], "parcels", token=Counter())
    assert cluster.agree(COLUMNS) == [("id", "NO"), ("owner", "YES")]
