"""Each row that a transaction writes is one event after COMMIT, by whatever way it was written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import delete, event, insert, inspect, select, update
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from optilock import (
    ConcurrencyError,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    bulk_delete,
    bulk_update,
    client_wins,
    entities,
    etag_of,
    events,
    expect,
    merge_fields,
    touch,
    watch,
)
from optilock.testing import count_statements
from tests.support.models import own_base
from tests.support.ways_classes import ways
from tests.support.ways_to_write import over

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")

Base = own_base()


class Sheet(Versioned, Base):
    __tablename__ = "written_sheets"
    __version_author__ = "editor"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str] = mapped_column(default="")
    hits: Mapped[int] = mapped_column(default=0)
    editor: Mapped[str | None]


WAYS = ways("written")
CASES = over(**WAYS._asdict())
#: Statements of tables without a version of their own: no class of their rows is known.
UNKNOWN = {
    "an_update_of_a_table_without_a_version",
    "an_update_of_a_table_of_compared_rows",
    "a_delete_of_a_table",
    "a_delete_on_the_connection",
    "updates_on_the_connection",
    "an_update_of_the_table_of_a_child",
}


@pytest.fixture
def heard() -> Iterator[list[events.Written]]:
    found: list[events.Written] = []

    def hear(what: events.Event) -> None:
        if isinstance(what, events.Written):
            found.append(what)

    with events.listening(hear):
        yield found


@pytest.fixture
def sessions(engine, store) -> sessionmaker[Session]:
    store(*(Sheet(id=number, editor="ada") for number in range(1, 5)))
    return watch(sessionmaker(engine))


def told(heard: list[events.Written]) -> list[tuple[Any, ...]]:
    """Return what is told of the rows, in the order of their keys, and forget it."""
    rows = [(one.action, one.identity, one.before, one.version, one.columns) for one in heard]
    heard.clear()
    return sorted(rows, key=lambda row: (row[1] or (), row[0]))


# -- every way -------------------------------------------------------------------------------------


def names_of(of: type[Any]) -> list[str]:
    return [one.key for one in inspect(of).column_attrs]


def stored(session: Session) -> dict[tuple[type[Any], Any], tuple[Any, ...]]:
    """Return the rows of all classes by class and key."""
    return {
        (of, row.id): tuple(getattr(row, name) for name in names_of(of))
        for of in WAYS
        for row in session.scalars(select(of))
        if type(row) is of
    }


@pytest.mark.parametrize("case", [case for case in CASES if case.__name__ not in UNKNOWN])
def test_each_row_that_changed_is_told_once_and_no_other(engine, store, heard, case):
    """The stored rows before and after are compared; one event may stand for several rows."""
    store(*WAYS.rows())
    made = watch(sessionmaker(engine), on_conflict=client_wins)
    with made() as session:
        before = stored(session)
    heard.clear()

    def moved() -> None:
        with Session(engine) as other, other.begin():
            other.get_one(WAYS.Task, 1).views = 3
            other.get_one(WAYS.Task, 1).title = "theirs"

    with made.begin() as session:
        case(session, lambda: None, moved)
    with made() as session:
        after = stored(session)
    if case.__name__ == "a_row_that_has_moved":
        before[WAYS.Task, 1] = ()
    changed = [row for row in before if before[row] != after.get(row)]
    changed += [row for row in after if row not in before]
    assert changed
    known = Counter((one.model, one.identity[0]) for one in heard if one.identity is not None)
    if case.__name__ != "saved_objects":  # the object is still dirty, and is flushed, too
        assert all(count == 1 for count in known.values())
    assert known.keys() <= set(changed)
    rest = [row for row in changed if row not in known]
    number = sum(one.rows or 0 for one in heard if one.identity is None)
    assert number == len(rest)


def test_flushes_tell_key_versions_columns_and_author(sessions, heard):
    with sessions.begin() as session:
        one, two, three, four = session.scalars(select(Sheet).order_by(Sheet.id)).all()
        one.title = two.title = "new"
        three.title = three.title
        four.editor = "bob"
    assert [one.author for one in heard if one.identity == (4,)] == ["bob"]
    assert [json.dumps(one.as_dict()) for one in heard]
    assert "ada" not in str([one.as_dict() for one in heard]) + repr(heard)
    assert told(heard) == [
        ("update", (1,), 1, 2, ("title",)),
        ("update", (2,), 1, 2, ("title",)),
        ("update", (4,), 1, 2, ("editor",)),
    ]
    with sessions.begin() as session:
        session.get_one(Sheet, 1).hits = Sheet.hits + 1
        session.delete(session.get_one(Sheet, 2))
        touch(session.get_one(Sheet, 3))
        session.add(Sheet(id=9, title="x"))
    found = told(heard)
    assert found[:3] == [
        ("update", (1,), 2, 3, ("hits",)),
        ("delete", (2,), 2, None, ()),
        ("update", (3,), 1, 2, ()),
    ]
    assert found[3][:4] == ("insert", (9,), None, 1)
    assert {"id", "title"} <= {*found[3][4]}


def test_a_row_that_is_deleted_and_inserted_is_told_as_it_is_sent(sessions, heard):
    """In one flush it is an UPDATE."""
    with sessions.begin() as session:
        session.delete(session.get_one(Sheet, 1))
        session.add(Sheet(id=1, title="again"))
    assert [row[:4] for row in told(heard)] == [("update", (1,), 1, 2)]
    with sessions.begin() as session:
        session.delete(session.get_one(Sheet, 1))
        session.flush()
        session.add(Sheet(id=1, title="anew"))
    assert [row[:4] for row in told(heard)] == [
        ("delete", (1,), 2, None),
        ("insert", (1,), None, 1),
    ]


def test_calls_by_key_tell_their_rows(sessions, engine, heard):
    """Bulk calls, entities in watched and plain sessions, and SQLAlchemy's own bulk calls."""
    with sessions.begin() as session:
        rows = [{"id": 1, "version": 1, "title": "a", "editor": "bob"}]
        bulk_update(session, Sheet, [*rows, {"id": 2, "version": 7, "title": "stale"}])
        bulk_delete(session, Sheet, [{"id": 4, "version": 1}])
        assert heard == []
    assert [one.author for one in heard] == ["bob", None]
    assert told(heard) == [
        ("update", (1,), 1, 2, ("title", "editor")),
        ("delete", (4,), 1, None, ()),
    ]
    with Session(engine) as session, session.begin():
        tag = etag_of(session.get_one(Sheet, 1))
        entities.merge(session, Sheet, 1, {"title": "b"}, if_match=tag)
        entities.insert(session, Sheet, 7, {"title": "c"})
        entities.delete(session, Sheet, 2, if_match="*")
    assert told(heard) == [
        ("update", (1,), 2, 3, ("title",)),
        ("delete", (2,), None, None, ()),
        ("insert", (7,), None, 1, ("title",)),
    ]
    with sessions.begin() as session:
        session.execute(update(Sheet), [{"id": 1, "version": 3, "title": "d"}])
        session.bulk_update_mappings(Sheet, [{"id": 7, "version": 1, "title": "d"}])
        session.bulk_insert_mappings(Sheet, [{"id": 8, "title": "d"}])
        session.bulk_save_objects([Sheet(id=9, title="d")])
    assert [row[:4] for row in told(heard)] == [
        ("update", (1,), 3, 4),
        ("update", (7,), 1, 2),
        ("insert", (8,), None, 1),
        ("insert", (9,), None, 1),
    ]


