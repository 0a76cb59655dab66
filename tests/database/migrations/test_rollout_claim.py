"""One roll-out of a table at a time, said by a row that needs no session and ends by itself."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, event, inspect, text

from optilock import OptilockError
from optilock.dialects import database_of
from optilock.rollout import claim, roll_out
from optilock.rollout.report import Silent
from optilock.tokens import Unique
from tests.support.migrating import once_free, revise
from tests.support.waiting import until_past

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]


@pytest.fixture(autouse=True)
def parcels(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parcels (id INTEGER PRIMARY KEY, owner VARCHAR(20))"))
        connection.execute(text("INSERT INTO parcels VALUES (1, 'Ada'), (2, 'Bob')"))


def tables(engine: Engine) -> list[str]:
    return [name for name in inspect(engine).get_table_names() if name.startswith("optilock")]


def claimed(engine: Engine) -> claim.Claim:
    """As by a roll-out that was killed."""
    mine = claim.claim_of("parcels", None)
    for do in (mine.make, mine.take):
        with engine.begin() as connection:
            do(connection)
    return mine


def test_who_is_refused_learns_which_process_works_since_when(engine):
    said: list[str] = []

    class Again(Silent):
        def step(self, name: str, total: int | None = None) -> None:
            with pytest.raises(OptilockError, match="Another roll-out of parcels") as caught:
                roll_out(engine, "parcels", token=Unique())
            said.append(str(caught.value))

    roll_out(engine, "parcels", token=Unique(), progress=Again())
    assert len(said) == 3
    for one in said:
        assert f"process {os.getpid()} on {socket.gethostname()}" in one
        assert time.strftime("since %Y-%m-%d", time.gmtime()) in one
    if engine.dialect.name != "sqlite":
        assert "of the server" in said[0]


def test_nothing_is_left_of_it_when_it_is_over(engine):
    roll_out(engine, "parcels", token=Unique())
    assert tables(engine) == []


def test_nothing_is_left_of_it_after_an_error(engine):
    class Fails(Silent):
        def step(self, name: str, total: int | None = None) -> None:
            raise RuntimeError(name)

    with pytest.raises(RuntimeError):
        roll_out(engine, "parcels", token=Unique(), progress=Fails())
    assert tables(engine) == []


@pytest.mark.parametrize("at", ["UPDATE", "DROP TABLE"])
@pytest.mark.parametrize("how", ["interrupted", "lost"])
def test_nothing_is_left_of_it_where_it_is_interrupted_at_its_end(engine, how, at):
    """G6: a run that came at once found that all was done, and left the table there."""
    if engine.dialect.name == "sqlite":
        how = "interrupted"  # a file has no server to lose
    done = []

    @event.listens_for(engine, "before_cursor_execute")
    def fail(connection: Any, cursor: Any, sql: str, *_: Any) -> None:
        now = "optilock_rollout_of" in sql and at in sql
        if not now or not column_is_there() or done:
            return
        done.append(how)
        if how == "interrupted":
            raise KeyboardInterrupt
        postgresql = engine.dialect.name == "postgresql"
        driver = connection.connection.driver_connection
        number = driver.info.backend_pid if postgresql else driver.thread_id()
        kill = f"SELECT pg_terminate_backend({number}, 5000)" if postgresql else f"KILL {number}"
        send(kill)

    def column_is_there() -> bool:
        column = {one["name"]: one for one in inspect(administrator).get_columns("parcels")}
        return "version" in column and not column["version"]["nullable"]

    def send(order: str) -> None:
        with administrator.connect() as connection:
            connection.exec_driver_sql(order)

    administrator = create_engine(engine.url)
    if how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            roll_out(engine, "parcels", token=Unique())
    else:
        roll_out(engine, "parcels", token=Unique())
    event.remove(engine, "before_cursor_execute", fail)
    assert done
    assert tables(engine) == []
    assert roll_out(engine, "parcels", token=Unique()).steps == ()
    administrator.dispose()


@pytest.mark.engines("postgresql", "mariadb")
def test_a_connection_that_is_lost_at_a_look_is_an_error_of_the_roll_out(engine):
    """It says that the same call goes on from there."""
    administrator, changed = create_engine(engine.url), []

    @event.listens_for(engine, "before_cursor_execute")
    def end_ours(connection: Any, cursor: Any, sql: str, *_: Any) -> None:
        if changed == ["parcels"] and not sql.startswith("ALTER"):
            changed.append(sql)
            number = database_of(engine.dialect).watching.number_of(
                connection.connection.driver_connection
            )
            ends = {"postgresql": "SELECT pg_terminate_backend({}, 5000)", "mysql": "KILL {}"}
            with administrator.connect() as other:
                other.exec_driver_sql(ends[engine.dialect.name].format(number))

    @event.listens_for(engine, "after_cursor_execute")  # one that waited for its lock is repeated
    def note(connection: Any, cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith("ALTER TABLE parcels ADD") and not changed:
            changed.append("parcels")

    with pytest.raises(OptilockError, match="it goes on from here"):
        roll_out(engine, "parcels", token=Unique())
    event.remove(engine, "before_cursor_execute", end_ours)
    assert len(changed) == 2
    assert roll_out(engine, "parcels", token=Unique()).filled == 2
    assert tables(engine) == []
    administrator.dispose()


def test_what_was_there_already_needs_no_claim(engine):
    roll_out(engine, "parcels", token=Unique())
    claimed(engine)
    assert roll_out(engine, "parcels", token=Unique()).steps == ()


def test_the_claim_of_one_that_was_killed_ends_by_itself(engine, monkeypatch):
    mine = claimed(engine)
    with pytest.raises(OptilockError, match=r"ends by itself within 15 seconds"):
        roll_out(engine, "parcels", token=Unique())
    with monkeypatch.context() as soon, engine.begin() as connection:
        soon.setattr(claim, "TERM", 0.1)
        mine.keep(connection)
    assert once_free(lambda: roll_out(engine, "parcels", token=Unique())).filled == 2
    assert tables(engine) == []


@pytest.mark.full
def test_it_is_claimed_on_between_two_batches(engine, monkeypatch):
    monkeypatch.setattr(claim, "TERM", 3)
    kind, refused = Unique().type().compile(engine.dialect), []

    class Again(Silent):
        def filled(self, rows: int) -> None:
            with pytest.raises(OptilockError, match="Another roll-out"):
                roll_out(engine, "parcels", token=Unique())
            refused.append(time.monotonic())

    with engine.begin() as connection:
        connection.execute(text("INSERT INTO parcels VALUES (3, 'x'), (4, 'x'), (5, 'x')"))
        connection.execute(text(f"ALTER TABLE parcels ADD COLUMN version {kind}"))
    roll_out(engine, "parcels", token=Unique(), progress=Again(), rate=1)
    assert len(refused) == 5
    assert refused[-1] - refused[0] > claim.TERM


@pytest.mark.engines("postgresql", "mariadb")
def test_a_statement_that_outlasts_the_claim_keeps_it(engine, monkeypatch):
    monkeypatch.setattr(claim, "TERM", 0.2)
    mine, other = claimed(engine), claim.claim_of("parcels", None)
    options: Any = database_of(engine.dialect).rollout.options
    with engine.begin() as connection:
        holder = mine.read(connection)
    assert holder is not None
    with engine.connect() as beside, mine.locked(beside.execution_options(**options)):
        until_past(engine, holder.until)
        with pytest.raises(OptilockError, match="Another roll-out"), engine.begin() as connection:
            other.take(connection)


def test_who_has_lost_it_is_told_so(engine, monkeypatch):
    monkeypatch.setattr(claim, "TERM", 0.2)
    mine = claimed(engine)
    once_free(lambda: claimed(engine))
    taken = pytest.raises(OptilockError, match="another one has taken its place")
    with taken, engine.begin() as connection:
        mine.keep(connection)


def test_autogenerate_leaves_the_table_alone(engine):
    claimed(engine)
    known = MetaData()
    known.reflect(engine, only=["parcels"])
    assert revise(engine, known).empty


@pytest.mark.parametrize("name", ["p" * 60, "ü" * 30])
def test_a_long_name_of_the_table(engine, name):
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {quoted(engine, name)} (id INTEGER PRIMARY KEY)"))
    roll_out(engine, name, token=Unique())
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {quoted(engine, name)}"))


def quoted(engine: Engine, name: str) -> str:
    return engine.dialect.identifier_preparer.quote_identifier(name)
