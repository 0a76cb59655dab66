"""The servers of a cluster: all of them have the table, and all of them have the same.

One server changes a table for all of them. The others are asked before, because nobody should begin
what nobody can look at afterwards, and compared with it at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine, MetaData, NullPool, Table, create_engine, text
from sqlalchemy.exc import DBAPIError

from optilock.dialects.migrations import Ways
from optilock.errors import ConfigurationError, OptilockError
from optilock.rollout.attempts import Attempts

__all__ = ["same_on_all"]


@contextmanager
def same_on_all(
    engine: Engine, attempts: Attempts, table: str, schema: str | None, named: Sequence[str]
) -> Iterator[None]:
    """For the length of a roll-out that ends well: ask the nodes before, compare them afterwards.

    Raises:
        ConfigurationError: the cluster does not work, or a node cannot be asked.
        OptilockError: they do not have the same table.
    """
    nodes = Nodes.of(engine, attempts.connection, attempts.ways, named)
    yield
    nodes.compare(Table(table, MetaData(), schema=schema))


class Nodes:
    """``host:port`` of each; none where the server is alone."""

    def __init__(self, url: URL, ways: Ways, addresses: Sequence[str]) -> None:
        self._url = url
        self._ways = ways
        self.addresses = addresses

    @classmethod
    def of(cls, engine: Engine, connection: Connection, ways: Ways, named: Sequence[str]) -> Nodes:
        """Those of the cluster that ``connection`` belongs to, each of which answers.

        Raises:
            ConfigurationError: the cluster does not work, or a node cannot be asked.
        """
        with connection.begin():
            found = cls(engine.url, ways, ways.nodes(connection, named))
        for address in found.addresses:
            try:
                with found._asked(address) as node:
                    node.execute(text("SELECT 1"))
            except DBAPIError as error:
                raise ConfigurationError(
                    f"The node {address} of the cluster does not answer, so nobody could tell"
                    " whether it has the same table afterwards. Nothing was changed: name all"
                    " nodes as they are reached from here, with nodes=['host:port', ...]"
                    " (--node host:port)."
                ) from error
        return found

    def compare(self, table: Table) -> None:
        """Look whether all of them have the same.

        Raises:
            OptilockError: one has something else, or cannot be asked any more.
        """
        made = {address: self._made(address, table) for address in self.addresses}
        if all(one == next(iter(made.values())) for one in made.values()):
            return
        told = "; ".join(f"{name}: {self._said(name, made)}" for name in sorted(_differing(made)))
        raise OptilockError(
            f"The nodes of the cluster do not have the same table {table.fullname}. {told}. A node"
            " that has another table may stop at the next write: take it out of the cluster and"
            " let it come back with a copy of the data (remove its grastate.dat), or send on that"
            " node alone, after SET SESSION wsrep_on = OFF, what it lacks. Then run this again."
        )

    def _made(self, address: str, table: Table) -> Mapping[str, object]:
        try:
            with self._asked(address) as node:
                return self._ways.made(node, table)
        except DBAPIError as error:
            raise OptilockError(
                f"The node {address} of the cluster answers no more, so nobody knows whether it"
                f" has the same table {table.fullname}. What was done stays done: run the roll-out"
                " again when the node is back, it then compares them."
            ) from error

    def _said(self, name: str, made: Mapping[str, Mapping[str, object]]) -> str:
        return ", ".join(f"{node} has {one.get(name) or 'none'}" for node, one in made.items())

    @contextmanager
    def _asked(self, address: str) -> Iterator[Connection]:
        host, _, port = address.rpartition(":")
        url = self._url.set(host=host, port=int(port)).difference_update_query(["unix_socket"])
        engine = create_engine(url, poolclass=NullPool)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()


def _differing(made: Mapping[str, Mapping[str, object]]) -> set[str]:
    """The names of what is not the same on all of them."""
    names = {name for one in made.values() for name in one}
    return {name for name in names if len({str(one.get(name)) for one in made.values()}) > 1}
