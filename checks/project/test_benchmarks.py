"""The benchmarks: how figures are made of times, and that every one of them runs.

The runs here are tiny and on SQLite only. They say nothing about speed: a goal that is missed
by two rounds of a few rows is no failure of these tests.
"""

from __future__ import annotations

import gc
import json
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import pytest
from optilock_apps.servers import ServerMissing
from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks import entities, overlap, report
from benchmarks.__main__ import BENCHMARKS, _databases, _questions, _wanted, main
from benchmarks.delay import delayed
from benchmarks.measure import SPANS, Ratio, Timing, interleave, median, order, ratio
from benchmarks.models import NativeItem, OptilockItem, heard
from benchmarks.plan import LONG, MANY, MEDIUM, SHORT, Plan
from benchmarks.servers import USUAL, Place, places
from benchmarks.statements import counted
from benchmarks.stores.peers import PEERS
from benchmarks.subjects import Shape, build
from benchmarks.table import (
    COLUMNS,
    CountLine,
    LoadLine,
    RatioLine,
    compare,
    from_json,
    markdown,
    to_json,
)

SOCKET = Place("socket", "unused", "unused")
DELAYED = Place("delayed", "unused", "unused")


@pytest.fixture(autouse=True, scope="module")
def only_their_own_garbage() -> None:
    """A comparison collects garbage before each of its runs: not among all earlier tests."""
    gc.freeze()


def flushes(*seconds: float) -> list[Timing]:
    return [Timing(flush=value) for value in seconds]


def test_a_ratio_compares_times_of_the_same_round() -> None:
    # Round by round 0.5, 0.5, 0.5; the medians alone would say the same of unrelated rounds.
    timings = {"native": flushes(2, 4, 20), "optilock": flushes(1, 2, 10)}
    assert ratio(timings, "optilock", "native", SPANS["flush"]) == Ratio(0.5, 0.5, 0.5)


def test_a_ratio_is_the_median_of_the_rounds_with_the_spread_beside_it() -> None:
    timings = {"native": flushes(1, 1, 1), "optilock": flushes(3, 1, 2)}
    found = ratio(timings, "optilock", "native", SPANS["flush"])
    assert found == Ratio(2, 1, 3)
    assert str(found) == "2.000 (1.000-3.000)"


def test_subjects_that_were_not_measured_equally_often_are_not_compared() -> None:
    with pytest.raises(ValueError, match="longer"):
        ratio({"a": flushes(1), "b": flushes(1, 2)}, "a", "b", SPANS["flush"])


def test_a_median_is_the_middle_time() -> None:
    assert median({"native": flushes(1, 9, 2)}, "native", SPANS["flush"]) == 2


@pytest.mark.parametrize(
    ("span", "seconds"), [("flush", 4), ("change to COMMIT", 14), ("load to COMMIT", 15)]
)
def test_a_span_is_the_part_of_the_unit_that_its_name_says(span: str, seconds: float) -> None:
    assert SPANS[span](Timing(load=1, change=2, flush=4, commit=8)) == seconds


def test_every_round_begins_with_another_subject_and_then_in_the_other_direction() -> None:
    rounds = ["".join(order("abc", number)) for number in range(7)]
    assert rounds == ["abc", "bca", "cab", "cba", "acb", "bac", "abc"]


def test_subjects_take_turns_after_a_warm_up_that_is_not_counted() -> None:
    ran: list[str] = []

    def subject(name: str) -> Timing:
        ran.append(name)
        return Timing(flush=1)

    timings = interleave(
        {name: lambda name=name: subject(name) for name in "ab"},  # type: ignore[misc]
        rounds=2,
        warmup=1,
        repeats=2,
    )
    assert "".join(ran) == "ab" + "aabb" + "bbaa"
    assert timings == {"a": flushes(2, 2), "b": flushes(2, 2)}


def line(goal: float | None, median: float = 0.2) -> RatioLine:
    ratios = {"native": Ratio(1, 1, 1), "optilock": Ratio(median, 0.1, 0.3)}
    return RatioLine("same columns: flush", "SQLite", 1_000, "native", ratios, goal=goal)


@pytest.mark.parametrize(("goal", "reached"), [(0.2, True), (0.19, False), (None, None)])
def test_a_goal_is_reached_by_the_median(goal: float | None, reached: bool | None) -> None:
    assert line(goal).reached is reached


def test_a_line_without_figures_of_its_subject_reaches_nothing_and_misses_nothing() -> None:
    absent = RatioLine("q", "SQLite", 1, "native", {"native": Ratio(1, 1, 1)}, goal=1.0)
    assert absent.reached is None
    assert absent.cells()[6:] == ("-", "-", "≤ 1", "-")


@pytest.mark.parametrize(("count", "reached"), [(0, True), (1, False)])
def test_a_count_is_held_against_its_goal(count: int, reached: bool) -> None:
    assert CountLine("deadlocks", "SQLite", 1, count, goal=0).reached is reached


