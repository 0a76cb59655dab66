"""What is wrong is found, with a short script, and what is right is not."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from checks.explore.pairs import RIGHT, WRONG, Pair
from optilock.testing import NotSerializable, replay
from tests.explore.conftest import MADE


@pytest.mark.parametrize("pair", WRONG, ids=lambda pair: pair.name)
def test_an_anomaly_is_found_and_can_be_repeated(
    pair: Pair, explored: Any, engine: Engine, put_back: Any
) -> None:
    found = explored(pair)
    assert found.complete
    if engine.dialect.name in pair.spared:
        assert found.failures == ()
        return
    first = found.failures[0]
    assert first.anomaly == pair.anomaly
    assert first.steps <= 8
    assert first.script.count("\n") <= 8 + 2
    sessions = pair.sessions(engine)
    options = {"sessions": sessions, "reset": put_back(pair.rows), "ignoring": MADE}
    with pytest.raises(NotSerializable, match="equal to no serial order") as raised:
        replay(first.order, *pair.units(sessions), **options)
    assert (raised.value.order, raised.value.anomaly) == (first.order, pair.anomaly)


@pytest.mark.parametrize("pair", RIGHT, ids=lambda pair: pair.name)
@pytest.mark.tenth
def test_nothing_is_found_where_the_units_are_right(
    pair: Pair, explored: Any, engine: Engine
) -> None:
    if engine.dialect.name in pair.without:
        pytest.skip("this database has no such lock, or no such level")
    found = explored(pair)
    assert found.failures == ()
    assert found.complete
    assert found.summary.startswith(f"0 of {found.orders} distinguishable orders fail")
