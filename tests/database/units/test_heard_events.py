"""Every conflict is heard, by whatever way it comes to the program, and every end of a unit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, delete, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    UnitOfWork,
    Versioned,
    apply,
    client_wins,
    entities,
    etag_of,
    events,
    expect,
    lock,
    merge_fields,
    retry,
    retrying,
    unit_of_work,
    verify,
    watch,
)
from optilock.resolvers import OnDelete, per_field
from optilock.unit import Isolation
from optilock.web.conditions import version_mismatch
from tests.support.models import own_base

Do = Callable[..., Any]

Base = own_base()


class Paper(Versioned, Base):
    __tablename__ = "heard_papers"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(default="paper")
    title: Mapped[str] = mapped_column(default="")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "paper"}


class Note(Versioned, Base):
    __tablename__ = "heard_notes"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str] = mapped_column(default="")


class Thesis(Paper):
    __tablename__ = "heard_theses"
    id: Mapped[int] = mapped_column(ForeignKey(Paper.id), primary_key=True, autoincrement=False)
    school: Mapped[str] = mapped_column(default="")
    __mapper_args__ = {"polymorphic_identity": "thesis"}


@pytest.fixture
def sessions(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(Paper(id=1, title="a"), Thesis(id=2, title="b", school="c"), Note(id=1))
    return watch(sessionmaker(engine))


@pytest.fixture
def heard() -> Iterator[list[events.Event]]:
    found: list[events.Event] = []
    with events.listening(found.append, written=False):
        yield found


def kinds(heard: list[events.Event]) -> list[str]:
    return [type(event).__name__ for event in heard]


def write(sessions: Any, title: str = "theirs", key: int = 1) -> None:
    with Session(sessions.kw["bind"]) as session, session.begin():
        session.get_one(Paper, key).title = title


def tag(sessions: Any) -> str:
    with Session(sessions.kw["bind"]) as session:
        return etag_of(session.get_one(Paper, 1))


# -- each way to a conflict ------------------------------------------------------------------------


def by_flush(sessions: Any) -> None:
    with sessions.begin() as session:
        paper = session.get_one(Paper, 1)
        write(sessions)
        paper.title = "ours"


def by_expect(sessions: Any) -> None:
    old = tag(sessions)
    write(sessions)
    with sessions.begin() as session:
        expect(session.get_one(Paper, 1), old)


def by_apply(sessions: Any) -> None:
    old = tag(sessions)
    write(sessions)
    with sessions.begin() as session:
        apply(session, Paper, 1, {"title": "ours"}, expected=old)


def by_entity(sessions: Any) -> None:
    with sessions.begin() as session:
        old = etag_of(session.get_one(Note, 1))
    for title in ("theirs", "ours"):
        with sessions.begin() as session:
            entities.merge(session, Note, 1, {"title": title}, if_match=[old])


def by_merge(sessions: Any) -> None:
    with sessions() as session:
        copy = session.get_one(Paper, 1)
    write(sessions)
    copy.title = "ours"
    with sessions.begin() as session:
        session.merge(copy)


def by_merge_of_a_gone_row(sessions: Any) -> None:
    with sessions() as session:
        copy = session.get_one(Paper, 1)
    with Session(sessions.kw["bind"]) as session, session.begin():
        session.execute(delete(Paper).where(Paper.id == 1))
    copy.title = "ours"
    with sessions.begin() as session:
        session.merge(copy)


def by_keys(sessions: Any) -> None:
    with sessions.begin() as session:
        row = {"id": 1, "version": session.get_one(Paper, 1).version - 1, "title": "ours"}
        session.expunge_all()
        session.execute(update(Paper), [row])


def by_request(sessions: Any) -> None:
    raise version_mismatch("If-Match does not hold")


WAYS = [
    by_flush,
    by_expect,
    by_apply,
    by_entity,
    by_merge,
    by_merge_of_a_gone_row,
    by_keys,
    by_request,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_conflict_is_heard_once_by_each_way(sessions, heard, way):
    """B4: ``expect`` 412, a stale ``merge`` and others came out, and no listener had them."""
    with pytest.raises(ConcurrencyError) as caught:
        way(sessions)

    [conflict] = [event for event in heard if isinstance(event, events.Conflict)]
    assert conflict.entries == caught.value.entries


@pytest.mark.needs("row-locks")
def test_a_verified_and_a_locked_row_that_has_moved_are_heard(sessions, heard):
    """B4: by ``verify`` and ``lock``, each once."""
    for check in (verify, lock):
        with pytest.raises(ConcurrencyError), sessions.begin() as session:
            paper = session.get_one(Paper, 1)
            if check is verify:
                check(paper)
                write(sessions, "v")
            else:
                paper.title = "ours"
                write(sessions, "l")
                with session.no_autoflush:
                    lock(paper)

    assert kinds(heard).count("Conflict") == 2


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("level", [Isolation.REPEATABLE_READ, Isolation.SERIALIZABLE])
@pytest.mark.parametrize("by_statement", [False, True])
def test_a_conflict_for_which_the_database_ends_the_transaction_is_heard(
    sessions, heard, level, by_statement
):
    """B4: 40001 at REPEATABLE READ and SERIALIZABLE, by a flush and by a statement."""
    with pytest.raises(ConcurrencyError), UnitOfWork(sessions, isolation=level) as session:
        paper = session.get_one(Paper, 1)
        write(sessions)
        if by_statement:
            session.execute(update(Paper).where(Paper.id == 1).values(title="ours"))
        paper.title = "ours"

    assert kinds(heard) == ["Conflict", "Failed"]
    assert heard[0].tables == (("heard_papers",) if heard[0].entries else ())


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("way", ["execute", "scalars", "get"])
def test_such_a_conflict_is_heard_outside_of_units_too(sessions, heard, way):
    """B4: once; the error is the driver's, because nothing has read the rows again."""
    with pytest.raises(DBAPIError) as caught, sessions() as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        session.scalars(select(Paper.title)).all()
        write(sessions)
        if way == "get":
            session.get(Paper, 1, with_for_update=True)
        else:
            changed = update(Paper).where(Paper.id == 1).values(title="ours")
            getattr(session, way)(changed)

    assert caught.value.orig.sqlstate == "40001"
    assert [type(one) for one in heard] == [events.Conflict]
    assert heard[0].entries == heard[0].tables == ()


@pytest.mark.engines("postgresql")
def test_a_conflict_at_commit_is_heard(sessions, heard):
    """B4: write skew, which PostgreSQL finds at COMMIT, has no row and is heard all the same."""
    with (
        pytest.raises(ConcurrencyError),
        UnitOfWork(sessions, isolation=Isolation.SERIALIZABLE) as session,
    ):
        session.scalars(select(Paper.title)).all()
        session.get_one(Thesis, 2).school = "ours"
        session.flush()
        with UnitOfWork(
            sessions, isolation=Isolation.SERIALIZABLE, propagation="independent", name="inner"
        ) as inner:
            inner.scalars(select(Thesis.school)).all()
            inner.get_one(Paper, 1).title = "theirs"

    assert kinds(heard) == ["Committed", "Conflict", "Failed"]


def test_the_table_of_a_joined_child_is_the_one_with_the_version(sessions, heard):
    """B4: the table in Conflict, for joined inheritance the parent's; ``__table__`` is not."""
    with pytest.raises(ConcurrencyError), sessions.begin() as session:
        thesis = session.get_one(Thesis, 2)
        write(sessions, "theirs", 2)
        thesis.school = "ours"

    [conflict] = [event for event in heard if isinstance(event, events.Conflict)]
    assert conflict.tables == ("heard_papers",)
    assert conflict.as_dict()["tables"] == ["heard_papers"]


# -- what has decided ------------------------------------------------------------------------------


def test_what_has_decided_is_named(sessions, heard):
    """B4: the name of the resolver in Resolved."""

    def ours(entry: Any) -> Any:
        return client_wins(entry)

    for resolver, name in [
        (merge_fields, "merge_fields"),
        (ours, "ours"),
        (per_field(title=lambda original, current, database: current), "PerField"),
    ]:
        heard.clear()
        with UnitOfWork(sessions, on_conflict=resolver) as session:
            thesis = session.get_one(Thesis, 2)
            write(sessions, f"of {name}", 2)
            thesis.school = name
        [resolved] = [event for event in heard if isinstance(event, events.Resolved)]
        assert resolved.resolvers == (name,)
        assert resolved.as_dict()["resolvers"] == [name]


def test_a_policy_for_deletes_that_decides_is_named(sessions, heard):
    """B4: a delete that the policy settles has no resolver."""
    with UnitOfWork(sessions, on_delete=OnDelete.IGNORE_VERSION) as session:
        paper = session.get_one(Paper, 1)
        write(sessions)
        session.delete(paper)

    assert [e.resolvers for e in heard if isinstance(e, events.Resolved)] == [("on_delete",)]


# -- the ends of units -----------------------------------------------------------------------------


def test_a_unit_that_fails_is_heard_with_its_name(sessions, heard):
    """B4: an event for a unit that failed for good; it has the unit's name."""
    with pytest.raises(LookupError), UnitOfWork(sessions, name="transfer") as session:
        session.get_one(Paper, 1).title = "ours"
        raise LookupError("secret")

    [failed] = heard
    assert (failed.name, failed.attempts, type(failed.error)) == ("transfer", 1, LookupError)
    assert type(failed.seconds) is float
    assert "secret" not in f"{failed}{failed.as_dict()}"


def test_a_decorated_function_gives_its_name(sessions, heard):
    """B4: Retry, Committed and Failed have the name of the function, or the one that is given."""

    again = retrying(wait_initial=0, attempts=2, repeat_values="overwrite")

    @unit_of_work(sessions, strategy="optimistic", retry=again)
    def rename(session: Session, times: int) -> None:
        paper = session.get_one(Paper, 1)
        if len(heard) < times:
            write(sessions, f"theirs {times} {len(heard)}")
        paper.title = f"ours {times}"

    rename(1)
    assert kinds(heard) == ["Conflict", "Retry", "Committed"]
    assert [e.name for e in heard if isinstance(e, (events.Retry, events.Committed))] == [
        "rename",
        "rename",
    ]
    assert heard[-1].attempts == 2

    heard.clear()
    with pytest.raises(ConcurrencyError):
        rename(9)
    assert kinds(heard) == ["Conflict", "Retry", "Conflict", "Failed"]
    assert (heard[-1].name, heard[-1].attempts) == ("rename", 2)

    heard.clear()
    unit_of_work(sessions, name="given")(lambda session: None)()
    assert heard[-1].name == "given"


def test_units_in_a_retry_fail_only_with_its_last_attempt(sessions, heard):
    """B4: while attempts follow there is no Failed; a unit whose error is caught has one."""

    @retry(attempts=2, on=LookupError, wait_initial=0)
    def work() -> None:
        with UnitOfWork(sessions):
            raise LookupError

    with pytest.raises(LookupError):
        work()
    assert kinds(heard) == ["Retry", "Failed"]
    assert [e.name for e in heard] == ["work"] * 2

    heard.clear()
    for attempt in retrying():
        with attempt:
            try:
                with UnitOfWork(sessions, name="caught"):
                    raise LookupError
            except LookupError:
                pass
    assert [(type(e), e.name) for e in heard] == [(events.Failed, "caught")]


@pytest.mark.engines("sqlite-wal")
def test_a_run_that_ends_between_two_attempts_has_failed(sessions, heard):
    """B4: in its wait, in ``on=`` and in ``before_retry``: no attempt follows."""

    def interrupted(given: object) -> None:
        raise KeyboardInterrupt

    def fails(**options: Any) -> None:
        policy = retrying(**{"on": LookupError, "wait_initial": 0, **options})
        object.__setattr__(policy, "sleep", interrupted)

        def work() -> None:
            with UnitOfWork(sessions):
                raise LookupError

        with pytest.raises(KeyboardInterrupt):
            policy.call(work)

    fails()
    fails(before_retry=interrupted)
    fails(on=interrupted)

    assert kinds(heard) == ["Retry", "Failed", "Retry", "Failed", "Failed"]
    ends = [(e.name, e.attempts) for e in heard if isinstance(e, events.Failed)]
    assert ends == [("work", 1)] * 3


def test_units_that_join_are_a_part_and_fail_with_it(sessions, heard):
    """B4: one event for the transaction, not one for each block in it."""
    with pytest.raises(LookupError), UnitOfWork(sessions, name="outer"):
        with UnitOfWork(sessions, name="inner", propagation="savepoint"):
            pass
        with UnitOfWork(sessions, name="inner"):
            raise LookupError

    assert [(type(e), e.name) for e in heard] == [(events.Failed, "outer")]


@pytest.mark.engines("sqlite-wal")
def test_an_error_after_commit_is_no_failure(sessions, heard):
    """B4: the unit is stored."""
    from optilock.exactly_once import after_commit

    def broken() -> None:
        raise LookupError

    try:
        with UnitOfWork(sessions) as session:
            session.get_one(Paper, 1).title = "ours"
            after_commit(session, broken)
    except LookupError:
        pass

    assert kinds(heard) == ["Committed"]


@pytest.mark.anyio
async def test_a_cancelled_unit_has_failed(async_engine, heard):
    """B4: async units, in the task of the end, have the same events."""

    try:
        made = async_sessionmaker(async_engine)
        async with AsyncUnitOfWork(made, name="fine") as session:
            await session.connection()
        with pytest.raises(asyncio.CancelledError):
            async with AsyncUnitOfWork(made, name="cancelled"):
                raise asyncio.CancelledError
    finally:
        await async_engine.dispose()
    assert [(type(e), e.name) for e in heard] == [
        (events.Committed, "fine"),
        (events.Failed, "cancelled"),
    ]


def test_commits_of_sessions_outside_of_units_are_heard(sessions, heard):
    """B4: commits of watched sessions; savepoints, and sessions without a transaction, are none."""
    with sessions.begin() as session, session.begin_nested():
        session.get_one(Paper, 1).title = "ours"
    with sessions() as session:
        session.commit()
    with sessions() as session:
        session.get_one(Paper, 1)
        session.rollback()

    assert kinds(heard) == ["SessionCommitted"]
    assert type(heard[0].seconds) is float
