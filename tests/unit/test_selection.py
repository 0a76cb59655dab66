"""Which tests run without ``--full``, and what a run says about those that did not."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optilock_apps.servers import ServerMissing

from tests.engines import Targets, mariadb, missing, urls
from tests.support.selection import covering, shown_before
from tests.support.summary import skipped_because

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


ENGINES = [(engine, value) for engine in ("sqlite", "postgresql") for value in "abcde"]


def test_each_value_runs_on_the_first_engine_and_one_on_the_others() -> None:
    left_out = [(engine[1], value[1]) for engine, value in shown_before(ENGINES)]
    assert sorted(left_out) == [("postgresql", value) for value in "abcd"]


def test_a_value_that_an_engine_has_alone_runs_there() -> None:
    own = [("postgresql", value) for value in "xyz"]
    left_out = shown_before([*ENGINES, *own])
    assert not {(engine[1], value[1]) for engine, value in left_out} & {*own}


def test_a_pair_that_need_not_be_shown_is_not() -> None:
    rows = [(engine, *more) for engine in "sp" for more in itertools.product("abcde", (1, 2, 3))]
    spare = shown_before(rows)
    chosen = [rows[number] for number in covering(rows, lambda number: False, spare)]
    assert pairs(chosen) >= pairs(rows) - spare
    assert {value for engine, value, _ in chosen if engine == "s"} == {*"abcde"}
    assert {value for engine, value, _ in chosen if engine == "p"} >= {"e"}


def test_an_engine_that_cannot_run_is_named_and_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look() -> None:
        raise ServerMissing("none here")

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(mariadb, "look", look)
    assert "MariaDB cannot be started. none here" in str(missing.__wrapped__("mariadb-snapshot"))
    assert missing.__wrapped__("sqlite-wal") is None
    monkeypatch.setenv("CI", "true")
    assert missing.__wrapped__("mariadb") is None  # it is to be started, and to fail


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
