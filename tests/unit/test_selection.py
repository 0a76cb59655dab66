"""Which tests run without ``--full``, and what a run says about those that did not."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optilock.testing.servers import ServerMissing
from tests.engines import Targets, mariadb, urls
from tests.selection import covering
from tests.summary import skipped_because

KINDS = [*itertools.product("abc", (1, 2), (True, False), ("sqlite", "mariadb"))]


def pairs(rows: Any) -> set[Any]:
    return {pair for row in rows for pair in itertools.combinations(enumerate(row), 2)}


def test_every_pair_of_values_is_met_in_fewer_runs() -> None:
    chosen = [KINDS[number] for number in covering(KINDS, late=lambda number: False)]
    assert pairs(chosen) == pairs(KINDS)
    assert len(chosen) < len(KINDS) / 2


def test_no_pair_is_left_to_an_engine_that_may_be_missing() -> None:
    chosen = covering(KINDS, late=lambda number: KINDS[number][-1] == "mariadb")
    early = [row for row in KINDS if row[-1] != "mariadb"]
    assert pairs(KINDS[n] for n in chosen if KINDS[n] in early) == pairs(early)
    assert pairs(KINDS[n] for n in chosen) == pairs(KINDS)


def test_where_nothing_can_be_left_out_everything_runs() -> None:
    rows = [*itertools.product("abc", "xy")]
    assert sorted(covering(rows, late=lambda number: False)) == [*range(6)]


def test_a_reason_is_told_once_however_often_it_was_met() -> None:
    reports = [SimpleNamespace(longrepr=("a.py", n, "Skipped: not here")) for n in range(3)]
    assert skipped_because(reports) == {"not here": 3}


def test_a_server_that_cannot_be_started_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def start(stack: Any) -> Any:
        asked.append(stack)
        raise ServerMissing("none here")

    monkeypatch.setattr(mariadb, "start", start)
    targets = Targets(SimpleNamespace())  # type: ignore[arg-type]
    for name in ("mariadb", "mariadb-snapshot", "mariadb"):
        with pytest.raises(ServerMissing, match="none here"):
            targets.get(name, tmp_path)
    assert len(asked) == 1


def test_docker_that_does_not_answer_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    assert urls._docker_answers.__wrapped__() is False
