"""The database of an explored pair."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from checks.explore.pairs import Pair
from checks.explore.rows import CLASSES, Rows, reset_of
from optilock.testing import Exploration, explore

#: Keys that the database makes go on from order to order.
MADE = ("x_bookings.id", "x_slots.id")


@pytest.fixture
def put_back(engine: Engine, tables: Any) -> Callable[[Rows], Callable[[], None]]:
    """Return a function that gives ``reset`` for some rows."""
    tables(*CLASSES)
    return partial(reset_of, engine)


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Any]:
    return sessionmaker(engine)


@pytest.fixture
def explored(engine: Engine, put_back: Any) -> Callable[..., Exploration]:
    """Return a function that explores a pair."""

    def explored(pair: Pair, **options: Any) -> Exploration:
        made = pair.sessions(engine)
        reset = put_back(pair.rows)
        return explore(*pair.units(made), sessions=made, reset=reset, ignoring=MADE, **options)

    return explored
