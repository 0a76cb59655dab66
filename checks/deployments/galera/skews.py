"""Two doctors on two nodes, each of whom goes home because the other one is on call.

::

    python -m checks.deployments.galera.skews --rounds 200
    python -m checks.deployments.galera.skews --rounds 200 --how lock     # a lock of the row alone

In each round both read both rows, each one writes its own, and both send COMMIT together. Where
both are stored, nobody is on call any more: a write skew.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from checks.deployments.galera.cluster import Cluster, running
from checks.deployments.galera.together import at_once, causal_engines
from optilock import ConcurrencyError, Versioned, touch, verify

HOW = ("verify", "verify, pessimistic", "verify_reads", "touch", "lock", "nothing")


class Base(DeclarativeBase):
    pass


class Doctor(Versioned, Base):
    __tablename__ = "doctors"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    on_call: Mapped[bool]


def rounds(cluster: Cluster, how: str, count: int) -> Counter[str]:
    """So many rounds: how many committed ``both``, ``one`` or ``none``, by which errors."""
    engines = causal_engines(cluster)
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
    def go_home(session: Session, number: int, meet: Callable[[], None]) -> None:
        mine, other = (1, 2) if number == 0 else (2, 1)
        lock: Any = {"read": True} if how == "lock" else None
        colleague = session.get_one(Doctor, other, with_for_update=lock)
        if how in ("verify", "verify, pessimistic"):
            verify(colleague)
        if how == "touch":
            touch(colleague)
        doctor = session.get_one(Doctor, mine)
        meet()
        if colleague.on_call:
            doctor.on_call = False

    options: dict[str, Any] = {"verify_reads": how == "verify_reads"}
    if how == "verify, pessimistic":
        options["strategy"] = "pessimistic"
    ended = at_once(engines, go_home, **options)
    for error in ended.errors:
        told["conflict" if isinstance(error, ConcurrencyError) else "deadlock"] += 1
    return ("none", "one", "both")[len(ended.committed)]


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
