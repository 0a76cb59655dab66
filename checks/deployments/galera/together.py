"""Two transactions on two nodes that send COMMIT together, after each has sent all else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session, sessionmaker

from checks.deployments.galera.cluster import Cluster
from optilock import UnitOfWork, is_transient

__all__ = ["Ended", "at_once", "causal_engines"]

#: Meets the other one.
Meet = Callable[[], None]


@dataclass
class Ended:
    """The numbers of those who committed, and the transient errors of the others."""

    committed: list[int] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)


def causal_engines(cluster: Cluster) -> list[Engine]:
    """An engine for each of two nodes, which show what the other one has committed before."""
    causal = "init_command=SET SESSION wsrep_sync_wait=1"
    return [create_engine(f"{node.url}?{causal}") for node in cluster.nodes[:2]]


def at_once(
    engines: Sequence[Engine], work: Callable[[Session, int, Meet], None], **options: Any
) -> Ended:
    """Run ``work`` in a unit on each of the engines; the units meet before they send COMMIT."""
    together, ended = threading.Barrier(len(engines)), Ended()

    def meet(*_: object) -> None:
        with suppress(threading.BrokenBarrierError):
            together.wait(timeout=20)

    def run(engine: Engine, number: int) -> None:
        try:
            with UnitOfWork(sessionmaker(engine), **options) as session:
                # The last thing before COMMIT, after all that is sent before it.
                event.listen(session, "before_commit", meet)
                work(session, number, meet)
        except Exception as error:
            together.abort()
            if not is_transient(error):
                raise
            ended.errors.append(error)
        else:
            ended.committed.append(number)

    threads = [
        threading.Thread(target=run, args=(engine, number)) for number, engine in enumerate(engines)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended
