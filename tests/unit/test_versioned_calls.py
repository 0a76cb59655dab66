"""Bad arguments of the public calls around versions: refused at once, with what to write."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

from optilock import (
    AsyncUnitOfWork,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    apply,
    bulk_delete,
    bulk_update,
    events,
    merge_fields,
    repeatable_read,
    serializable,
    unit_of_work,
    watch,
)
from optilock.check import check
from optilock.resolvers import add_delta, per_field
from optilock.rollout import roll_out
from tests.support.ids import told


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    views: Mapped[int]


ENGINE = create_engine("sqlite://")
ASYNC_ENGINE = create_async_engine("sqlite+aiosqlite://")


@pytest.mark.parametrize(
    "target",
    [
        None,
        "sqlite://",
        ENGINE,
        ASYNC_ENGINE,
        Session(ENGINE),
        AsyncSession(ASYNC_ENGINE),
        AsyncSession,
        sessionmaker,
        scoped_session(lambda: Session(ENGINE)),
    ],
    ids=lambda target: type(target).__name__,
)
def test_watch_takes_what_makes_sessions(target: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"it takes a sessionmaker.*watch the sessionmaker"
    ):
        watch(target)


@pytest.mark.parametrize(
    ("on_conflict", "helps"),
    [
        ("merge", "Use client_wins"),
        ([merge_fields], "Use client_wins"),
        (per_field, "it has to be called first"),
        ({"Page": merge_fields}, r"write \{Page: merge_fields, Account: reject\}"),
        ({Page(id=1): merge_fields}, r"write \{Page: merge_fields, Account: reject\}"),
        ({Page: "merge"}, "Use client_wins"),
        ({Page: None}, "Use client_wins"),
        ({Page: per_field(title=add_delta)}, r"It has: id, views\."),
        ({Page: per_field(version=add_delta)}, r"It has: id, views\."),
    ],
    ids=told,
)
def test_what_cannot_resolve_is_refused_wherever_it_is_given(on_conflict: Any, helps: str) -> None:
    sessions = sessionmaker(ENGINE)
    for call in (watch, UnitOfWork, unit_of_work, serializable, repeatable_read):
        with pytest.raises(ConfigurationError, match=helps):
            call(sessions, on_conflict=on_conflict)


@pytest.fixture
def without_counts() -> Engine:
    engine = create_engine("sqlite://")
    engine.dialect.supports_sane_rowcount = False
    return engine


@pytest.mark.parametrize(
    "sessions",
    [
        lambda engine: sessionmaker(engine),
        lambda engine: sessionmaker(binds={Page: engine}),
        lambda engine: scoped_session(sessionmaker(engine)),
    ],
    ids=["bind", "binds", "scoped"],
)
def test_a_driver_that_cannot_count_is_refused_by_every_call(
    without_counts: Engine, sessions: Any
) -> None:
    for call in (watch, UnitOfWork, unit_of_work, serializable, repeatable_read):
        with pytest.raises(ConfigurationError, match="Use a driver that counts rows"):
            call(sessions(without_counts))


def test_a_session_that_chooses_a_connection_for_each_object_is_refused() -> None:
    engine = create_engine("sqlite://")
    sessions = sessionmaker(class_=ShardedSession, shards={"a": engine, "b": engine})
    for call in (watch, UnitOfWork, unit_of_work):
        with pytest.raises(ConfigurationError, match="for each shard"):
            call(sessions)


def test_an_engine_whose_driver_cannot_count_is_refused_by_units(without_counts: Engine) -> None:
    for call in (UnitOfWork, unit_of_work, serializable, repeatable_read):
        with pytest.raises(ConfigurationError, match="Use a driver that counts rows"):
            call(without_counts)


def test_an_async_driver_that_cannot_count_is_refused() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    engine.sync_engine.dialect.supports_sane_rowcount = False
    sessions = async_sessionmaker(engine)
    for refused in (
        lambda: watch(sessions),
        lambda: AsyncUnitOfWork(engine),
        lambda: AsyncUnitOfWork(sessions),
        lambda: AsyncUnitOfWork(async_scoped_session(sessions, scopefunc=lambda: 1)),
    ):
        with pytest.raises(ConfigurationError, match="Use a driver that counts rows"):
            refused()


# -- sessions, engines and listeners that are something else ---------------------------------------


@pytest.mark.parametrize(
    "given", [sessionmaker(ENGINE), ENGINE, AsyncSession(ASYNC_ENGINE)], ids=told
)
@pytest.mark.parametrize(
    "call",
    [
        lambda session: apply(session, Page, 1, {}, expected=1),
        lambda session: bulk_update(session, Page, [{"id": 1, "version": 1, "views": 2}]),
        lambda session: bulk_delete(session, Page, [{"id": 1, "version": 1}]),
    ],
    ids=["apply", "bulk_update", "bulk_delete"],
)
def test_what_is_no_session_is_refused_before_anything_is_done(call: Any, given: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"as its session.*with an AsyncSession write await"
    ):
        call(given)


def test_a_scoped_session_stands_for_the_session_of_its_scope() -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    session = watch(scoped_session(sessionmaker(engine)))
    session.add(Page(id=1, views=1))
    session.flush()
    assert apply(session, Page, 1, {"views": 2}, expected=1) in session.dirty
    session.flush()
    assert bulk_update(session, Page, [{"id": 1, "version": 2, "views": 3}]).conflicts == ()
    assert session.get(Page, 1).views == 3
    assert bulk_delete(session, Page, [{"id": 1, "version": 3}]).conflicts == ()
    session.remove()
    engine.dispose()


async def _awaited(event: Any) -> None: ...


@pytest.mark.parametrize("listener", [None, 3, _awaited])
def test_a_listener_is_a_plain_function(listener: Any) -> None:
    with pytest.raises(ConfigurationError, match="called and not awaited"):
        events.listen(listener, written=False)


@pytest.mark.parametrize("option", ["read_only", "strict", "verify_reads"])
def test_a_switch_is_true_or_false(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}='no' is neither True nor False"):
        UnitOfWork(ENGINE, **{option: "no"})  # type: ignore[call-overload]


@pytest.mark.parametrize("given", [sessionmaker(ENGINE), ASYNC_ENGINE, "sqlite://"], ids=told)
def test_a_roll_out_takes_an_engine(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes an Engine, not an object of"):
        roll_out(given, "pages")


@pytest.mark.parametrize("given", [sessionmaker(ENGINE), "sqlite://"], ids=told)
def test_a_check_takes_an_engine_of_either_kind(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes an Engine or an AsyncEngine, not an obj"):
        check(Base, given)


@pytest.mark.parametrize("table", [Page, Page.__table__])
def test_a_roll_out_is_of_a_table_by_its_name(table: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes the name of a table"):
        roll_out(ENGINE, table)
