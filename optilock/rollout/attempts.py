"""The connections of a roll-out, and its short transactions that are tried again.

A roll-out has two connections of its engine: one works, the other one locks the claim. On a Galera
cluster it also connects to every node: one node changes a table for all of them, so the others are
checked before and compared at the end (:func:`compare_nodes`). ``dry_run`` and ``abort`` use the
same connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import tenacity
from sqlalchemy import URL, Connection, Engine, MetaData, NullPool, Table, create_engine, text
from sqlalchemy.exc import DBAPIError, TimeoutError

from optilock._watched.session.connections import require_engine
from optilock.dialects import Database, database_of
from optilock.dialects.causes import Cause
from optilock.dialects.connections import roll_back_all
from optilock.dialects.migrations import Ways
from optilock.errors import ConfigurationError, OptilockError, describe
from optilock.rollout.claim import TERM, Claim
from optilock.rollout.report import Progress, Silent
from optilock.unit.durations import Seconds, full_jitter, in_seconds

#: Seconds to wait for one lock, and to continue trying.
LOCK_TIMEOUT, PATIENCE = 0.1, 60.0


@contextmanager
def open_attempts(
    engine: Engine,
    table: str,
    *,
    lock_timeout: Seconds,
    patience: Seconds,
    progress: Progress | None,
    call: str,
) -> Iterator[Attempts]:
    """Open two connections. ``call`` is the function name used in error messages."""
    require_engine(engine, call)
    if not isinstance(table, str):
        raise ConfigurationError(f"{call}() takes the name of a table, not {describe(table)}.")
    ways = database_of(engine.dialect).rollout()
    if ways.speaks is None:
        raise ConfigurationError(
            f"optilock cannot roll out versions on {engine.dialect.name}: add the column with a"
            " migration of your own."
        )
    wait, patience = in_seconds("lock_timeout", lock_timeout), in_seconds("patience", patience)
    with engine.connect() as connection, _lock_connection(engine, ways) as second:
        working = connection.execution_options(**ways.options)
        ways.prepare(working)
        progress = Silent() if progress is None else progress
        yield Attempts(working, ways, progress, wait, patience, second=second)


@contextmanager
def _lock_connection(engine: Engine, ways: Ways) -> Iterator[Connection | None]:
    """Open a connection that locks the claim while the other one works, if there are row locks."""
    if database_of(engine.dialect).locks.one_lock:
        yield None
        return
    try:
        connection = engine.connect()
    except TimeoutError as error:
        raise ConfigurationError(
            "A roll-out takes two connections of its engine, and the pool gave one: make an engine"
            " for it with poolclass=NullPool."
        ) from error
    with connection:
        yield connection.execution_options(**ways.options)


T = TypeVar("T")
#: After a wait for a lock it rests this many times as long: others may have queued behind it.
_REST = 9
_LONGEST_REST = 2.0
#: Seconds to wait for the table of the claim, which only roll-outs use.
_CLAIM_TIMEOUT = 2.0
#: Attempts to give the claim back if the connection is lost.
_RELEASE_ATTEMPTS = 3
_RETRIED = (Cause.LOCK_TIMEOUT, Cause.DEADLOCK, Cause.CONFLICT)


@dataclass
class Attempts:
    """Transactions that wait shortly for a lock and are tried again for some time."""

    connection: Connection
    ways: Ways
    progress: Progress
    #: Seconds that other transactions queue behind one of ours at most.
    lock_timeout: float
    #: Seconds to continue trying.
    patience: float
    #: The right to work on the table, once it is taken; and the connection that locks it.
    claim: Claim | None = None
    second: Connection | None = None
    #: Whether the table of the claim was dropped.
    is_dropped: bool = False
    #: The table to report lock holders of, once it is known.
    table: Table | None = None
    waits: int = 0

    def run(self, what: str, work: Callable[[Connection], T], *, long: bool = False) -> T:
        """Run ``work`` in a transaction and commit; ``what`` describes it in error messages.

        ``long``: it may go through the whole table.

        Raises:
            OptilockError: the lock was not available within ``patience``, the user of the
                connection has no right to do it, or the database refused it.
        """
        result: T = self._retried(what, self._once, work, long)
        return result

    def look(self, ask: Callable[..., T], *given: object) -> T:
        """Read from the database, in a transaction of its own.

        Raises:
            OptilockError: the connection was lost, the user may not do it, or a lock was not
                available within ``patience``.
        """
        result: T = self._retried("look at the table", self._look, ask, *given)
        return result

    def _look(self, ask: Callable[..., T], *given: object) -> T:
        with self.connection.begin():
            return ask(self.connection, *given)

    def _retried(self, what: str, work: Callable[..., T], *given: object) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._lock_was_held),
            wait=tenacity.wait_fixed(min(_REST * self.lock_timeout, _LONGEST_REST))
            + full_jitter(0.1, 1.0),
            stop=tenacity.stop_before_delay(self.patience),
            before_sleep=self._waits,
            reraise=True,
        )
        try:
            result: T = retrying(work, *given)
        except DBAPIError as error:
            raise OptilockError(self._reason(what, error)) from error
        return result

    def _reason(self, what: str, error: DBAPIError) -> str:
        if self._database.forbids(error):
            return (
                f"The user of this connection may not {what}. Nothing was changed by this step, and"
                " what was done before it stays: give the user that right, or run the roll-out"
                " again as the table's owner."
            )
        if not self._lock_was_held(error):
            return (
                f"The database did not {what}; its own error is the cause of this one. Nothing was"
                " changed by this step, and what was done before it stays: when the reason is gone,"
                " run the roll-out again, it goes on from here."
            )
        return (
            f"A lock was not to be had within {self.lock_timeout:g} seconds, in"
            f" {self.patience:g} seconds of trying: a transaction holds the table"
            f"{self.owner_label()}. What was done stays done; run the roll-out again when that"
            " transaction is over."
        )

    def _once(self, work: Callable[[Connection], T], long: bool) -> T:
        if self.claim is not None and (long or self.claim.is_due):
            self._transact(self.claim.keep)
        if self.claim is None or not long:
            return self._transact(work)
        with self.claim.locked(self.second):
            return self._transact(partial(self._bounded, work, self.second, self.lock_timeout))

    def _bounded(
        self,
        work: Callable[[Connection], T],
        second: Connection | None,
        seconds: float,
        connection: Connection,
    ) -> T:
        with self.ways.bounded(connection, second, seconds):
            return work(connection)

    def _transact(self, work: Callable[[Connection], T], seconds: float | None = None) -> T:
        try:
            with self.connection.begin():
                self.ways.begin(self.connection, self.lock_timeout if seconds is None else seconds)
                return work(self.connection)
        except BaseException:
            roll_back_all([self.connection])
            raise

    def rest(self, seconds: float) -> None:
        """Sleep, and keep the claim."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, TERM / 3))
            if left > TERM / 3 and self.claim is not None:
                self.run("claim the table on", lambda connection: None)

    @contextmanager
    def exclusive(self, claim: Claim) -> Iterator[None]:
        """Hold the claim in this block, and give it back at its end in any case.

        Raises:
            OptilockError: another roll-out of the table is running.
        """
        self.run(f"create the table {claim.row.name}, in which a roll-out is noted", claim.make)
        try:  # an interrupt may come when the row is ours already; we keep off another's row
            self.run(f"write the table {claim.row.name}, in which a roll-out is noted", claim.take)
            self.claim = claim
            yield
        finally:
            self._give_back(claim)

    def _give_back(self, claim: Claim) -> None:
        """Drop the claim's table, or free the claim; if both fail, the claim expires.

        It is tried again, on a new connection if that was lost. Otherwise a roll-out that comes at
        once would find nothing to do and leave the table.
        """
        self.claim, interrupted = None, None
        for _ in range(_RELEASE_ATTEMPTS):
            try:
                self.connection.rollback()
                self._end(claim)
                break
            except OptilockError:
                break
            except DBAPIError:
                pass
            except BaseException as error:
                interrupted = interrupted or error
        if interrupted is not None:
            raise interrupted

    def _end(self, claim: Claim) -> None:
        if self._transact(claim.is_there):
            self._transact(claim.keep)
            try:
                seconds = max(self.lock_timeout, _CLAIM_TIMEOUT)
                self._transact(partial(self._bounded, claim.drop, None, seconds), seconds)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                self._transact(claim.free)
                return
        self.is_dropped = True

    def _waits(self, state: tenacity.RetryCallState) -> None:
        self.waits += 1
        self.progress.waiting(f"another transaction holds the lock{self.owner_label()}")

    def owner_label(self) -> str:
        """Return the server's number of the lock's owner for messages; empty if it is unknown."""
        found = None
        if self.table is not None:
            with suppress(DBAPIError), self.connection.begin():
                found = self.ways.holder(self.connection, self.table)
        return "" if found is None else f": {found}"

    def _lock_was_held(self, error: BaseException) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        return self._database.classify(error) in _RETRIED or self.ways.interrupted(error)

    @property
    def _database(self) -> Database:
        return database_of(self.connection.dialect)


