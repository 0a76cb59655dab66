"""Which tests run without ``--full``, and what a run says about those that did not."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optilock_apps.servers import ServerMissing

from tests.engines import Targets, mariadb, missing, urls
from tests.support.selection import covering, in_part
from tests.support.summary import skipped_because
from tests.support.times import Timed, complaints, table

ROOT = Path(__file__).resolve().parents[2]
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


def test_each_value_is_met_once_where_single_values_are_asked_for() -> None:
    rows = [*itertools.product("abcde", (1, 2, 3))]
    chosen = [rows[number] for number in covering(rows, lambda number: False, together=1)]
    assert len(chosen) == 5
    assert {letter for letter, _ in chosen} == {*"abcde"}
    assert {number for _, number in chosen} == {1, 2, 3}


def test_each_function_is_in_one_of_the_parts() -> None:
    names = [f"tests/test_a.py::test_{number}" for number in range(100)]
    first, second = ([one for one in names if in_part(one, part)] for part in ("1/2", "2/2"))
    assert sorted(first + second) == sorted(names)
    assert 30 < len(first) < 70
    assert all(in_part(one, None) for one in names)


def test_a_test_without_parameters_still_runs() -> None:
    assert covering([(), ()], lambda number: False, together=1) == [0]
    assert covering([], lambda number: False) == []


SMALL = """
import pytest

@pytest.mark.parametrize("letter", "abcdef")
@pytest.mark.parametrize("number", (1, 2))
def test_of_two(database, letter, number):
    assert not letter

def test_of_none(database):
    pass

@pytest.mark.full
def test_that_is_slow():
    pass

@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("letter", "ab")
def test_of_one_engine(database, letter):
    pass
"""


#: Prints the ids that each run of a file would run; the file, and the options of the runs, as JSON.
COLLECT = """
import contextlib, io, json, re, sys
import pytest

found = []
for options in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        pytest.main(["--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *options])
    found.append(re.findall(r"::(test_.+)", out.getvalue()))
print(json.dumps(found))
"""


@pytest.fixture
def ids() -> Iterator[Callable[..., list[set[str]]]]:
    """The ids that runs with some options would run of SMALL, which stands for ``FILE`` in them."""
    folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent, prefix="small_"))
    file = folder / "test_small.py"
    file.write_text(SMALL, encoding="utf-8")

    def collect(*runs: list[str]) -> list[set[str]]:
        told = json.dumps([[word.replace("FILE", str(file)) for word in words] for words in runs])
        words = [sys.executable, "-c", COLLECT, told]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
        return [set(found) for found in json.loads(done.stdout)]

    yield collect
    shutil.rmtree(folder)


def test_what_the_options_run_of_a_test(ids: Any, tmp_path: Path) -> None:
    written = str(tmp_path / "ids.txt")
    quick, full, product, rest, named = ids(
        ["FILE", "--write-ids", written],
        ["FILE", "--full"],
        ["FILE", "--product"],
        ["FILE", "--full", "--not-in", written],
        ["FILE::test_of_two"],
    )
    engines = [one for one in full if "test_of_none" in one]
    assert len(engines) >= 2
    assert quick < full < product
    assert len([one for one in quick if "test_of_two" in one]) == 6
    assert len([one for one in quick if "test_of_none" in one]) == 1
    assert {one for one in quick if "engine" in one} == {
        "test_of_one_engine[postgresql-a]",
        "test_of_one_engine[postgresql-b]",
    }
    assert "test_that_is_slow" in full - quick
    assert len(named) == len(engines) * 12
    assert named < product
    assert rest == full - quick


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


TESTS = [
    Timed("tests/unit/test_a.py::test_x", 1.0, 2.0),
    Timed("README.md::line:1", 3.0, 3.0),
    Timed("tests/unit/test_a.py::test_y[b]", 1.5, 4.0),
]


def test_the_table_of_times_names_the_dearest_folder_first() -> None:
    head, first, second = table(TESTS)
    assert head.split() == ["processor", "clock", "tests"]
    assert first.split()[:4] == ["3.0", "3.0", "1", "README.md:"]
    assert second.split()[:4] == ["2.5", "6.0", "2", "tests/unit:"]
    assert second.endswith("tests/unit: test_a.py::test_y[b] 1.5, test_a.py::test_x 1.0")


@pytest.mark.parametrize(
    ("most", "said"),
    [
        ({"tests": 2, "seconds": 2.5, "lines": 9}, ""),
        ({"tests": 1, "seconds": 2.5, "lines": 9}, "needs 2 tests"),
        ({"tests": 2, "seconds": 1.2, "lines": 9}, "needs 2 seconds"),
        ({"tests": 2, "seconds": 2.5, "lines": 9 / 1.2}, "needs 9 lines"),
    ],
)
def test_a_folder_above_its_budget_is_named_with_its_dearest_tests(most: Any, said: str) -> None:
    told = [*complaints(TESTS, {"tests/unit": most}, 1.0, {"tests/unit": 9})]
    assert len(told) == bool(said)
    for one in told:
        assert said in one
        assert "tests/unit" in one
        assert "test_a.py::test_y[b] 1.5, test_a.py::test_x 1.0" in one
    assert not [*complaints(TESTS, {"tests/unit": most}, 2.5, {})] or "tests" in said


def test_a_folder_without_a_budget_is_named() -> None:
    assert [*complaints(TESTS, {}, 1.0, {})] == [
        "tests/unit has no row in tests/budget.toml: add one with what it needs."
    ]


def test_the_times_of_tests_in_several_processes_are_told() -> None:
    one = f"{Path(__file__).relative_to(ROOT)}::test_a_folder_without_a_budget_is_named"
    words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, "--times", one], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "checks/project: test_selection.py::test_a_folder_without_a_budget" in done.stdout