def test_a_count_stands_in_the_column_of_whom_it_is_about() -> None:
    cells = CountLine("deadlocks", "SQLite", 60, 7, subject="hand-written").cells()
    assert dict(zip(COLUMNS, cells, strict=True))["hand-written"] == "7"


def test_compare_gives_one_line_for_each_span_with_a_goal() -> None:
    timings = {"native": flushes(2, 2), "optilock": flushes(1, 1)}
    lines = compare("q", "SQLite", 1, timings, goals={"flush": 0.5})
    assert [(found.question, found.reached) for found in lines] == [("q: flush", True)]


def test_the_table_has_a_row_for_each_line_and_the_facts_below() -> None:
    text = markdown([line(0.2)], {"Python": "3.11"}).splitlines()
    assert text[0] == "| " + " | ".join(COLUMNS) + " |"
    assert text[2] == (
        "| same columns: flush, against native | SQLite | 1,000 | 1.000 | - | - | 0.200"
        " | 0.200 (0.100-0.300) | ≤ 0.2 | yes |"
    )
    assert text[-1] == "- Python: 3.11"


def test_json_carries_ratios_goal_and_verdict() -> None:
    (found,) = json.loads(to_json([line(0.2)], {}))["lines"]
    assert found["ratios"]["optilock"] == {"median": 0.2, "low": 0.1, "high": 0.3}
    assert (found["goal"], found["reached"]) == (0.2, True)


def test_json_gives_its_lines_again() -> None:
    load = LoadLine("hot row", "SQLite", 2, "optilock", 9.0, "x", Ratio(1, 1, 2), 0.1, 0.2, 0.5, 1)
    lines = [line(0.2), CountLine("deadlocks", "SQLite", 1, 3), load, replace(load, ratio=None)]
    assert from_json(to_json(lines, {"Python": "3.11"})) == (lines, {"Python": "3.11"})


def test_each_benchmark_has_its_place_in_a_report() -> None:
    assert set(report.RUNS) == set(BENCHMARKS)
    for name, run in report.RUNS.items():
        assert set(run.databases) <= set(_databases(name))
        assert not set(run.plan.subjects) - set(PEERS)


def test_the_figures_in_the_documentation_are_those_of_the_results(tmp_path: Path) -> None:
    for path in report.FIGURES.glob("*.json"):
        shutil.copy(path, tmp_path)
    for path in report.write(tmp_path, _questions()):
        kept = report.FIGURES / path.name
        assert kept.read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), path.name


def test_a_picture_says_what_it_shows_and_what_loses() -> None:
    units = {"optilock": 900.0, "unversioned": 1_000.0}
    crowd = [
        LoadLine("q", "PostgreSQL, socket", 8, name, each, "x", None, 0.1, 0.2, 0.5, 1, lost=lost)
        for (name, each), lost in zip(units.items(), (0, 7), strict=True)
    ]
    trips = [
        RatioLine("open to close, pipelined: load to COMMIT", f"PostgreSQL, {far}", 1, "native",
                  {"pipelined": Ratio(0.5, 0.4, 0.6)}, subject="pipelined")
        for far in ("socket", "1 ms", "5 ms")
    ]  # fmt: skip
    batch = replace(line(None), question="same columns: change to COMMIT")
    batch = replace(batch, database="PostgreSQL, socket")
    one = replace(batch, question="open to close, optilock: load to COMMIT", rows=1)
    found = report.pictures(
        {"smallbank": crowd, "trips": trips, "batch": [batch], "overhead": [one]}
    )
    assert len(found) == 4
    for text in found.values():
        root = ElementTree.fromstring(text)
        assert all(
            root.find(f"{{http://www.w3.org/2000/svg}}{name}").text for name in ("title", "desc")
        )
        assert "prefers-color-scheme: dark" in text
    assert found["contention.svg"].count('class="other hollow"') == 1
    assert report.pictures({}) == {}


def test_rounds_that_are_asked_for_are_run() -> None:
    assert [Plan(rounds=7).rounds_for(cost) for cost in (SHORT, MEDIUM, LONG)] == [7, 7, 7]


def test_what_is_short_gets_more_rounds_than_what_takes_seconds() -> None:
    for plan in (Plan(), Plan(quick=True)):
        assert plan.rounds_for(SHORT) > plan.rounds_for(MEDIUM) > plan.rounds_for(LONG) >= 3


def test_the_largest_batch_is_not_run_where_every_row_is_a_round_trip() -> None:
    assert Plan().sizes(SOCKET) == (10, 100, 1_000, 10_000)
    assert Plan().sizes(DELAYED) == (10, 100, 1_000)


def test_a_goal_holds_for_the_size_it_was_set_for() -> None:
    assert Plan().goal(MANY, 0.28) == 0.28
    assert Plan().goal(20, 0.28) is None


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    names = [text.split()[0] for text in capsys.readouterr().out.splitlines()]
    assert names == list(BENCHMARKS)


