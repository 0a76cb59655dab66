"""What a roll-out would send is shown, and one that was not finished is taken back."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, inspect, text

from optilock import ConfigurationError, OptilockError
from optilock.dialects.values import plain_ddl
from optilock.rollout import abort, claim, dry_run, roll_out
from optilock.rollout.report import Silent
from optilock.tokens import Counter, RowVersion, Timestamp, Unique
from tests.support.migrating import once_free, shape

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]
WAYS: dict[str, dict[str, Any]] = {
    "counter": {"token": Counter(), "guard": "bump"},
    "unique": {"token": Unique(), "guard": "reject", "ignore": ["owner"]},
    "timestamp": {"token": Timestamp()},
    "row-version": {"token": RowVersion()},
}
each_way = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)


@pytest.fixture(autouse=True)
def parcels(engine: Engine) -> None:
    create(engine)


def create(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parcels (id INTEGER PRIMARY KEY, owner VARCHAR(20))"))
        connection.execute(text("INSERT INTO parcels VALUES (1, 'Ada'), (2, 'Bob'), (3, 'Eve')"))


def everything(engine: Engine) -> tuple[Any, ...]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM parcels ORDER BY id")).all()
    return shape(engine, "parcels"), rows, inspect(engine).get_table_names()


# -- what it would send ----------------------------------------------------------------------------


@each_way
def test_a_dry_run_changes_nothing(engine, options):
    before = everything(engine)
    shown = dry_run(engine, "parcels", **options)
    assert shown[0].startswith("-- ")
    assert any("version" in line for line in shown)
    assert everything(engine) == before


@each_way
def test_what_it_shows_makes_the_same_table(engine, options):
    """But for the rows that are filled in batches."""
    shown = dry_run(engine, "parcels", **options)
    with engine.begin() as connection:
        for line in shown:
            if "(the " in line:  # the keys of a batch
                line = line[: line.index(" AND (")]
            if not line.startswith("--"):
                connection.execute(plain_ddl(line))
    assert roll_out(engine, "parcels", **options).steps == ()
    by_hand = shape(engine, "parcels")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE parcels"))
    create(engine)
    roll_out(engine, "parcels", **options)
    assert shape(engine, "parcels") == by_hand


@each_way
def test_it_shows_nothing_where_there_is_nothing_to_do(engine, options):
    roll_out(engine, "parcels", **options)
    assert dry_run(engine, "parcels", **options) == []


def test_what_is_refused_is_refused_by_a_dry_run_too(engine):
    with pytest.raises(ConfigurationError, match="primary key"):
        dry_run(engine, "parcels", token=Counter(column="id"))


# -- what is left is removed -----------------------------------------------------------------------


class Fails(Silent):
    def __init__(self, at: str) -> None:
        self.at = at

    def step(self, name: str, total: int | None = None) -> None:
        if name == self.at:
            raise RuntimeError(name)


@each_way
@pytest.mark.parametrize("at", ["fill", "require it"])
def test_a_roll_out_that_failed_is_taken_back(engine, options, at):
    before = everything(engine)
    if engine.dialect.name == "sqlite" and not isinstance(options["token"], (Unique, Timestamp)):
        at = "create the guard trigger"  # the version is finished after that
        if not options.get("guard"):
            return
    with pytest.raises(RuntimeError):
        roll_out(engine, "parcels", progress=Fails(at), **options)
    if at == "create the guard trigger":
        with pytest.raises(ConfigurationError, match="its roll-out is over"):
            abort(engine, "parcels", token=options["token"])
        return
    assert "drop the column" in abort(engine, "parcels", token=options["token"])
    assert everything(engine) == before
    roll_out(engine, "parcels", **options)


class Reads(Silent):
    """A reader of the owner's note may take as long as it likes."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.connection = engine.connect()
        self.over = threading.Timer(seconds, self.connection.close)

    def step(self, name: str, total: int | None = None) -> None:
        if name == "drop the column":
            self.connection.execute(text("SELECT * FROM optilock_rollout_of_parcels")).all()
            self.over.start()


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize(("seconds", "goes"), [(0.5, True), (4.0, False)])
@pytest.mark.full
def test_the_note_of_who_works_goes_though_somebody_looks_at_it(engine, seconds, goes):
    """MariaDB's own threads do, now and then."""
    with pytest.raises(RuntimeError):
        roll_out(engine, "parcels", progress=Fails("fill"))
    reads = Reads(engine, seconds)
    done = abort(engine, "parcels", progress=reads)
    left = "optilock_rollout_of_parcels" in inspect(engine).get_table_names()
    reads.over.join()
    assert ("drop the owner's note" in done, left) == (goes, not goes)
    assert abort(engine, "parcels") == (() if goes else ("drop the owner's note",))


