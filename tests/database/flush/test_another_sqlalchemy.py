"""A release of SQLAlchemy that works in another way costs no update: the guard sees it, or says so.

What another release may do is done here to the installed one.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Connection, String, event, inspect, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, sessionmaker
from sqlalchemy.util import LRUCache

from optilock import ConcurrencyError, ConfigurationError, UnitOfWork, Versioned, watch
from optilock.tokens import Counter, Unique
from optilock.undocumented import check
from optilock.watched.guard import flush as guarded_flushes
from optilock.watched.guard.own_flush import check_release
from tests.support.models import key


class OtherCache(LRUCache):
    """A cache of statements of another type."""


CACHES = {"another type": lambda: OtherCache(100), "a dict": dict, "none": lambda: None}


@pytest.fixture(params=[Counter(), Unique()], ids=repr)
def page(request, engine):
    """A class of which no flush has written a row, with three rows."""

    class Base(DeclarativeBase):
        type_annotation_map = {str: String(60)}

    class Page(Versioned, Base):
        __tablename__ = "as_pages"
        __version_token__ = request.param
        id: Mapped[int] = key()
        title: Mapped[str]

    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Page(id=number, title="old") for number in (1, 2, 3))
    yield Page
    Base.metadata.drop_all(engine)


@pytest.fixture
def sessions(engine):
    return watch(sessionmaker(engine))


def theirs(engine: Any, page: Any, number: int) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(page, number).title = "theirs"


def stored(engine: Any, page: Any, number: int) -> tuple[str, Any]:
    with Session(engine) as session:
        found = session.get_one(page, number)
        return found.title, found.version


@pytest.fixture(params=CACHES)
def cached(request, page):
    """SQLAlchemy sends the statements of the class with another kind of cache."""
    inspect(page).__dict__["_compiled_cache"] = CACHES[request.param]()
    return page


def test_the_version_moves_whatever_the_cache_of_the_mapper_is(engine, sessions, cached):
    """C1: the UPDATE of the flush is not taken for one that a listener sends."""
    for times in (1, 2, 3):  # planned by SQLAlchemy, and by the guard
        before = stored(engine, cached, 1)[1]
        with sessions() as session:
            session.get_one(cached, 1).title = f"mine {times}"
            session.commit()
        title, after = stored(engine, cached, 1)
        assert title == f"mine {times}"
        assert after != before


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("deletes", [False, True])
def test_a_conflict_is_seen_whatever_the_cache_of_the_mapper_is(
    engine, sessions, cached, rows, deletes
):
    """C1: in one row and in a batch, in the first flush and in the second."""
    for _ in range(2):
        with sessions() as session:
            found = [session.get_one(cached, number) for number in range(1, rows + 1)]
            for one in found:
                if deletes:
                    session.delete(one)
                else:
                    one.title = "mine"
            theirs(engine, cached, 1)
            with pytest.raises(ConcurrencyError) as refused:
                session.commit()
            assert [entry.identity for entry in refused.value.entries] == [(1,)]
        with Session(engine) as session, session.begin():
            session.get_one(cached, 1).title = "old"
    assert stored(engine, cached, 1)[0] == "old"


def test_bulk_updates_move_the_version_whatever_the_cache_is(engine, sessions, cached):
    """C1: a connection that the session has handed out passes them on as they are."""
    title, before = stored(engine, cached, 1)
    with sessions() as session:
        session.connection()
        rows = [{"id": 1, "title": "mine", "version": before}]
        session.bulk_update_mappings(inspect(cached), rows)
        session.commit()
    title, after = stored(engine, cached, 1)
    assert title == "mine"
    assert after != before
    with sessions() as session, pytest.raises(ConcurrencyError):
        session.connection()
        session.bulk_update_mappings(inspect(cached), rows)


def test_a_version_that_a_listener_names_is_the_one_that_is_stored(engine, sessions, page):
    """C1: named by a parameter, it was replaced by the version that the row had."""
    new = page.__version_token__.next(stored(engine, page, 1)[1])
    table = page.__table__

    def name_it(session: Session, flush: Any) -> None:
        statement = update(table).where(table.c.id == 1)
        session.connection().execute(statement, {"title": "by hand", "version": new})

    with sessions() as session:
        event.listen(session, "after_flush", name_it)
        session.get_one(page, 2).title = "mine"
        session.commit()
    assert stored(engine, page, 1) == ("by hand", new)


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_first_flush_that_the_guard_does_not_see_is_refused(
    engine, sessions, page, monkeypatch, rows, deletes
):
    """C1: SQLAlchemy sends its statements without the method that the guard has covered."""
    before = stored(engine, page, 1)
    with sessions() as session:
        found = [session.get_one(page, number) for number in range(1, rows + 1)]
        for one in found:
            if deletes:
                session.delete(one)
            else:
                one.title = "mine"
        with monkeypatch.context() as patched, pytest.raises(ConfigurationError) as refused:
            patched.setattr(
                "optilock.watched.guard.flush.intercept", lambda flush, connection: None
            )
            session.flush()
        assert "does not know" in str(refused.value)
        session.rollback()
    assert stored(engine, page, 1) == before
    with sessions() as session:  # and the next one is seen
        session.get_one(page, 1).title = "mine"
        session.commit()
    assert stored(engine, page, 1)[0] == "mine"


def test_a_flush_that_writes_no_row_is_not_refused(engine, sessions, page):
    """C1: nothing was to be seen: the new value is the old one, or the row is new."""
    with sessions() as session:
        session.get_one(page, 1).title = "old"
        session.flush()
        session.add(page(id=4, title="new"))
        session.commit()
    assert stored(engine, page, 4)[0] == "new"


def test_listeners_that_change_an_object_do_not_count_as_a_write(engine, sessions, page):
    """C1: what ``after_update`` sets of an object that has no UPDATE of its own is not written."""

    @event.listens_for(page, "after_update")
    def after_update(mapper: Any, connection: Connection, target: Any) -> None:
        target.title = "later"

    with sessions() as session:
        session.get_one(page, 1).title = "new"
        session.get_one(page, 1).title = "old"
        session.flush()
        session.commit()
    assert stored(engine, page, 1)[0] == "old"


# -- what the first watch() asks, and the switch ---------------------------------------------------


@pytest.fixture
def ours(monkeypatch) -> list[Any]:
    """The flushes whose rows the guard has written, and not SQLAlchemy."""
    flushes: list[Any] = []
    write = guarded_flushes._write

    def counted(uow: Any, *of_class: Any) -> None:
        flushes.append(uow.session)
        write(uow, *of_class)

    monkeypatch.setattr(guarded_flushes, "_write", counted)
    return flushes


@pytest.fixture
def asked_again(monkeypatch):
    """The release is looked at once more, as in a new process."""
    check_release.cache_clear()
    yield
    monkeypatch.undo()
    check_release.cache_clear()
    check_release()


def a_conflict_is_seen(engine: Any, made: Any, page: Any) -> None:
    """In the first flush of the class and in the second; without one it is written."""
    for _ in range(2):
        with made() as session:
            session.get_one(page, 1).title = "mine"
            theirs(engine, page, 1)
            with pytest.raises(ConcurrencyError):
                session.commit()
        with made() as session:
            session.get_one(page, 1).title = "again"
            session.commit()
    assert stored(engine, page, 1)[0] == "again"


def test_own_flush_can_be_switched_off_for_sessions(engine, page, ours):
    """C2: ``watch(own_flush=False)`` stays until it is said otherwise, and protects as well."""
    made = watch(sessionmaker(engine), own_flush=False)
    a_conflict_is_seen(engine, made, page)
    watch(made)
    a_conflict_is_seen(engine, made, page)
    with UnitOfWork(made) as session:
        session.get_one(page, 2).title = "unit"
    assert ours == []
    watch(made, own_flush=True)
    a_conflict_is_seen(engine, made, page)
    assert len(ours) == 4


def test_what_is_no_answer_is_refused(engine, monkeypatch, asked_again):
    """C2: neither a word in the place of yes and no, nor one in the environment."""
    with pytest.raises(ConfigurationError, match="own_flush='no' is neither True, False nor None"):
        watch(sessionmaker(engine), own_flush="no")
    check_release.cache_clear()
    monkeypatch.setenv("OPTILOCK_OWN_FLUSH", "no")
    with pytest.raises(ConfigurationError, match="OPTILOCK_OWN_FLUSH in the environment is neith"):
        watch(sessionmaker(engine))


def test_own_flush_can_be_switched_off_by_the_environment(
    engine, page, ours, monkeypatch, asked_again, caplog
):
    """C2: ``OPTILOCK_OWN_FLUSH=0`` is for whoever runs the program; nothing is logged."""
    monkeypatch.setenv("OPTILOCK_OWN_FLUSH", "0")
    made = watch(sessionmaker(engine), own_flush=True)
    a_conflict_is_seen(engine, made, page)
    assert ours == []
    assert not caplog.records


@pytest.mark.parametrize("what", ["a function", "a name"])
def test_a_release_that_flushes_in_another_way_does_so_itself(
    engine, page, ours, monkeypatch, asked_again, caplog, what
):
    """C2: where a function is not as it was, SQLAlchemy's flush runs, and the log says so once."""
    name = "sqlalchemy.orm.persistence:_collect_update_commands"
    if what == "a function":
        monkeypatch.setitem(check.REPLACED, name, "00000000")
    else:
        monkeypatch.setitem(check.OF_OWN_FLUSH, "sqlalchemy.orm:Mapper", "_sorted _is_orphaned")
    for _ in range(2):
        made = watch(sessionmaker(engine))
    a_conflict_is_seen(engine, made, page)
    assert ours == []
    (told,) = [one.getMessage() for one in caplog.records if one.name == "optilock"]
    assert told.startswith(f"SQLAlchemy {sqlalchemy.__version__} has no ")
    assert ("_collect_update_commands" if what == "a function" else "_is_orphaned") in told


@pytest.mark.parametrize("begin", [watch, lambda made: UnitOfWork(made).__enter__()])
def test_a_release_without_a_name_is_refused(engine, monkeypatch, asked_again, begin):
    """C2: where protection hangs on it: by ``watch()`` and by a unit, in one sentence."""
    monkeypatch.setitem(check.NEEDED, "sqlalchemy.orm:Session", "_new _newest")
    for _ in range(2):
        with pytest.raises(ConfigurationError) as refused:
            begin(sessionmaker(engine))
        assert str(refused.value).startswith(
            f"SQLAlchemy {sqlalchemy.__version__} has no _newest, without which optilock would not"
        )
