"""The log of conflicts: what has become of each, and that writing it disturbs no unit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    client_wins,
    entities,
    etag_of,
    events,
    merge_fields,
    unit_of_work,
    watch,
)
from optilock.errors import CommitOutcomeUnknown, PreconditionFailed
from optilock.statements import bulk_update
from optilock.tables.conflicts import CONFLICTS, conflicts
from optilock.telemetry import conflict_log
from optilock.testing import count_statements
from optilock.unit import parts
from tests.support import in_process
from tests.support.models import own_base

Base = own_base()
Log = Callable[[], list[Any]]


class Sheet(Versioned, Base):
    __tablename__ = "logged_sheets"
    __version_author__ = "editor"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str] = mapped_column(default="")
    secret: Mapped[str] = mapped_column(default="")
    editor: Mapped[str] = mapped_column(default="")


@pytest.fixture
def sessions(engine: Engine, store: Any) -> Iterator[sessionmaker[Session]]:
    store(Sheet(id=1), Sheet(id=2))
    CONFLICTS.tables.create_all(engine)
    conflict_log.instrument(engine, values=[Sheet.title])
    yield sessionmaker(engine)
    conflict_log.uninstrument()
    conflict_log.flush()
    CONFLICTS.tables.drop_all(engine)
    assert (events.listeners, events.concluding, parts.standing) == ((), (), ())


@pytest.fixture
def log(engine: Engine) -> Log:
    def read() -> list[Any]:
        conflict_log.flush()
        with engine.connect() as connection:
            return [*connection.execute(select(conflicts).order_by(conflicts.c.id))]

    return read


def edit(sessions: Any, ours: str = "ours") -> Sheet:
    """Another user writes the row between our read and our write."""
    sheet: Sheet = sessions.get_one(Sheet, 1)
    with Session(sessions.get_bind()) as other, other.begin():
        there = other.get_one(Sheet, 1)
        there.title, there.secret, there.editor = there.title + "t", "hidden", "Ada"
    sheet.title, sheet.secret, sheet.editor = ours, f"my {ours}", "Bob"
    return sheet


def test_each_attempt_of_a_unit_is_a_row_with_its_outcome(engine, sessions, log):
    """The rows of failed attempts survive their rollback, with values of named columns only."""
    runs: list[int] = []

    @unit_of_work(sessions, strategy="optimistic", name="rename")
    def rename(session: Session) -> None:
        runs.append(len(runs))
        if not runs[-1]:
            edit(session)
        else:
            session.get_one(Sheet, 2).title = "other"

    rename()
    with UnitOfWork(sessions, on_conflict=client_wins) as session:
        edit(session)
    with pytest.raises(LookupError), UnitOfWork(sessions, on_conflict=client_wins) as session:
        edit(session, "last")
        with UnitOfWork(sessions):
            session.flush()
        raise LookupError

    first, *others = log()
    expected = {
        "id": first.id,
        "occurred_at": first.occurred_at,
        "table_name": "logged_sheets",
        "model": "Sheet",
        "identity": "[1]",
        "action": "update",
        "kind": "updated",
        "reason": "race",
        "unit": "rename",
        "attempt": 1,
        "conflicting": ["secret", "title"],
        "original_version": "1",
        "database_version": "2",
        "author": "Bob",
        "changed_by": "Ada",
        "outcome": "failed",
        "resolver": None,
        "column_values": {"title": {"original": "", "current": "ours", "database": "t"}},
    }
    assert first._asdict() == expected
    assert first.occurred_at.tzinfo is not None
    found = [(one.outcome, one.resolver, one.attempt) for one in others]
    assert found == [("resolved", "client_wins", 1), ("failed", "client_wins", 1)]
    assert "hidden" not in str(others)


def test_without_a_conflict_nothing_is_sent(engine, sessions, log):
    with count_statements(engine) as sent, UnitOfWork(sessions) as session:
        session.get_one(Sheet, 1).title = "quiet"
    assert len(sent.statements) == 2
    assert log() == []


def test_conflicts_outside_of_units_are_rows(engine, sessions, log):
    """A transaction that is still open is not waited for, also where one may write (SQLite)."""
    watched = watch(sessions, on_conflict=merge_fields)
    with watched() as session:
        edit(session)
        with pytest.raises(ConcurrencyError):
            session.commit()
    with watched.begin() as session:
        old = etag_of(session.get_one(Sheet, 1))
        edit(session).title = "tt"
        session.get_one(Sheet, 1).secret = "hidden"
        session.get_one(Sheet, 1).editor = "Ada"
        session.flush()
        conflict_log.flush(0.1)
        assert bulk_update(session, Sheet, [{"id": 1, "version": 1, "title": "x"}]).conflicts
    with pytest.raises(PreconditionFailed), watched.begin() as session:
        entities.merge(session, Sheet, 1, {"title": "ours"}, if_match=[old])
    found = sorted((one.outcome, one.reason, one.resolver or "") for one in log())
    assert [one[0] for one in found] == ["raised", "raised", "resolved", "returned"], found
    assert found[:2] == [("raised", "precondition", ""), ("raised", "race", "")]


def test_a_log_that_cannot_be_written_is_a_warning(engine, sessions, caplog):
    """The unit is stored; the message has no value."""
    CONFLICTS.tables.drop_all(engine)
    with UnitOfWork(sessions, on_conflict=client_wins) as session:
        edit(session)
    conflict_log.flush()
    with sessions() as session:
        assert session.get_one(Sheet, 1).title == "ours"
    [line] = [one.getMessage() for one in caplog.records if one.name == "optilock"]
    assert line.startswith("1 conflicts are not in the log (")
    assert "ours" not in line
    assert not inspect(engine).has_table(conflicts.name)


@pytest.mark.anyio
async def test_async_units_are_logged_by_an_engine_without_a_pool(async_engine):
    """The thread has an event loop of its own, so it cannot use connections of another one."""
    alone: AsyncEngine = create_async_engine(async_engine.url, poolclass=NullPool)
    with pytest.raises(ConfigurationError, match="NullPool"):
        conflict_log.instrument(async_engine)
    tables = (Base.metadata, CONFLICTS.tables)
    async with alone.begin() as connection:
        for one in tables:
            await connection.run_sync(one.create_all)
    conflict_log.instrument(alone)
    sessions = async_sessionmaker(async_engine)
    try:
        async with sessions.begin() as session:
            session.add(Sheet(id=1))
        with pytest.raises(ConcurrencyError):
            async with AsyncUnitOfWork(sessions) as session:
                sheet = await session.get_one(Sheet, 1)
                async with sessions.begin() as other:
                    (await other.get_one(Sheet, 1)).title = "theirs"
                sheet.title = "ours"
        conflict_log.flush()
        async with alone.connect() as connection:
            [row] = await connection.execute(select(conflicts))
        assert (row.outcome, row.column_values, row.conflicting) == ("failed", None, ["title"])
    finally:
        conflict_log.uninstrument()
        async with alone.begin() as connection:
            for one in tables:
                await connection.run_sync(one.drop_all)
        await async_engine.dispose()


@pytest.mark.engines("postgresql", "mariadb")
def test_a_unit_whose_commit_was_not_answered_has_not_failed(sessions, log):
    @event.listens_for(sessions, "before_commit", once=True)
    def cut(session: Session) -> None:
        session.connection().connection.driver_connection.close()

    with (
        pytest.raises(CommitOutcomeUnknown),
        UnitOfWork(sessions, on_conflict=client_wins) as session,
    ):
        edit(session)
    assert [one.outcome for one in log()] == ["unknown"]


def test_the_command_shows_hot_classes_and_columns(engine, sessions, log, tmp_path):
    """``optilock conflicts``: text, JSON, and a time that none is after."""
    with UnitOfWork(sessions, on_conflict=client_wins) as session:
        edit(session)
    log()

    def run(*words: str) -> Any:
        url = engine.url.render_as_string(hide_password=False)
        return in_process.optilock("conflicts", "--url", url, *words, folder=tmp_path)

    shown = json.loads(run("--json").stdout)
    assert shown["conflicts"] == 1
    assert shown["classes"] == [{"name": "Sheet", "conflicts": 1}]
    assert {"name": "Sheet.title", "conflicts": 1} in shown["columns"]
    assert shown["outcomes"] == [{"name": "resolved by client_wins", "conflicts": 1}]
    text = run("-n", "1").stdout
    assert "1 conflicts since" in text
    assert "Sheet 1" in text
    assert run("--since", "2999-01-01").stdout.startswith("There is no conflict since")
    assert (refused := run("--since", "soon")).exit_code == 2
    assert "--since=soon is no time" in refused.stderr
    CONFLICTS.tables.drop_all(engine)
    assert (missing := run()).exit_code == 1
    assert "no table optilock_conflicts" in missing.stderr
