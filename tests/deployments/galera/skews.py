"""Two doctors on two nodes, each of whom goes home because the other one is on call.

::

    python -m tests.deployments.galera.skews --rounds 200
    python -m tests.deployments.galera.skews --rounds 200 --how lock     # a lock of the row alone

In each round both read both rows, each one writes its own, and both send COMMIT together. Where
both are stored, nobody is on call any more: a write skew.
"""

from __future__ import annotations

import argparse
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, Versioned, is_transient, touch, verify
from tests.deployments.galera.cluster import Cluster, running

HOW = ("verify", "verify_reads", "touch", "lock", "nothing")


class Base(DeclarativeBase):
    pass


class Doctor(Versioned, Base):
    __tablename__ = "doctors"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    on_call: Mapped[bool]


def rounds(cluster: Cluster, how: str, count: int) -> Counter[str]:
    """So many rounds: how many committed ``both``, ``one`` or ``none``, by which errors."""
    causal = "init_command=SET SESSION wsrep_sync_wait=1"
    engines = [create_engine(f"{node.url}?{causal}") for node in cluster.nodes[:2]]
    Base.metadata.create_all(engines[0])
    told: Counter[str] = Counter()
    for _ in range(count):
        _both_on_call(engines[0])
        told[_round(engines, how, told)] += 1
    for engine in engines:
        engine.dispose()
    return told


def _both_on_call(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        for number in (1, 2):
            session.merge(Doctor(id=number, on_call=True), load=True)
        for doctor in session.query(Doctor).all():
            doctor.on_call = True


def _round(engines: Sequence[Engine], how: str, told: Counter[str]) -> str:
    together = threading.Barrier(2)
    home: list[int] = []

    def go_home(engine: Engine, mine: int, other: int) -> None:
        try:
            with UnitOfWork(sessionmaker(engine), verify_reads=how == "verify_reads") as session:
                # The last thing before COMMIT, after all that is sent before it.
                event.listen(session, "before_commit", lambda session: _meet(together))
                if how == "lock":
                    lock = {"read": True}
                    colleague = session.get_one(Doctor, other, with_for_update=lock)
                else:
                    colleague = session.get_one(Doctor, other)
                if how == "verify":
                    verify(colleague)
                if how == "touch":
                    touch(colleague)
                doctor = session.get_one(Doctor, mine)
                _meet(together)
                if colleague.on_call:
                    doctor.on_call = False
        except Exception as error:
            if not is_transient(error):
                raise
            told["conflict" if isinstance(error, ConcurrencyError) else "deadlock"] += 1
        else:
            home.append(mine)

    threads = [
        threading.Thread(target=go_home, args=(engine, *numbers))
        for engine, numbers in zip(engines, ((1, 2), (2, 1)), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ("none", "one", "both")[len(home)]


def _meet(together: threading.Barrier) -> None:
    with suppress(threading.BrokenBarrierError):
        together.wait(timeout=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--how", choices=HOW, nargs="*", default=["verify"])
    chosen = parser.parse_args()
    with running() as cluster:
        cluster.nodes[0].ask("CREATE DATABASE IF NOT EXISTS test")
        for how in chosen.how:
            print(how, dict(rounds(cluster, how, chosen.rounds)))


if __name__ == "__main__":
    main()