@pytest.mark.full
@each_way
def test_killed_at_every_step_it_is_taken_back(engine, options, monkeypatch):
    monkeypatch.setattr(claim, "TERM", 0.3)
    before = everything(engine)
    engine.dispose()
    for commits in range(1, 100):
        if not killed(engine.url, options, commits):
            break
        taken_back(engine, options["token"])
        found = everything(engine)
        if found != before:  # it was finished
            with pytest.raises(ConfigurationError, match="its roll-out is over"):
                abort(engine, "parcels", token=options["token"])
            once_free(lambda: roll_out(engine, "parcels", **options))
            break
        engine.dispose()
    assert commits > 2


def taken_back(engine: Engine, token: Any) -> None:
    with suppress(ConfigurationError):
        once_free(lambda: abort(engine, "parcels", token=token))


def killed(url: Any, options: dict[str, Any], commits: int) -> bool:
    def until() -> None:
        engine, left = create_engine(url), [commits]

        @event.listens_for(engine, "commit")
        def count(connection: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        roll_out(engine, "parcels", **options)

    process = multiprocessing.get_context("fork").Process(target=until)
    process.start()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_nothing_is_left_of_a_table_that_had_no_roll_out(engine):
    before = everything(engine)
    assert abort(engine, "parcels") == ()
    assert everything(engine) == before


def test_one_that_is_over_is_not_taken_back(engine):
    roll_out(engine, "parcels")
    before = everything(engine)
    with pytest.raises(ConfigurationError, match="its roll-out is over"):
        abort(engine, "parcels")
    assert everything(engine) == before


def test_one_that_runs_is_not_taken_back(engine):
    class Aborts(Silent):
        def step(self, name: str, total: int | None = None) -> None:
            if name == "fill":
                with pytest.raises(OptilockError, match="Another roll-out"):
                    abort(engine, "parcels", token=Unique())

    assert roll_out(engine, "parcels", token=Unique(), progress=Aborts()).filled == 3


@pytest.mark.parametrize("commits", [1, 2, 3, 4])
def test_one_that_is_finished_while_it_looks_is_not_taken_back(engine, commits):
    with pytest.raises(RuntimeError):
        roll_out(engine, "parcels", token=Unique(), progress=Fails("fill"))
    beside, left, finished = create_engine(engine.url), [commits], []

    @event.listens_for(beside, "commit")
    def finish(connection: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            with suppress(OptilockError):  # the one that is taken back has said so by now
                roll_out(engine, "parcels", token=Unique(), patience=0.2)
                finished.append(True)

    with suppress(OptilockError):  # it is over, or just ending
        abort(beside, "parcels", token=Unique())
    beside.dispose()
    names = [column["name"] for column in inspect(engine).get_columns("parcels")]
    assert ("version" in names) == bool(finished)


SAME_TYPE = {
    "row-version": (RowVersion(), Counter(), None),
    "guarded": (Counter(), RowVersion(), "bump"),
}


@pytest.mark.engines("postgresql", "mariadb")  # on SQLite a counter is there at once
@pytest.mark.parametrize(("made", "said", "guard"), SAME_TYPE.values(), ids=SAME_TYPE)
def test_no_trigger_is_left_without_its_column(engine, made, said, guard):
    """Though who takes it back has forgotten which token it was: they have the same type."""
    before = everything(engine)
    with pytest.raises(RuntimeError):
        roll_out(engine, "parcels", token=made, guard=guard, progress=Fails("fill"))
    assert "drop the triggers" in abort(engine, "parcels", token=said)
    assert everything(engine) == before


def test_the_guard_of_another_version_stays(engine):
    roll_out(engine, "parcels", guard="bump")
    before = everything(engine)
    with pytest.raises(RuntimeError):
        roll_out(engine, "parcels", token=Unique(column="tag"), progress=Fails("fill"))
    abort(engine, "parcels", token=Unique(column="tag"))
    assert everything(engine) == before
