"""A table that is changed on every node of a Galera cluster.

A node sends a statement that changes a table to all nodes, as text ("total order isolation"). Each
carries it out at the same place among the write sets, and ends the transactions that have the
table: they get 1213, and run again. A statement that gives up waiting does so on each node for
itself: ``ALTER TABLE … NOWAIT`` was carried out where nobody had the table, and ignored on the node
where somebody had, without an error. So nothing is limited here, and nothing interrupted.

How a node sends it can be set (``wsrep_OSU_method``): with RSU it keeps the statement to itself.
And whoever has changed a table without the others (``wsrep_on = OFF``) has made two tables of it.
So the nodes are asked before and compared afterwards.
(https://galeracluster.com/library/documentation/schema-upgrades.html)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, Table, text

from optilock.dialects.mariadb.galera import see_what_others_have_committed
from optilock.dialects.mariadb.table_locks import limited
from optilock.errors import ConfigurationError

__all__ = ["made", "nodes", "together"]

#: A year: the limit that a server has without settings is a day.
_FOR_EVER = 31_536_000


@contextmanager
def together(connection: Connection) -> Iterator[None]:
    """Let the statement wait on this node as long as it does on the others."""
    with limited(connection, _FOR_EVER):
        yield


def nodes(connection: Connection, named: Sequence[str]) -> Sequence[str]:
    """``host:port`` of every node; those that the cluster tells, unless they are ``named``.

    Raises:
        ConfigurationError: this node is none of a cluster that works, or would keep the change to
            itself; or not all of them are known.
    """
    told = dict(map(tuple, connection.execute(text("SHOW STATUS LIKE 'wsrep_%'")).all()))
    state, method = told.get("wsrep_local_state_comment"), _method(connection)
    if told.get("wsrep_cluster_status") != "Primary" or state != "Synced":
        raise ConfigurationError(
            f"This node of the cluster is {state} ({told.get('wsrep_cluster_status')}), so it"
            " cannot change a table on the others. Nothing was changed: wait until it is Synced,"
            " or use another node."
        )
    if method != "TOI":
        raise ConfigurationError(
            f"wsrep_OSU_method is {method} on this node, which keeps the change of a table to the"
            " node: the others would have another table. Nothing was changed: set it to TOI."
        )
    told_by_cluster = str(told.get("wsrep_incoming_addresses", "")).split(",")
    found = list(named) or [address.strip() for address in told_by_cluster]
    size = int(str(told.get("wsrep_cluster_size", 0)))
    if len({*found}) != size or not all(map(_is_address, found)):
        raise ConfigurationError(
            f"The cluster has {size} nodes, and the roll-out has to look at each of them. It knows"
            f" of {', '.join(found) or 'none'}. Nothing was changed: name all of them, the one of"
            " the URL too, with nodes=['host:port', ...] (--node host:port)."
        )
    return found


def _is_address(given: str) -> bool:
    host, _, port = given.rpartition(":")
    return bool(host) and port.isdigit()


def _method(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT @@SESSION.wsrep_OSU_method"))).upper()


_COLUMNS = (
    "SELECT column_name, CONCAT_WS(' ', column_type, IF(is_nullable = 'NO', 'NOT NULL', 'NULL'),"
    " CONCAT('DEFAULT ', column_default), NULLIF(extra, ''))"
    " FROM information_schema.columns"
    " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
_TRIGGERS = (
    "SELECT trigger_name,"
    " CONCAT_WS(' ', action_timing, event_manipulation, MD5(action_statement))"
    " FROM information_schema.triggers"
    " WHERE event_object_schema = COALESCE(:schema, DATABASE()) AND event_object_table = :name"
)


def made(connection: Connection, table: Table) -> Mapping[str, object]:
    """Its columns and triggers on this node, once all is done that the others have sent before."""
    see_what_others_have_committed(connection)
    named = {"schema": table.schema, "name": table.name}
    columns = {f"column {n}": what for n, what in connection.execute(text(_COLUMNS), named)}
    triggers = {f"trigger {n}": what for n, what in connection.execute(text(_TRIGGERS), named)}
    return {**columns, **triggers}
