"""Eight writers on three nodes, one of which is killed and comes back meanwhile.

::

    python -m checks.deployments.galera.writers --seconds 60
    python -m checks.deployments.galera.writers --seconds 60 --kills 3
    python -m checks.deployments.galera.writers --seconds 60 --bare     # without a version

Each unit of work appends its own number to the list of a row, counts in that row, and moves one
from a row to another. What was acknowledged must be there once, what failed must not be there, and
what is said to be unknown may be there once. The sum that is moved about stays what it was.

A writer connects as through a proxy: to the next node that says it is ready.
"""

from __future__ import annotations

import argparse
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pymysql
from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from checks.deployments.galera.cluster import Cluster, Node, running
from optilock import Versioned, retrying, unit_of_work
from optilock.errors import CommitOutcomeUnknown

WRITERS, ROWS, START = 8, 6, 1_000
#: Units that a slow machine stores, too, in so many more seconds.
_AT_LEAST, _LIMIT = 100, 60.0


class Base(DeclarativeBase):
    pass


class _Row:
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    #: The numbers of the units, each after a blank.
    units: Mapped[str] = mapped_column(MEDIUMTEXT, default="")
    n: Mapped[int] = mapped_column(default=0)
    money: Mapped[int] = mapped_column(default=START)


class Row(_Row, Versioned, Base):
    __tablename__ = "kept"


class Bare(_Row, Base):
    """Without a version."""

    __tablename__ = "bare"


@dataclass
class Told:
    """What the writers were told of their units, and what is stored in the end."""

    acknowledged: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    failed: list[tuple[str, Exception]] = field(default_factory=list)
    stored: Counter[str] = field(default_factory=Counter)
    counted: int = 0
    money: int = 0

    @property
    def lost(self) -> list[str]:
        return [unit for unit in self.acknowledged if not self.stored[unit]]

    @property
    def doubled(self) -> list[str]:
        return [unit for unit, times in self.stored.items() if times > 1]

    @property
    def half_done(self) -> list[str]:
        """Units that failed, and are there."""
        return [unit for unit, _ in self.failed if self.stored[unit]]

    def __str__(self) -> str:
        there = sum(1 for unit in self.unknown if self.stored[unit])
        errors = Counter(f"{type(error).__name__}: {str(error)[:80]}" for _, error in self.failed)
        return (
            f"{len(self.acknowledged)} acknowledged, {len(self.unknown)} unknown ({there} of them"
            f" stored), {len(self.failed)} failed; lost {len(self.lost)}, doubled"
            f" {len(self.doubled)}, failed and stored {len(self.half_done)}; counted {self.counted}"
            f" of {self.stored.total()}, money {self.money} of {ROWS * START} {dict(errors) or ''}"
        )


def through_proxy(cluster: Cluster, first: int) -> Engine:
    """An engine whose connections go to the next node that is ready, beginning with ``first``."""

    def connect() -> Any:
        for number in itertools.count(first):
            connection = _connected(cluster.nodes[number % len(cluster.nodes)])
            if connection is not None:
                return connection
            time.sleep(0.05)

    return create_engine("mysql+pymysql://", creator=connect)


def _connected(node: Node) -> Any:
    try:
        connection = pymysql.connect(
            host="127.0.0.1",
            port=node.port,
            user="root",
            database="test",
            client_flag=2,
            connect_timeout=2,
            read_timeout=30,
            init_command="SET SESSION wsrep_sync_wait = 1",
        )
        with connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'wsrep_ready'")
            return connection if cursor.fetchall()[0][1] == "ON" else None
    except pymysql.err.MySQLError:
        return None


def write(cluster: Cluster, kind: type[Any], seconds: float, *, kills: int = 1) -> Told:
    """Let the writers write for so long, while nodes are killed, one by one, and come back."""
    with Session(through_proxy(cluster, 0)) as session, session.begin():
        Base.metadata.create_all(session.connection())
        session.add_all([kind(id=number, units="") for number in range(ROWS)])
    told, until = Told(), time.monotonic() + seconds
    writers = [
        threading.Thread(target=_writer, args=(cluster, kind, number, until, told))
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for number in range(kills):
        node = cluster.nodes[-1 - number % 2]
        time.sleep(seconds / kills / 4)
        node.kill()
        time.sleep(seconds / kills / 4)
        node.start()
    for writer in writers:
        writer.join()
    rows: list[Any] = cluster.agree(f"SELECT units, n, money FROM {kind.__tablename__} ORDER BY id")
    for units, n, money in rows:
        told.stored.update(units.split())
        told.counted += n
        told.money += money
    return told


def _writer(cluster: Cluster, kind: type[Any], number: int, until: float, told: Told) -> None:
    engine = through_proxy(cluster, number)
    chance = random.Random(number)
    work = _unit(engine, kind)
    for count in itertools.count():
        left = until - time.monotonic()
        if left < 0 and (len(told.acknowledged) > _AT_LEAST or left < -_LIMIT):
            break
        unit = f"{number}-{count}"
        row, other = chance.sample(range(ROWS), 2)
        try:
            work(unit, row, other)
        except CommitOutcomeUnknown:
            told.unknown.append(unit)
        except Exception as error:
            told.failed.append((unit, error))
        else:
            told.acknowledged.append(unit)
    engine.dispose()


def _unit(engine: Engine, kind: type[Any]) -> Callable[[str, int, int], None]:
    @unit_of_work(sessionmaker(engine), retry=retrying(attempts=100, deadline=20, wait_max=0.5))
    def work(session: Session, unit: str, row: int, other: int) -> None:
        mine, theirs = session.get_one(kind, row), session.get_one(kind, other)
        mine.units += f" {unit}"
        mine.n += 1
        mine.money -= 1
        theirs.money += 1

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=1, help="how often a node is killed")
    parser.add_argument("--bare", action="store_true", help="rows without a version")
    chosen = parser.parse_args()
    with running() as cluster:
        kind = Bare if chosen.bare else Row
        print(write(cluster, kind, chosen.seconds, kills=chosen.kills))


if __name__ == "__main__":
    main()
