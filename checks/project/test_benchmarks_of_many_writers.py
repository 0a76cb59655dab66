"""The benchmarks of many writers, and the libraries that are compared in them.

What runs by default is tiny, on SQLite, and says nothing about speed. With ``--full`` each
benchmark runs once as ``--quick`` does, on one of its databases.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update

from benchmarks.__main__ import _databases, main
from benchmarks.conflicts import Met
from benchmarks.contention import Increments, Raised, Spread
from benchmarks.crowd import PAUSED, Load, Share, Turn, crowd
from benchmarks.loads import Bench, _held, against_locks, beside, interleaved, load_lines, reset
from benchmarks.measure import Ratio
from benchmarks.servers import Place, places
from benchmarks.smallbank import SAVINGS, SmallBank
from benchmarks.statements import called
from benchmarks.stores.again import Conflict, again
from benchmarks.stores.kinds import fill, table_of
from benchmarks.stores.peers import LOCKING, PEERS, opened, present
from benchmarks.table import LOAD_COLUMNS, CountLine, Line, RatioLine, markdown
from benchmarks.tpcb import HISTORY, TpcB
from benchmarks.ycsb import YcsbA
from benchmarks.zipf import Zipf

#: Sizes that tell as much as larger ones do.
_TINY = [
    Increments(Spread.HOT, 5),
    Raised(Spread.OPPOSITE, 5),
    YcsbA(5),
    SmallBank(20),
    TpcB(1, 9),
]
_NAMES = ("contention", "ycsb", "smallbank", "tpcb", "conflicts", "isolation", "memory", "scale")
#: Those whose library may not be installed run in processes of their own.
_PLAIN = [
    name for name, peer in PEERS.items() if not peer.packages and present("sqlite", among=[name])
]


@pytest.fixture
def place() -> Iterator[Place]:
    with places(["sqlite"]) as (found,):
        yield found


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    with place.engine() as engine:
        yield engine


def begun(engine: Engine, bench: Bench) -> Counter[str]:
    reset(engine, bench)
    with engine.begin() as connection:
        return bench.begin(connection)


def broken(engine: Engine, bench: Bench, before: Counter[str], added: Counter[str]) -> Counter[str]:
    with engine.connect() as connection:
        return +bench.broken(connection, before, added)


@pytest.mark.parametrize("name", _PLAIN)
@pytest.mark.parametrize("bench", _TINY)
@pytest.mark.tenth
def test_a_subject_alone_stores_what_it_says(
    name: str, bench: Bench, place: Place, engine: Engine
) -> None:
    before = begun(engine, bench)
    store = opened(name, place.url)
    added: Counter[str] = Counter()
    for number in range(20):
        added.update(store.run(bench.unit(random.Random(number), 0, 0.0)))
    store.close()
    assert broken(engine, bench, before, added) == {}
    assert sum(added.values()) != 0


def test_what_is_not_there_is_seen(engine: Engine) -> None:
    bank = SmallBank(9)
    before = begun(engine, bank)
    assert broken(engine, bank, before, Counter()) == {}
    savings = table_of(SAVINGS)
    with engine.begin() as connection:
        connection.execute(update(savings).where(savings.c.id == 3).values(balance=-150))
    assert broken(engine, bank, before, Counter()) == {"lost": 250, "overdrawn": 1}
    assert broken(engine, bank, before, Counter(money=-250)) == {"overdrawn": 1}


def test_a_booking_without_its_history_is_seen(engine: Engine) -> None:
    bench = TpcB(1, 9)
    before = begun(engine, bench)
    assert broken(engine, bench, before, Counter(bookings=1, money=5)) == {"lost": 3, "history": 1}
    with engine.begin() as connection:
        fill(connection, HISTORY, 2, dict.fromkeys(HISTORY.numbers, 1))
    assert broken(engine, bench, before, Counter()) == {"history": 2}


def test_nobody_sends_or_takes_what_he_has_not(engine: Engine, place: Place) -> None:
    bank = SmallBank(customers=2, hot=2)
    before = begun(engine, bank)
    store = opened("native, retried", place.url)
    added: Counter[str] = Counter()
    for number in range(300):
        added.update(store.run(bank.unit(random.Random(number), 0, 0.0)))
    store.close()
    assert broken(engine, bank, before, added) == {}


@pytest.mark.parametrize("name", ["optilock", "hand-written"])
def test_writers_at_the_same_time_lose_nothing(name: str, place: Place, engine: Engine) -> None:
    load = measured(place, engine, Increments(Spread.HOT, 5), name)
    assert load.broken == {"lost": 0}
    assert load.added["number"] >= load.done


def measured(place: Place, engine: Engine, bench: Bench, name: str) -> Load:
    """Two writers, for longer until a unit is done: a busy machine may do none in a short time."""
    seconds = 0.2
    with crowd(place.url, 2) as writers:
        while True:
            reset(engine, bench)
            (load,) = interleaved(
                writers, engine, bench, [name], writers=2, seconds=seconds, rounds=1
            )[name]
            if load.done:
                return load
            seconds *= 2


def test_a_writer_that_fails_tells_why(place: Place) -> None:
    turn = Turn("optilock", Increments(Spread.HOT, 5), writers=1, seconds=0.1)
    with crowd(place.url, 1) as writers, pytest.raises(RuntimeError, match="no such table"):
        writers.turn(turn)


def test_somebody_else_is_met_once_in_a_unit_and_his_time_is_told(
    place: Place, engine: Engine
) -> None:
    bench = Met(1.0, place.direct)
    before = begun(engine, bench)
    store = opened("optilock, at once", place.url)
    added = store.run(bench.unit(random.Random(0), 0, 0.0))
    store.close()
    assert added.pop(PAUSED) > 0
    assert added == {"number": 2}
    assert broken(engine, bench, before, added) == {}


def test_a_loop_runs_what_was_refused_again_and_nothing_else() -> None:
    outcomes = iter([Conflict(), Conflict(), None])
    ran: list[int] = []

    def attempt() -> int:
        ran.append(1)
        if (error := next(outcomes)) is not None:
            raise error
        return len(ran)

    assert again(attempt, at_once=True) == 3
    with pytest.raises(ZeroDivisionError):
        again(lambda: 1 // 0, at_once=True)


def test_a_zipf_key_is_wanted_as_often_as_its_rank_says() -> None:
    zipf, chance = Zipf(100), random.Random(1)
    ((_, most), (_, second)) = Counter(zipf.key(chance) for _ in range(20_000)).most_common(2)
    assert 1.7 < most / second < 2.3  # 2 ** 0.99
    assert {zipf.key(chance) for _ in range(20_000)} == {*range(1, 101)}


def test_the_hot_row_moves_and_neighbours_take_two_rows_in_opposite_orders() -> None:
    moving = Increments(Spread.MOVING, 5, period=10)
    assert [keys(moving, 0, seconds) for seconds in (0, 9.9, 10, 51)] == [[1], [1], [2], [1]]
    opposite = Increments(Spread.OPPOSITE, 5)
    assert [keys(opposite, writer, 0) for writer in (0, 1)] == [[2, 1], [1, 2]]


def keys(bench: Increments, writer: int, seconds: float) -> list[int]:
    return list(bench._keys(random.Random(0), writer, seconds))


def load(*done: int, seconds: float = 2.0, lost: int = 0) -> Load:
    shares = [Share(each, [0.001 * each] * each, 2 * each, 0, Counter()) for each in done]
    return Load(seconds, shares, broken=Counter(lost=lost))


def test_figures_of_a_load() -> None:
    found = load(10, 30)
    assert (found.goodput, found.fairness, found.attempts) == (20, 1 / 3, 2)
    assert (found.percentile(0.1), found.percentile(0.99)) == (0.01, 0.03)


def test_a_line_for_each_subject_has_what_was_lost_and_the_ratio_of_each_round() -> None:
    loads = {"optilock": [load(10), load(20)], LOCKING: [load(20, lost=3), load(20)]}
    place = Place("socket", "", "")
    first, second = load_lines("hot row", place, 1, loads, LOCKING)
    assert (first.ratio, first.lost, first.reached) == (Ratio(0.75, 0.5, 1.0), 0, True)
    assert (second.ratio, second.lost, second.reached) == (Ratio(1, 1, 1), 3, None)
    cells = dict(zip(LOAD_COLUMNS, first.cells(), strict=True))
    assert (cells["units/s"], cells["subject"]) == ("8", "optilock")


def test_more_is_better_where_the_goal_says_so() -> None:
    place = Place("socket", "", "")
    loads = {"optilock": [load(19)], LOCKING: [load(20)]}
    (line,) = beside("q", place, 1, loads, "optilock", goal=0.95)
    assert (line.reached, line.cells()[-2]) == (True, "≥ 0.95")
    (line,) = beside("q", place, 1, loads, "optilock", goal=0.96)
    assert line.reached is False
    assert not [*beside("q", place, 1, loads, "optilock, optimistic", goal=1.0)]
    lines = [*against_locks("q", place, 2, {"optilock": [load(10, 30)]})]
    assert [line.reached for line in lines] == [False]


def test_the_default_is_held_against_who_locks() -> None:
    place = Place("socket", "", "")
    loads = {"optilock": [load(19, 20)], LOCKING: [load(20, 20)]}
    lines = [*against_locks("hot row", place, 2, loads)]
    assert [(line.goal, line.reached) for line in lines] == [
        (0.95, True),
        (1.3, True),
        (0.5, True),
        (0, True),
    ]


def test_each_mapper_that_kept_its_promises_is_what_we_are_held_against() -> None:
    place = Place("socket", "", "")
    loads = {
        "optilock": [load(20)],
        LOCKING: [load(20)],
        "Django, select_for_update": [load(20)],
        "native, retried": [load(30, lost=1)],
        "unversioned": [load(30)],
        "Core, checked": [load(30)],
        "hand-written": [load(50)],
    }
    lines = [line for line in loads_of(place, loads) if isinstance(line, RatioLine)]
    assert [(line.against, line.goal, line.reached) for line in lines] == [
        ("Django, select_for_update", 1.0, True),
        ("hand-written", 0.5, False),
    ]


def loads_of(place: Place, loads: dict[str, list[Load]]) -> list[Line]:
    return [*_held("YCSB-A", place, 8, loads)]


def test_each_kind_of_line_has_a_table_of_its_own() -> None:
    place = Place("socket", "", "")
    lines = [
        CountLine("count", "SQLite", 1, 2),
        *load_lines("hot row", place, 1, {"optilock": [load(10)]}, LOCKING),
        CountLine("another", "SQLite", 1, 2),
    ]
    tables = markdown(lines, {"Python": "3.11"}).split("\n\n")
    assert [len(table.splitlines()) for table in tables] == [4, 3, 1]


def test_an_option_that_is_not_known_leaves_its_subject_out() -> None:
    assert "optilock" in present("socket")
    assert present("socket", ["optilock"]) == ["optilock"]
    assert LOCKING not in present("sqlite")
    assert "optilock, merged" not in present("socket")
    assert present("socket", among=["optilock, merged"]) == ["optilock, merged"]


def test_calls_of_python_functions_are_counted() -> None:
    def inner() -> None:
        pass

    def outer() -> None:
        inner()
        inner()

    assert called(outer) == 3


@pytest.mark.full
@pytest.mark.parametrize("name", ["contention", "conflicts", "memory"])
def test_a_benchmark_runs_to_its_table(name: str, tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    asked = ["--quick", "--rounds", "1", "--rows", "20", "--seconds", "0.05", "--writers", "2"]
    subjects = ["optilock", "optilock, merged", "native, retried", "native, retried at once"]
    asked += [part for subject in subjects for part in ("--subject", subject)]
    main([name, *asked, "--database", "sqlite", "--markdown", str(table)])
    assert "| SQLite |" in table.read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("turn", "name"), [*enumerate((*_NAMES, "network"))])
def test_a_quick_run_loses_nothing(
    turn: int, name: str, capsys: pytest.CaptureFixture[str], tries: Any
) -> None:
    """With ``--full`` on one of its databases, with ``--product`` on all of them."""
    databases = [*_databases(name)]
    some = databases if tries(0, 0, 1) else [databases[turn % len(databases)]]
    main([name, "--quick", *(word for one in some for word in ("--database", one))])
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| ")]
    assert not [row for row in rows if "| optilock" in row and row.endswith("| no |")]
    assert not [row for row in rows if ": lost" in row and row.endswith("| no |")]