def test_statements_tell_how_many_rows_they_wrote(sessions, heard):
    with sessions.begin() as session:
        session.execute(update(Sheet).where(Sheet.id < 3).values(title="all"))
        session.execute(update(Sheet).where(Sheet.id < 0).values(title="none"))
        session.execute(delete(Sheet).where(Sheet.id == 4))
        session.connection().execute(update(Sheet.__table__).values(hits=1))
        session.execute(insert(Sheet), [{"id": 5, "title": "x"}])
    assert [(one.action, one.identity, one.rows, one.columns[-1:]) for one in heard] == [
        ("update", None, 2, ("title",)),
        ("delete", None, 1, ()),
        ("update", None, 3, ("hits",)),
        ("insert", (5,), 1, ("title",)),
    ]


# -- the outcome -----------------------------------------------------------------------------------


def test_nothing_is_told_of_what_is_rolled_back(sessions, engine, heard):
    """Also in a savepoint, an inner one, after close(), and in the next transaction."""
    session = sessions()
    session.get_one(Sheet, 1).title = "rolled back"
    session.flush()
    session.rollback()
    session.get_one(Sheet, 1).title = "closed"
    session.flush()
    session.close()
    session.get_one(Sheet, 2).title = "stored"
    session.flush()
    with session.begin_nested():
        session.get_one(Sheet, 3).title = "stored"
        inner = session.begin_nested()
        session.get_one(Sheet, 4).title = "undone"
        bulk_update(session, Sheet, [{"id": 1, "version": 1, "title": "undone"}])
        inner.rollback()
    outer = session.begin_nested()
    with session.begin_nested():
        session.get_one(Sheet, 4).title = "released, and undone with the outer one"
    outer.rollback()
    assert heard == []
    session.commit()
    assert [row[1] for row in told(heard)] == [(2,), (3,)]
    session.commit()
    session.close()
    with UnitOfWork(sessions, name="transfer") as unit:
        unit.get_one(Sheet, 1).title = "unit"
    assert [(one.identity, one.name) for one in heard] == [((1,), "transfer")]
    heard.clear()
    with pytest.raises(ZeroDivisionError), UnitOfWork(sessions) as unit:
        unit.get_one(Sheet, 1).title = "failed"
        unit.flush()
        raise ZeroDivisionError
    assert heard == []