def test_an_unknown_benchmark_is_refused_with_the_names_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "there are overhead, batch, conflicts" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("shape", list(Shape))
def test_every_subject_writes_the_rows_and_moves_their_versions(shape: Shape, rows: int) -> None:
    with places(["sqlite"]) as (place,), place.engine() as engine:
        for name, subject in build(engine, rows, shape).items():
            subject()
            with engine.connect() as connection:
                stored = connection.execute(select(subject.table)).all()
            changed = [row.name != "name" or row.amount != 0 for row in stored]
            assert changed == [True] * rows, name
            if name != "unversioned":
                assert [row.version for row in stored] == [2] * rows, name


def test_mapper_events_of_the_lively_shape_are_heard_for_every_row() -> None:
    with places(["sqlite"]) as (place,), place.engine() as engine:
        subject = build(engine, 5, Shape.LIVELY, only=["optilock"])["optilock"]
        before = dict(heard)
        subject()
    assert {name: heard[name] - before[name] for name in heard} == {
        "before_update": 5,
        "after_update": 5,
    }


def test_statements_are_counted_where_the_driver_gets_them() -> None:
    with places(["sqlite"]) as (place,), place.engine() as engine:
        native = build(engine, 5, Shape.SAME, only=["native"])["native"]
        assert counted(engine, native) == 1 + 5  # one SELECT, one UPDATE a row


@pytest.mark.parametrize("compiled", [True, False])
def test_a_reply_comes_no_sooner_than_the_delay_and_how_late_it_was_is_known(
    compiled: bool,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_once, args=(server,), daemon=True).start()
        near = delayed("127.0.0.1", server.getsockname()[1], seconds=0.02, compiled=compiled)
        with near as network, socket.create_connection(("127.0.0.1", network.port)) as client:
            begin = time.perf_counter()
            client.sendall(b"question")
            assert client.recv(64) == b"answer to question"
            passed = time.perf_counter() - begin
            report = network.report()
    assert passed >= 0.02
    assert (report.replies, report.trips) == (1, 1)
    assert 0 <= report.median <= (passed - 0.02) * 1e6 + 1_000


def answer_once(server: socket.socket) -> None:
    client, _ = server.accept()
    with client:
        client.sendall(b"answer to " + client.recv(64))


def run(names: Sequence[str], tmp_path: Path) -> tuple[int, str]:
    table = tmp_path / "table.md"
    options = ["--rounds", "1", "--rows", "20", "--database", "sqlite", "--markdown", str(table)]
    return main([*names, *options]), table.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["overhead", "batch"])
def test_every_comparison_runs_to_its_table(name: str, tmp_path: Path) -> None:
    _, table = run([name], tmp_path)
    figures = [row for row in table.splitlines() if row.startswith("| ")][2:]
    assert figures
    assert all("| SQLite |" in row for row in figures)
    assert f"`python -m benchmarks {name}" in table


@pytest.mark.full
def test_what_needs_no_database_runs_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    main(["preconditions", "--rounds", "1"])
    assert "| PUT, If-Match misses, 10 lines, against etag " in capsys.readouterr().out


def test_both_applications_store_what_a_put_has_sent() -> None:
    with places(["sqlite"]) as (place,), place.engine() as engine:
        (line, _) = entities.through_fastapi(place, Plan(rounds=1, many=1), engine)
        assert {*line.ratios} == {"read, compare, write", "optilock"}
        for model in (NativeItem, OptilockItem):
            with Session(engine) as session:
                stored = session.get_one(model, 1)
                # A warm-up, and a round.
                assert (stored.version, stored.note) == (3, "note")


@pytest.mark.full
def test_overlapping_batches_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_PROCESSES", 2)
    code, table = run(["overlap"], tmp_path)
    assert "| overlapping batches: lost changes | SQLite |" in table
    assert code == 0, table


def test_json_is_printed_in_the_place_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["overhead", "--rounds", "1", "--rows", "20", "--database", "sqlite", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert {found["database"] for found in printed["lines"]} == {"SQLite"}
    assert "SQLAlchemy" in printed["facts"]


def test_a_benchmark_says_which_databases_it_runs_on() -> None:
    assert _wanted(["overhead", "batch"], None) == [*USUAL, "memory", "mariadb"]
    assert _wanted(["batch"], None) == [*USUAL, "mariadb"]
    assert _wanted(["guard_trigger"], None) == ["socket", "sqlite", "mariadb"]
    assert _wanted(["overhead", "guard_trigger"], ["mariadb"]) == ["mariadb"]
    assert _wanted(["rollout"], ["mariadb"]) == ["mariadb"]
    assert _wanted(["trips"], ["mariadb"]) == []
    assert _wanted(["preconditions"], None) == ["none"]


def test_mariadb_is_left_out_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.servers.mariadb", _missing)
    with places(["sqlite", "mariadb"]) as found:
        assert [place.name for place in found] == ["sqlite"]
    assert "mariadb-server" in capsys.readouterr().err
    with pytest.raises(ServerMissing), places(["mariadb"]):
        pass


def _missing() -> NoReturn:
    raise ServerMissing("install your system's package mariadb-server")
