"""Random histories break no promise; and where nothing guards the rows, the judge says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.history.authors import Settings
from checks.history.histories import History, history
from checks.history.mappings import MAPPINGS
from checks.history.model import Kind, Ledger, Transaction, judge
from checks.history.operations import Step
from checks.history.runner import Place
from checks.history.shrink import finding, shrink
from optilock.dialects.transaction_ends import WatchedTransaction
from tests.engines import Target

ROOT = Path(__file__).parents[2]
#: How many, with ``--full``, and with ``--product``. ``python -m checks.history`` runs more.
SEEDS = {
    "sqlite-wal": (150, 400, 3_000),
    "postgresql": (60, 120, 3_000),
    "mariadb": (60, 200, 3_000),
}
IN_A_PROCESS_OF_ITS_OWN = (60, 150, 1_000)
A, B = 0, 1
Tries = Callable[[int, int, int], int]


@pytest.fixture
def place(database: Target) -> Iterator[Place]:
    made = Place(database)
    yield made
    made.close()


def told(place: Place, seeds: range) -> str:
    """The first findings, each made as short as it goes; nothing if there is none."""
    found = (finding(place, history(seed)) for seed in seeds)
    first = [shrink(one) for one, _ in zip((one for one in found if one), range(3), strict=False)]
    return "\n".join(map(str, first))


@pytest.mark.timeout(900)
def test_no_history_breaks_a_promise(place: Place, tries: Tries) -> None:
    found = told(place, range(tries(*SEEDS[place.target.name])))
    assert not found, found


@pytest.mark.timeout(300)
@pytest.mark.full
def test_nor_does_one_of_sessions_that_were_watched_before_mappers_were_configured(
    tries: Tries,
) -> None:
    """That order is settled once in a process: so this is one of its own."""
    aggregates = [name for name in MAPPINGS if name.startswith("orders")]
    seeds = str(tries(*IN_A_PROCESS_OF_ITS_OWN))
    options = ["--seeds", seeds, "--shrink", "--show", "1", "--mappings", *aggregates]
    done = subprocess.run(
        [sys.executable, "-m", "checks.history", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.engines("sqlite-wal")
def test_a_transaction_that_ended_unnoticed_is_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQL text ends the transaction of each eighth history."""
    monkeypatch.setattr(WatchedTransaction, "_end", lambda *given: None)
    found = (finding(place, history(seed)) for seed in range(5, 150, 8))
    assert any(one is not None and one.fault.word == "missing" for one in found)


# -- the judge ------------------------------------------------------------------------------------


def story(on: str, *steps: Step, plain: bool = False, **settings: Any) -> History:
    """All authors but the first one have plain settings."""
    others = Settings(plain=plain)
    return History(-1, on, (Settings(plain=plain, **settings), others), steps)


LOST_UPDATE = (
    Step(A, "get"),
    Step(B, "set_"),
    Step(B, "commit"),
    Step(A, "set_", column=1),
    Step(A, "commit"),
)


@pytest.mark.engines("sqlite-wal")
def test_a_lost_update_of_a_plain_session_is_reported(place: Place) -> None:
    found = finding(place, story("pages-plain", *LOST_UPDATE, plain=True))
    assert found is not None
    assert found.fault.word == "lost"


@pytest.mark.engines("sqlite-wal")
def test_the_same_steps_are_right_where_rows_have_versions(place: Place) -> None:
    assert finding(place, story("pages-counter", *LOST_UPDATE)) is None


@pytest.mark.engines("sqlite-wal")
@pytest.mark.full
def test_most_words_of_the_judge_are_heard_of_plain_sessions(place: Place) -> None:
    """Versions are there, but nobody watches: what SQLAlchemy alone lets through is told."""
    words = set()
    for seed in range(150):
        made = history(seed, ("pages-plain",))
        plain = History(seed, made.mapping, (Settings(plain=True),) * len(made.authors), made.steps)
        found = finding(place, plain)
        words.add(found.fault.word if found else "")
    assert {"", "lost"} <= words


@pytest.mark.engines("sqlite-wal")
def test_a_finding_is_shrunk_to_the_steps_that_it_needs(place: Place) -> None:
    more = (Step(B, "get", 1), Step(A, "touch_", 2), *LOST_UPDATE, Step(B, "rollback"))
    found = finding(place, story("pages-plain", *more, plain=True))
    assert found is not None
    short = shrink(found)
    assert len(short.history.steps) < len(more)
    assert "A.commit" in str(short)


#: Steps that broke a promise once.
FOUND = {
    "A2: an increment beside another column, under a resolver": story(
        "liked-counter",
        Step(A, "like"),
        Step(B, "like"),
        Step(B, "commit"),
        Step(A, "set_"),
        Step(A, "commit"),
        policy="merge_fields",
    ),
    "A3: a row that is written by its key": story(
        "pages-timestamp",
        Step(B, "get"),
        Step(A, "update_by_key"),
        Step(A, "commit"),
        Step(B, "set_"),
        Step(B, "commit"),
    ),
    "A11: a row that is written in two savepoints": story(
        "pages-counter",
        Step(A, "set_", 1),
        Step(A, "flush"),
        Step(A, "savepoint"),
        Step(A, "set_"),
        Step(A, "savepoint"),
        Step(A, "set_", column=1),
        Step(A, "flush"),
        Step(A, "rollback"),
        Step(B, "set_"),
        Step(B, "commit"),
        Step(A, "set_"),
        Step(A, "commit"),
    ),
    "A11: a savepoint that has written nothing of a row": story(
        "pages-counter",
        Step(A, "set_"),
        Step(A, "flush"),
        Step(A, "savepoint"),
        Step(A, "touch_"),
        Step(A, "back_to_savepoint"),
        Step(A, "commit"),
        Step(B, "set_"),
        Step(B, "commit"),
        Step(A, "set_"),
        Step(A, "commit"),
    ),
}


