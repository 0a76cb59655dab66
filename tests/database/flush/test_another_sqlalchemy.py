"""A release of SQLAlchemy that works in another way costs no update: the guard sees it, or says so.

What another release may do is done here to the installed one.
"""

from __future__ import annotations

import gc
import logging
import sqlite3
import sys
import warnings
from operator import attrgetter
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Column, Connection, Engine, Pool, Table, event, inspect, update
from sqlalchemy.orm import Mapped, Mapper, Session, sessionmaker
from sqlalchemy.util import LRUCache

from optilock import ConcurrencyError, ConfigurationError, UnitOfWork, Versioned, events, watch
from optilock._undocumented import check, flushes, names
from optilock._watched.guard import flush as guarded_flushes
from optilock._watched.guard import self_test
from optilock._watched.guard.own_flush import installed_release
from optilock._watched.guard.release import check_release
from optilock._watched.guard.self_test import find_faults
from optilock.tokens import Counter, Unique
from optilock.unit import require_conditions
from tests.support.models import key, own_base


class OtherCache(LRUCache):
    """A cache of statements of another type."""


CACHES = {"another type": lambda: OtherCache(100), "a dict": dict, "none": lambda: None}


@pytest.fixture(params=[Counter(), Unique()], ids=repr)
def page(request, store):
    """A class of which no flush has written a row, with three rows."""

    Base = own_base()

    class Page(Versioned, Base):
        __tablename__ = "as_pages"
        __version_token__ = request.param
        id: Mapped[int] = key()
        title: Mapped[str]

    store(*(Page(id=number, title="old") for number in (1, 2, 3)))
    return Page


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


def test_a_version_that_a_listener_names_moves(engine, sessions, page):
    """C1: named by a parameter, it was replaced by the version that the row had."""
    before = stored(engine, page, 1)[1]
    new = page.__version_token__.next(before)
    table = page.__table__

    def name_it(session: Session, flush: Any) -> None:
        statement = update(table).where(table.c.id == 1)
        session.connection().execute(statement, {"title": "by hand", "version": new})

    with sessions() as session:
        event.listen(session, "after_flush", name_it)
        session.get_one(page, 2).title = "mine"
        session.commit()
    title, after = stored(engine, page, 1)
    assert title == "by hand"
    assert after != before


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
                "optilock._watched.guard.flush.intercept", lambda flush, connection: None
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


def told(caplog: Any) -> str:
    (record,) = [one for one in caplog.records if one.name == "optilock"]
    return str(record.getMessage())


@pytest.mark.parametrize("what", ["a function", "a library", "a flush of ours"])
def test_a_release_that_flushes_in_another_way_does_so_itself(
    engine, page, ours, monkeypatch, asked_again, caplog, what
):
    """C2: where a function is not as it was, SQLAlchemy's flush runs, and the log says so once."""
    if what == "a function":
        monkeypatch.setattr(check, "KNOWN", {})
        monkeypatch.setitem(check.REPLACED, "sqlalchemy.orm:Session._flush", "00000000")
    elif what == "a library":
        original = Session._flush
        monkeypatch.setattr(Session, "_flush", lambda *args: original(*args))
    else:
        monkeypatch.setattr(flushes, "register_written", attrgetter("_gone"))
    for _ in range(2):
        made = watch(sessionmaker(engine))
    del ours[:]  # those of the self-test
    a_conflict_is_seen(engine, made, page)
    assert ours == []
    assert told(caplog).startswith(f"SQLAlchemy {sqlalchemy.__version__} ")
    assert ("_gone" if what == "a flush of ours" else "_flush") in told(caplog)


def lose_rows(result: Any, *_: Any) -> int:
    raise AttributeError("matched")


