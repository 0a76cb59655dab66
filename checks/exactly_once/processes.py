"""One of several processes that call the same keyed function: its results, as JSON.

::

    python -m checks.exactly_once.processes URL KEYS
"""

from __future__ import annotations

import json
import random
import sys
from uuid import uuid4

from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock import retrying, unit_of_work
from tests.support.models import Account


def main(url: str, keys: int) -> None:
    """Call it with each key, in an order of its own."""
    engine = create_engine(url)

    @unit_of_work(
        sessionmaker(engine),
        exactly_once=lambda key: f"key-{key}",
        retry=retrying(attempts=200, wait_max=0.2),
    )
    def pay(session: Session, key: int) -> str:
        session.get_one(Account, 1).balance += 1
        return f"{key} {uuid4()}"

    order = random.sample(range(keys), keys)
    print(json.dumps({key: pay(key) for key in order}))
    engine.dispose()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