# -- the nodes of a cluster ------------------------------------------------------------------------


@contextmanager
def compare_nodes(
    engine: Engine, attempts: Attempts, table: str, schema: str | None, named: Sequence[str]
) -> Iterator[None]:
    """Connect to all nodes before this block, and compare their tables after its success.

    Raises:
        ConfigurationError: the cluster does not work, or a node does not answer.
        OptilockError: the nodes do not have the same table.
    """
    nodes = Nodes.of(engine, attempts.connection, attempts.ways, named)
    yield
    nodes.compare(Table(table, MetaData(), schema=schema))


class Nodes:
    """The nodes of a cluster as ``host:port``; none where the server has no cluster."""

    def __init__(self, url: URL, ways: Ways, addresses: Sequence[str]) -> None:
        self._url = url
        self._ways = ways
        self.addresses = addresses

    @classmethod
    def of(cls, engine: Engine, connection: Connection, ways: Ways, named: Sequence[str]) -> Nodes:
        """Return the nodes of the cluster of ``connection``, after each of them answered.

        Raises:
            ConfigurationError: the cluster does not work, or a node does not answer.
        """
        with connection.begin():
            found = cls(engine.url, ways, ways.nodes(connection, named))
        for address in found.addresses:
            try:
                with found._connected(address) as node:
                    node.execute(text("SELECT 1"))
            except DBAPIError as error:
                raise ConfigurationError(
                    f"The node {address} of the cluster does not answer, so it cannot be checked"
                    " afterwards whether it has the same table. Nothing was changed: name all"
                    " nodes as they are reached from here, with nodes=['host:port', ...]"
                    " (--node host:port)."
                ) from error
        return found

    def compare(self, table: Table) -> None:
        """Compare the table on all nodes.

        Raises:
            OptilockError: one of them has another table, or does not answer any more.
        """
        made = {address: self._made(address, table) for address in self.addresses}
        if all(one == next(iter(made.values())) for one in made.values()):
            return
        shown = "; ".join(f"{name}: {self._shown(name, made)}" for name in sorted(_differing(made)))
        raise OptilockError(
            f"The nodes of the cluster do not have the same table {table.fullname}. {shown}. A node"
            " that has another table may stop at the next write: take it out of the cluster and"
            " let it come back with a copy of the data (remove its grastate.dat), or send on that"
            " node alone, after SET SESSION wsrep_on = OFF, what it lacks. Then run this again."
        )

    def _made(self, address: str, table: Table) -> Mapping[str, object]:
        try:
            with self._connected(address) as node:
                return self._ways.made(node, table)
        except DBAPIError as error:
            raise OptilockError(
                f"The node {address} of the cluster answers no more, so it is unknown whether it"
                f" has the same table {table.fullname}. What was done stays done: run the roll-out"
                " again when the node is back, it then compares them."
            ) from error

    def _shown(self, name: str, made: Mapping[str, Mapping[str, object]]) -> str:
        return ", ".join(f"{node} has {one.get(name) or 'none'}" for node, one in made.items())

    @contextmanager
    def _connected(self, address: str) -> Iterator[Connection]:
        host, _, port = address.rpartition(":")
        url = self._url.set(host=host, port=int(port)).difference_update_query(["unix_socket"])
        engine = create_engine(url, poolclass=NullPool)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()


def _differing(made: Mapping[str, Mapping[str, object]]) -> set[str]:
    """Return the names of the parts that differ between nodes."""
    names = {name for one in made.values() for name in one}
    return {name for name in names if len({str(one.get(name)) for one in made.values()}) > 1}