def test_a_conflict_is_told_by_the_rows_that_are_stored(sessions, engine, heard):
    """Refused rows are not told; settled ones with the version that they were settled over."""

    def theirs(title: str) -> None:
        with sessions.begin() as other:
            other.get_one(Sheet, 1).title = title

    merging = watch(sessionmaker(engine, expire_on_commit=False), on_conflict=merge_fields)
    session = merging()
    one, two = session.get_one(Sheet, 1), session.get_one(Sheet, 2)
    session.commit()
    theirs("theirs")
    heard.clear()
    one.hits, two.title = 7, "too"
    session.commit()
    assert told(heard) == [
        ("update", (1,), 2, 3, ("hits",)),
        ("update", (2,), 1, 2, ("title",)),
    ]
    theirs("again")
    heard.clear()
    one.title, two.title = "mine", "as well"
    with pytest.raises(ConcurrencyError):
        session.flush()
    session.expunge(one)
    session.commit()
    assert [row[1] for row in told(heard)] == [(2,)]
    session.close()


def test_a_listener_of_rows_costs_no_statement_and_others_may_leave_them_out(sessions, engine):
    def write() -> None:
        with sessions.begin() as session:
            for sheet in session.scalars(select(Sheet)):
                sheet.title += "x"
            session.execute(update(Sheet).values(hits=1))

    write()
    with count_statements(engine) as counted:
        write()
    silent, found = counted.count, list[Any]()
    with events.listening(found.append), count_statements(engine) as counted:
        write()
    assert counted.count == silent
    assert sum(isinstance(one, events.Written) for one in found) == 5
    found.clear()
    hear = events.listen(found.append, written=False)
    try:
        assert events.listeners_to_rows == ()
        write()
    finally:
        events.unlisten(hear)
    assert [type(one).__name__ for one in found] == ["SessionCommitted"]


def test_a_unit_that_is_found_stored_tells_its_rows(sessions, heard):
    """A listener to COMMIT that fails comes after it."""

    def fail(session: Session) -> None:
        raise ZeroDivisionError

    event.listen(sessions, "after_commit", fail)
    with pytest.raises(ZeroDivisionError), UnitOfWork(sessions) as session:
        session.get_one(Sheet, 1).title = "stored"
    event.remove(sessions, "after_commit", fail)
    assert [row[1] for row in told(heard)] == [(1,)]


@pytest.mark.anyio
async def test_the_same_for_asyncio(async_engine, async_tables, heard):
    async_tables(Sheet)

    made = watch(async_sessionmaker(async_engine))
    async with made.begin() as session:
        session.add(Sheet(id=1))
    async with made() as session:
        (await session.get_one(Sheet, 1)).title = "never"
        await session.flush()
        await session.rollback()
        (await session.get_one(Sheet, 1)).title = "stored"
        await session.commit()
    assert [row[:4] for row in told(heard)] == [
        ("insert", (1,), None, 1),
        ("update", (1,), 1, 2),
    ]


# -- conflicts -------------------------------------------------------------------------------------


def test_a_conflict_names_a_clients_stale_version_or_a_race(sessions, engine):
    found: list[events.Conflict] = []

    def hear(what: events.Event) -> None:
        if isinstance(what, events.Conflict):
            found.append(what)

    def theirs() -> None:
        with sessions.begin() as other:
            other.get_one(Sheet, 1).hits += 1

    with sessions() as session:
        stale = etag_of(session.get_one(Sheet, 1))
    theirs()
    with events.listening(hear):
        for precondition in (
            lambda s: expect(s.get_one(Sheet, 1), stale),
            lambda s: entities.merge(s, Sheet, 1, {"title": "x"}, if_match=stale),
            lambda s: bulk_update(s, Sheet, [{"id": 1, "version": 1, "title": "x"}]),
        ):
            with sessions() as session, suppress(PreconditionFailed):
                precondition(session)
        with watch(sessionmaker(engine, expire_on_commit=False))() as session:
            sheet = session.get_one(Sheet, 1)
            session.commit()
            theirs()
            sheet.title = "race"
            with pytest.raises(ConcurrencyError):
                session.commit()
    assert [one.reason for one in found] == ["precondition"] * 3 + ["race"]
    assert found[0].as_dict()["reason"] == "precondition"
