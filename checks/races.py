"""Eight clients that write one row at the same moment: in the tests as threads, here as processes.

::

    python -m checks.races --rounds 1000 --engines sqlite-wal postgresql mariadb

Each client has a connection of its own, which is open before the first round, and all of them wait
at one barrier for every round. What is a lock's or a deadlock's fault was not performed, and is
sent again, as a client would. After each round the stored row is looked at: it has to be the
winner's, and its version has to have moved once.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Engine, Table
from sqlalchemy.orm import Session

from optilock import OptilockError, entities, is_transient
from optilock.entities import Stored
from tests.engines import NAMES, Target, Targets
from tests.support.models import Account
from tests.support.tags import tag

__all__ = ["ALONE", "CLIENTS", "NEW", "ONE_TAG", "UPSERT", "Answer", "Race", "crowd", "one_has_won"]

CLIENTS = 8
_LONG = 120.0


@dataclass(frozen=True)
class Race:
    """What all of them try in a round, and the row that is then to be stored.

    Its functions are those of this module, so that another process finds them.
    """

    title: str
    write: Callable[[Session, str, int], Stored]
    #: Key and version after the round of this number.
    row: Callable[[int], tuple[int, int]]
    #: What an application would answer to who has written.
    status: int = 204
    isolation: str | None = None


@dataclass(frozen=True)
class Answer:
    """What one client was told in one round."""

    client: str
    status: int
    etag: str | None = None
    #: How often it had to send again, because of a lock or a deadlock.
    again: int = 0


def _with_one_tag(session: Session, me: str, number: int) -> Stored:
    seen = tag(Account, 1, number + 1)
    return entities.merge(session, Account, 1, {"owner": me}, if_match=seen)


def _new(session: Session, me: str, number: int) -> Stored:
    return entities.insert(session, Account, number, {"owner": me}, if_none_match="*")


def _upsert(session: Session, me: str, number: int) -> Stored:
    return entities.insert_or_merge(session, Account, number, {"owner": me})


def _first(number: int) -> tuple[int, int]:
    return 1, number + 2


def _own(number: int) -> tuple[int, int]:
    return number, 1


def _all(number: int) -> tuple[int, int]:
    return number, CLIENTS


ONE_TAG = Race("If-Match with one tag", _with_one_tag, _first)
ALONE = Race("the same in AUTOCOMMIT mode", _with_one_tag, _first, isolation="AUTOCOMMIT")
NEW = Race("If-None-Match: *", _new, _own, status=201)
#: The last writer wins, and each of them is counted.
UPSERT = Race("upsert", _upsert, _all)


@contextmanager
def crowd(
    target: Target, race: Race, *, processes: bool = False
) -> Iterator[Callable[[], list[Answer]]]:
    """A function that runs the next round and gives what the clients were told, in time's order."""
    kind: Any = multiprocessing.get_context("spawn") if processes else threading
    begin = kind.Barrier(CLIENTS + 1)
    told = kind.Queue() if processes else queue.Queue()
    start = kind.Process if processes else kind.Thread
    plain = replace(target, like=None, connect=None)  # what another process can be given
    workers = [
        start(target=_client, args=(plain, race, str(number), begin, told))
        for number in range(CLIENTS)
    ]
    for worker in workers:
        worker.start()

    def round_() -> list[Answer]:
        begin.wait(_LONG)
        return [told.get(timeout=_LONG) for _ in workers]

    try:
        yield round_
    finally:
        begin.abort()
        for worker in workers:
            worker.join()


def _client(
    target: Target, race: Race, me: str, begin: threading.Barrier, told: queue.Queue[Answer]
) -> None:
    engine = target.engine(pool_size=1, max_overflow=0)
    try:
        engine.connect().close()
        for number in itertools.count():
            begin.wait(_LONG)
            told.put(_answer(engine, race, me, number))
    except threading.BrokenBarrierError:
        pass  # it is over
    finally:
        engine.dispose()


def _answer(engine: Engine, race: Race, me: str, number: int) -> Answer:
    options = {"isolation_level": race.isolation} if race.isolation else {}
    for again in itertools.count():
        try:
            with Session(engine.execution_options(**options)) as session, session.begin():
                done = race.write(session, me, number)
        except OptilockError as error:
            return Answer(me, getattr(error, "status", 500), again=again)
        except Exception as error:
            if not is_transient(error):
                return Answer(me, 500, again=again)
        else:
            return Answer(me, race.status, done.etag, again)
    raise AssertionError("unreachable")


# -- many rounds -----------------------------------------------------------------------------------


def main() -> int:
    """0 when each round had one winner whose row is stored, 1 otherwise."""
    options = _options()
    wrong = 0
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="optilock-races-") as folder:
        targets = Targets(stack)
        for name in options.engines:
            for race in (ONE_TAG, ALONE, NEW):
                target = targets.get(name, Path(folder))
                wrong += _many(target, race, options.rounds, not options.threads)
    return int(wrong > 0)


def _many(target: Target, race: Race, rounds: int, processes: bool) -> int:
    """Run them, print what came of it, and say how many rounds were wrong."""
    statuses: Counter[int] = Counter()
    again = 0
    with _prepared(target, race) as engine, crowd(target, race, processes=processes) as next_round:
        # One more, which is not timed: it waits for eight processes to start.
        wrong = int(not one_has_won(engine, race, 0, next_round()))
        began = time.monotonic()
        for number in range(1, rounds + 1):
            answers = next_round()
            statuses.update(answer.status for answer in answers)
            again += sum(answer.again for answer in answers)
            wrong += not one_has_won(engine, race, number, answers)
        seconds = time.monotonic() - began
    found = ", ".join(f"{count:,} x {status}" for status, count in sorted(statuses.items()))
    print(
        f"{target.name}, {race.title}: {rounds:,} rounds of {CLIENTS}"
        f" {'processes' if processes else 'threads'} in {seconds:.1f} s: {found};"
        f" {again:,} sent again after a lock; {wrong:,} rounds without one winner and its row",
        flush=True,
    )
    return wrong


@contextmanager
def _prepared(target: Target, race: Race) -> Iterator[Engine]:
    """An engine, with the row that is to be written."""
    engine = target.engine()
    tables = [cast(Table, Account.__table__)]
    Account.metadata.drop_all(engine, tables)
    Account.metadata.create_all(engine, tables)
    if race is not NEW:
        with Session(engine) as session, session.begin():
            session.add(Account(id=1, owner="nobody"))
    try:
        yield engine
    finally:
        engine.dispose()


def one_has_won(engine: Engine, race: Race, number: int, answers: list[Answer]) -> bool:
    """One client has written, all others were told that it is too late, and its row is stored."""
    winners = [answer for answer in answers if answer.status == race.status]
    late = [answer for answer in answers if answer.status == 412]
    if (len(winners), len(late)) != (1, CLIENTS - 1):
        return False
    key, version = race.row(number)
    with Session(engine) as session:
        stored = session.get_one(Account, key)
        return (stored.owner, stored.version) == (winners[0].client, version)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m checks.races", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=1_000, help="of each race on each engine")
    parser.add_argument("--engines", nargs="+", choices=NAMES, default=["sqlite-wal"])
    parser.add_argument("--threads", action="store_true", help="of one process, as in the tests")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