CHANGES: dict[str, tuple[str, Any, str]] = {
    "an argument": (
        "sqlalchemy.orm.state.InstanceState._modified_event",
        lambda self, dict_, attr, *, previous: None,
        "parts of sessions",
    ),
    "an attribute of a result": (
        "optilock._watched.guard.route.AcceptedResult.rowcount",
        property(lose_rows, lambda self, count: None),
        "matched",
    ),
    "another entry": (
        "optilock._watched.guard.flush.intercept",
        lambda flush, connection: None,
        "StaleDataError",
    ),
    "another meaning": (
        "optilock._undocumented.statements.is_ordered",
        lambda statement: False,
        "parts of statements",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_release_that_fails_the_self_test_is_refused(engine, monkeypatch, asked_again, what):
    """By the first ``watch()``, with what has failed, before a row of the application is read."""
    name, change, shown = CHANGES[what]
    monkeypatch.setattr(name, change)
    with pytest.raises(ConfigurationError, match=f"fails the self-test in: .*{shown}"):
        watch(sessionmaker(engine))


def test_a_python_without_sqlite_takes_known_releases_only(
    engine, monkeypatch, asked_again, caplog
):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    check_release()
    assert installed_release.on
    check_release.cache_clear()
    monkeypatch.setattr(check, "KNOWN", {})
    check_release()
    assert not installed_release.on
    assert "for want of sqlite3" in told(caplog)


EVENTS: dict[Any, tuple[str, ...]] = {
    Engine: ("before_cursor_execute", "begin", "commit", "engine_connect", "do_execute"),
    Pool: ("connect", "checkout", "checkin", "reset"),
    Session: ("before_flush", "after_flush", "after_begin", "before_commit", "do_orm_execute"),
    Table: ("before_parent_attach", "after_parent_attach"),
    Column: ("before_parent_attach", "after_parent_attach"),
    Mapper: (
        *("instrument_class", "mapper_configured", "before_configured", "after_configured"),
        *("before_update", "after_update", "before_insert", "load", "init", "expire"),
    ),
}


def test_an_application_does_not_notice_the_self_test(caplog):
    """Its listeners are not called, no warning and no log is written, and nothing is left."""
    heard: list[str] = []
    added: list[tuple[Any, str, Any]] = []

    def listener(target: Any, name: str) -> Any:
        def hear(*_: Any, **__: Any) -> None:
            heard.append(f"{target.__name__}.{name}")

        added.append((target, name, hear))
        return hear

    find_faults(sqlite3, own_flush=True)  # what SQLAlchemy and optilock keep after a first time
    before = classes_of_self_tests()  # an error that is still shown may hold one
    caplog.set_level(logging.DEBUG)
    for target, some in EVENTS.items():
        for name in some:
            event.listen(target, name, listener(target, name))
    try:
        with events.listening(lambda one: heard.append(repr(one))), warnings.catch_warnings():
            warnings.simplefilter("error")
            assert find_faults(sqlite3, own_flush=True) == (None, None)
    finally:
        for one in added:
            event.remove(*one)
    assert heard == []
    assert [one.name for one in caplog.records] == []
    assert classes_of_self_tests() == before


def classes_of_self_tests() -> int:
    for _ in range(2):
        gc.collect()
    held = [one for one in gc.get_objects() if isinstance(one, type)]
    return sum(one.__module__ == self_test.__name__ and one.__name__ == "Row" for one in held)


def test_a_unit_that_runs_does_not_change_the_self_test(engine, page):
    """It may be tried inside a unit, a request and a loop; the unit's own context is not seen."""
    with UnitOfWork(engine) as session:
        require_conditions(session)
        assert find_faults(sqlite3, own_flush=True) == (None, None)


@pytest.mark.parametrize("begin", [watch, lambda made: UnitOfWork(made).__enter__()])
def test_a_release_without_a_name_is_refused(engine, monkeypatch, asked_again, begin):
    """C2: where protection hangs on it: by ``watch()`` and by a unit, in one sentence."""
    monkeypatch.setitem(check.NEEDED, "sqlalchemy.orm:Session", "_new _newest")
    for _ in range(2):
        with pytest.raises(ConfigurationError) as refused:
            begin(sessionmaker(engine))
        assert str(refused.value).startswith(
            f"SQLAlchemy {sqlalchemy.__version__} has no _newest. optilock would not see every"
        )


def test_a_module_of_another_name_fails_no_import(engine, monkeypatch, asked_again):
    """The name that was looked for in it is refused by ``watch()``."""
    found = names.find_name("sqlalchemy.no_such:Thing.attribute")
    assert issubclass(type("Own", (found[Any],), {}), found)
    try:
        with pytest.raises(ConfigurationError, match=r"has no Thing\.attribute\. "):
            watch(sessionmaker(engine))
    finally:
        names.not_found.remove("Thing.attribute")