@pytest.mark.parametrize("known", FOUND)
def test_what_was_found_once_stays_mended(place: Place, known: str) -> None:
    found = finding(place, FOUND[known])
    assert found is None, str(found)


@pytest.mark.parametrize(("stored", "words"), [(3, []), (2, ["sum"]), (4, ["sum"])])
def test_a_sum_that_is_not_exact_is_reported(stored: int, words: list[str]) -> None:
    row, kind = ("liked", 1), Kind("liked", ("title",), counter="likes")
    ledger = Ledger([kind], {row: {"title": "a", "likes": 1, "version": 1}})
    done = Transaction(added={row: 2})
    after = {row: {"title": "a", "likes": stored, "version": 2}}
    assert [fault.word for fault in judge(ledger, done, after, "none")] == words


#: What the judge has to know, and steps that show it.
RIGHT = {
    "a delete that waits for its flush is not settled": story(
        "pages-counter",
        Step(A, "delete"),
        Step(B, "set_"),
        Step(B, "commit"),
        Step(A, "select_some_anew"),
        Step(A, "delete"),
        Step(A, "commit"),
        policy="store_wins",
    ),
    "nor is a root whose part waits for its flush": story(
        "orders-counter",
        Step(A, "add_child"),
        Step(A, "commit"),
        Step(B, "touch_", 3),
        Step(B, "commit"),
        Step(A, "set_", 3),
        Step(A, "get"),
        Step(A, "verify_"),
        Step(A, "select_some_anew_unflushed"),
        Step(A, "commit"),
        policy="merge_fields",
    ),
    "a resolver may drop a touch before the object is read again": story(
        "dogs-timestamp",
        Step(A, "touch_", 1),
        Step(B, "set_", 1),
        Step(B, "commit"),
        Step(A, "refresh_one", 1),
        Step(A, "commit"),
        policy="store_wins",
    ),
    "what a refused flush has read was seen by nobody": story(
        "pages-counter",
        Step(A, "get"),
        Step(A, "commit"),
        Step(B, "set_"),
        Step(B, "commit"),
        Step(A, "set_", column=2),
        Step(A, "commit"),
        Step(A, "rollback"),
        Step(A, "touch_"),
        Step(A, "commit"),
    ),
    "what is read under a version that is held belongs to that version": story(
        "orders-counter",
        Step(A, "get", 1),
        Step(A, "expire", 1),
        Step(A, "touch_", 1),
        Step(A, "commit"),
        Step(B, "set_", 1),
        Step(B, "commit"),
        Step(A, "read", 1),
        Step(A, "touch_", 4),
        Step(A, "commit"),
        expire_on_commit=False,
    ),
    "no version tells that a change of a collection was undone": story(
        "orders-counter",
        Step(A, "remove_child"),
        Step(A, "flush"),
        Step(A, "close"),
        Step(A, "merge"),
    ),
    "nor does one tell that it was read after a statement which was undone": story(
        "pages-counter",
        Step(A, "update_class"),
        Step(A, "select_some", 1, 2, 2),
        Step(A, "close"),
        Step(A, "merge", 1, 2, 1),
    ),
    "no resolver is asked for a statement": story(
        "liked-rowversion",
        Step(A, "select_some", 2, 0, 1),
        Step(B, "set_", 2, 2),
        Step(B, "commit"),
        Step(A, "update_table", 2, 2),
        Step(A, "set_", 2, 2),
        Step(A, "flush"),
        policy="merge_fields",
    ),
    "nor does one tell that a row was never stored": story(
        "orders-counter",
        Step(A, "get", 1),
        Step(B, "set_", 1),
        Step(B, "commit"),
        Step(A, "add_child", 1),
        Step(A, "commit"),
        Step(A, "pickle_", 1),
        Step(A, "rollback"),
        Step(A, "merge"),
    ),
    "SQLAlchemy adds no second object of a row": story(
        "orders-counter",
        Step(A, "add_child", 4),
        Step(A, "close"),
        Step(A, "merge", choice=1),
        Step(A, "add"),
    ),
    "nor one that was deleted": story(
        "orders-counter",
        Step(A, "load_children", 1),
        Step(A, "delete", 4),
        Step(A, "flush"),
        Step(A, "close"),
        Step(A, "add"),
    ),
}


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("known", RIGHT)
def test_the_judge_reports_nothing_where(place: Place, known: str) -> None:
    found = finding(place, RIGHT[known])
    assert found is None, str(found)


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_is_always_the_same_history(seed: int) -> None:
    assert history(seed) == history(seed)
