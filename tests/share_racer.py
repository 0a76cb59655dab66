"""A client of :mod:`optilock.shares` as a process of its own, told by lines what to do.

``open NAME``  try once to open it for itself alone: ``1``, or ``0`` if somebody else has it
``close``      close what is open
``work NAME``  open it, look whether anybody else is inside, and close it, three times
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from optilock import is_transient, shares


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
            handle = committed(engine, shares.open, name, "RW", seconds=60)
        except shares.SharingViolation:
            time.sleep(0.005)
            continue
        others += committed(engine, _step, 1) != 1
        committed(engine, _step, -1)
        committed(engine, shares.close, handle)
        done += 1
    return others


def _step(session: Session, by: int) -> Any:
    session.execute(text(f"UPDATE inside SET clients = clients + ({by})"))
    return session.scalar(text("SELECT clients FROM inside"))


def main() -> None:
    engine = create_engine(sys.argv[1])
    handle = None
    print("ready", flush=True)
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "open":
            try:
                handle = committed(engine, shares.open, rest[0], "RW", seconds=60)
            except shares.SharingViolation:
                handle = None
            print(int(handle is not None), flush=True)
        elif command == "close":
            if handle is not None:
                committed(engine, shares.close, handle)
            print("closed", flush=True)
        else:
            print(work(engine, rest[0]), flush=True)


if __name__ == "__main__":
    main()
