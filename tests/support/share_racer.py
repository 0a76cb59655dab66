"""A client of :mod:`optilock.shares` as a process of its own, told what to do.

``open NAME [SECONDS]``  try once to open it for itself alone: ``1``, or ``0`` if another one has it
``close``                close what is open
``work NAME``            open it, look whether anybody else is inside, and close it, three times
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from optilock import is_transient, shares
from tests.support.clock import CLOCK

#: Its clock can be moved.
WITHIN = shares.Shares(clock=CLOCK)


def committed(engine: Engine, do: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """In a transaction of its own, as often as that takes."""
    while True:
        try:
            with Session(engine) as session, session.begin():
                return do(session, *args, **options)
        except Exception as error:
            if not is_transient(error):
                raise


def work(engine: Engine, name: str) -> int:
    """How often somebody else was inside."""
    others = done = 0
    while done < 3:
        try:
            handle = committed(engine, shares.open, name, "RW", seconds=600, within=WITHIN)
        except shares.SharingViolation:
            continue
        others += committed(engine, _step, 1) != 1
        committed(engine, _step, -1)
        committed(engine, shares.close, handle)
        done += 1
    return others


def _step(session: Session, by: int) -> Any:
    session.execute(text(f"UPDATE inside SET clients = clients + ({by})"))
    return session.scalar(text("SELECT clients FROM inside"))


def main(url: str, told: Connection) -> None:
    engine = create_engine(url)
    handle = None
    told.send("ready")
    while (line := told.recv()) is not None:
        command, *rest = line.split()
        if command == "open":
            try:
                seconds = float(rest[1]) if rest[1:] else 3600
                options = {"seconds": seconds, "within": WITHIN}
                handle = committed(engine, shares.open, rest[0], "RW", **options)
            except shares.SharingViolation:
                handle = None
            told.send(str(int(handle is not None)))
        elif command == "close":
            if handle is not None:
                committed(engine, shares.close, handle)
            told.send("closed")
        else:
            told.send(str(work(engine, rest[0])))
