"""What Hibernate's tests demand (hibernate-core/src/test/java/org/hibernate/orm/test)."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
from sqlalchemy import select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import make_transient_to_detached, sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    etag_of,
    is_transient,
)
from tests.spec.models import (
    Address,
    Beast,
    Clock,
    Counted,
    Dirty,
    Doc,
    Kid,
    Label,
    Order,
    Parent,
    Plain,
    Shelf,
    Tame,
    Whole,
)
from tests.spec.steps import alive, statement
from tests.support.models import Page

compared = pytest.mark.parametrize("model", [Whole, Dirty])


def a_row(model, **values):
    return model(id=1, name="a", other="a", address=Address("a", "a"), **values)


# -- compared values (OptimisticLockType.ALL and DIRTY) --------------------------------------------


@compared
@pytest.mark.parametrize("stale", [False, True])
def test_a_delete_after_several_flushes_is_held_to_the_newest_values(
    store, watched, stored, refused, engine, model, stale
):
    """HB-03"""
    store(a_row(model))
    session = watched()
    row = session.get_one(model, 1)
    for name in ("b", "c"):
        row.name = name
        session.flush()
    session.commit()
    assert row.name == "c"
    session.delete(row)
    if stale:
        statement(engine, model, 1, name="theirs")
        refused(session)
        session.rollback()
        assert stored(model, 1)["name"] == "theirs"
    else:
        session.commit()
        assert stored(model, 1) is None


@compared
def test_a_reference_that_was_empty_is_compared_as_empty(
    store, watched, stored, refused, engine, model
):
    """HB-09: NULL is compared by IS NULL."""
    store(Plain(id=1), Plain(id=2), a_row(model))
    session = watched()
    row = session.get_one(model, 1)
    assert row.keeper is None
    row.keeper = session.get_one(Plain, 1)
    statement(engine, model, 1, keeper_id=2)
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.original["keeper_id"], entry.database["keeper_id"]) == (None, 2)
    assert stored(model, 1)["keeper_id"] == 2


@compared
@pytest.mark.parametrize("stale", [False, True])
def test_a_row_with_a_composite_is_deleted_by_its_values(
    store, watched, stored, refused, engine, model, stale
):
    """HB-14"""
    store(a_row(model))
    session = watched()
    row = session.get_one(model, 1)
    assert row.address == Address("a", "a")
    session.delete(row)
    if stale:
        statement(engine, model, 1, city="theirs")
        assert refused(session).entries[0].database["city"] == "theirs"
    else:
        session.commit()
        assert stored(model, 1) is None


# -- errors of the databases -----------------------------------------------------------------------


def at_sqlserver():
    kind = type("Error", (Exception,), {"__module__": "pyodbc"})
    return kind("42000", "[42000] Snapshot transaction aborted (3960) (SQLExecDirectW)")


def at_cockroach():
    return psycopg.errors.SerializationFailure("restart transaction: TransactionRetryError")


def at_mariadb():
    return pymysql.err.OperationalError(1020, "Record has changed since last read in table 't'")


def at_sqlite():
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
    return error


@pytest.mark.parametrize("error", [at_sqlserver, at_cockroach, at_mariadb, at_sqlite])
def test_what_databases_say_of_a_lost_race_counts_as_the_same(error):
    """HB-04: 3960, 40001, 1020, SQLITE_BUSY_SNAPSHOT: run the work again."""
    assert is_transient(DBAPIError("UPDATE t SET v = 2", None, error()))
    assert is_transient(ConcurrencyError())


# -- columns that do not count ---------------------------------------------------------------------


@alive
def test_a_change_of_an_ignored_column_is_no_conflict(store, watched, stored):
    """HB-06: both are kept."""
    store(Page(id=1, body="a", views=0))
    alice, bob = watched(), watched()
    page = alice.get_one(Page, 1)
    bob.get_one(Page, 1).views = 10
    bob.commit()
    page.body = "ours"
    alice.commit()

    assert stored(Page, 1) == {"id": 1, "body": "ours", "views": 10, "version": 2}


def test_of_an_ignored_column_the_last_writer_wins(store, watched, stored):
    """HB-06: a lost update that the class has made legal."""
    store(Page(id=1, body="a", views=0))
    alice, bob = watched(expire_on_commit=False), watched()
    page = alice.get_one(Page, 1)
    alice.commit()
    bob.get_one(Page, 1).views = 10
    bob.commit()
    page.views = 1
    alice.commit()

    assert (stored(Page, 1)["views"], stored(Page, 1)["version"]) == (1, 1)


# -- what belongs to a row -------------------------------------------------------------------------


def test_a_change_of_a_kid_leaves_the_version_of_its_parent(store, watched, other, stored):
    """HB-08: unless the class says that the parent is the root."""
    store(Parent(id=1, name="a", kids=[Kid(id=1)]))
    session = watched(autoflush=False)
    parent = session.get_one(Parent, 1)
    parent.name = "ours"
    other(Kid, 1, name="theirs")
    session.commit()

    assert (stored(Parent, 1)["version"], stored(Kid, 1)["version"]) == (2, 2)


@pytest.mark.parametrize("side", ["owning", "inverse"])
def test_the_row_with_the_foreign_key_is_the_one_that_moves(store, watched, stored, side):
    """HB-34: whichever side of the relationship was written."""
    store(Parent(id=1), Parent(id=2), Kid(id=1, parent_id=1))
    session = watched(autoflush=False)
    kid, parent = session.get_one(Kid, 1), session.get_one(Parent, 2)
    assert kid.parent.id == 1
    if side == "owning":
        kid.parent = parent
    else:
        parent.kids.append(kid)
    session.commit()

    assert (stored(Kid, 1)["parent_id"], stored(Kid, 1)["version"]) == (2, 2)
    assert [stored(Parent, n)["version"] for n in (1, 2)] == [1, 1]


@pytest.mark.parametrize("change", ["name", "tricks", "keeper", "all"])
def test_a_joined_row_moves_the_version_of_its_base_by_one(store, watched, stored, change):
    """HB-19: for its own columns, and for a reference."""
    store(Plain(id=1), Tame(id=1))
    session = watched(autoflush=False)
    tame = session.get_one(Tame, 1)
    if change in ("name", "all"):
        tame.name = "ours"
    if change in ("tricks", "all"):
        tame.tricks = "ours"
    if change in ("keeper", "all"):
        tame.keeper = session.get_one(Plain, 1)
    session.commit()

    assert stored(Beast, 1)["version"] == tame.version == 2


# -- flushes ---------------------------------------------------------------------------------------


def test_queries_that_flush_move_the_version_once(store, watched, stored):
    """HB-16"""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = "ours"
    for _ in range(3):
        session.scalars(select(Doc)).all()
    session.commit()

    assert stored(Doc, 1)["version"] == 2


@alive
def test_a_row_that_is_reloaded_with_a_lock_can_be_saved(store, watched, other, stored):
    """HB-13: the change outside is seen, and built upon."""
    store(Doc(id=1, name="1"))
    session = watched()
    doc = session.get_one(Doc, 1)
    other(Doc, 1, name="2")
    session.refresh(doc, with_for_update=True)
    doc.name = str(int(doc.name) * 2)
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("4", 3)


# -- tokens of one's own ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_a_token_may_have_its_own_beginning_and_its_own_steps(
    store, watched, other, stored, refused, count
):
    """HB-23, EC-06"""
    store(*(Counted(id=n) for n in range(count)))
    assert stored(Counted, 0)["version"] == 10
    session = watched()
    for row in session.scalars(select(Counted)):
        row.name = "ours"
    session.commit()
    assert [stored(Counted, n)["version"] for n in range(count)] == [0] * count
    for row in session.scalars(select(Counted)):
        row.name = "again"
    other(Counted, 0, name="theirs")
    [entry] = refused(session).entries

    assert (entry.original["version"], entry.database["version"]) == (0, -10)


def test_what_needs_a_version_says_so_where_there_is_none(store, watched):
    """HB-27"""
    store(Plain(id=1))
    session = watched()
    with pytest.raises(ConfigurationError, match="Plain has no version"):
        etag_of(session.get_one(Plain, 1))


# -- rows that were not read -----------------------------------------------------------------------


def upsert(engine, **values):
    new = {"id": 1, "name": "ours"}
    if engine.dialect.name in ("mysql", "mariadb"):
        return mysql.insert(Doc).values(new).on_duplicate_key_update(**values)
    made = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert(Doc).values(new)
    return made.on_conflict_do_update(index_elements=["id"], set_=values)


def test_an_upsert_by_a_statement_must_move_the_version(store, watched, stored, refused, engine):
    """HB-31: an ON CONFLICT that leaves it would go around every check."""
    store(Doc(id=1, name="a"))
    session, stale = watched(), watched()
    held = stale.get_one(Doc, 1)
    with pytest.raises(ConfigurationError):
        session.execute(upsert(engine, name="ours"))
    session.execute(upsert(engine, name="ours", version=Doc.version + 1))
    session.commit()
    held.name = "stale"
    refused(stale)
    stale.rollback()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("ours", 2)


# -- rows that are only read -----------------------------------------------------------------------


def test_rows_that_are_only_read_are_not_moved(engine, store, stored):
    """HB-33: and one that is changed all the same is refused by the read-only unit."""
    store(Parent(id=1, name="a", kids=[Kid(id=1)]))
    with UnitOfWork(sessionmaker(engine), read_only=True) as session:
        assert [kid.id for kid in session.get_one(Parent, 1).kids] == [1]
    with (
        pytest.raises(ConfigurationError, match="Parent"),
        UnitOfWork(sessionmaker(engine), read_only=True) as session,
    ):
        session.get_one(Parent, 1).name = "ours"

    assert stored(Parent, 1) == {"id": 1, "name": "a", "version": 1}


def test_a_relationship_for_viewing_moves_nothing(store, watched, stored):
    """HB-33"""
    store(Doc(id=1), Shelf(id=1), Shelf(id=2))
    session = watched()
    shelf = session.get_one(Shelf, 1)
    shelf.twins.append(session.get_one(Shelf, 2))
    session.commit()

    assert [stored(Shelf, n)["version"] for n in (1, 2)] == [1, 1]


@pytest.mark.parametrize("act", ["update", "delete"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("model", [Doc, Parent])
def test_a_row_that_was_not_read_and_has_no_version_is_not_overwritten(
    store, watched, other, stored, model, act, count
):
    """HB-20: nobody can say what its author has seen; read or with a version it can be written."""
    store(*(model(id=n, name="a") for n in range(count)))
    other(model, 0, name="theirs")
    session = watched(autoflush=False)
    rows = []
    for n in range(count):
        row = model(id=n)
        make_transient_to_detached(row)
        session.add(row)
        rows.append(row)
    for row in rows:
        if act == "update":
            row.name = "ours"
        else:
            session.delete(row)
    with pytest.raises(ConfigurationError, match="without having been read"):
        session.flush()
    session.rollback()
    assert stored(model, 0)["name"] == "theirs"
    session.refresh(rows[0])
    rows[0].name = "ours"
    session.commit()

    assert stored(model, 0)["version"] == 3


# -- statements (UPDATE VERSIONED) -----------------------------------------------------------------


@pytest.mark.parametrize("model", [Doc, Counted, Clock])
def test_an_update_statement_moves_every_kind_of_version(store, watched, stored, refused, model):
    """HB-22: as an UPDATE VERSIONED does; the object in the session knows."""
    store(model(id=1, name="a"), model(id=2, name="a"))
    before = stored(model, 1)["version"]
    session, stale = watched(), watched()
    row, held = session.get_one(model, 1), stale.get_one(model, 1)
    session.execute(update(model).values(name="ours"))
    session.commit()
    assert stored(model, 1)["version"] == row.version != before
    row.name = "again"
    session.commit()
    held.name = "stale"
    refused(stale)
    stale.rollback()

    assert (stored(model, 1)["name"], stored(model, 2)["name"]) == ("again", "ours")


# -- copies ----------------------------------------------------------------------------------------


def a_copy(session, cls, **values):
    copy = session.get_one(cls, 1)
    session.expunge(copy)
    session.commit()
    for name, value in values.items():
        setattr(copy, name, value)
    return copy


def test_a_copy_of_a_row_without_a_version_is_inserted_again(store, watched, gone, stored):
    """HB-21: where there is none, SQLAlchemy's own behaviour remains."""
    store(Plain(id=1, name="a"))
    session = watched()
    copy = a_copy(session, Plain, name="ours")
    gone(Plain, 1)
    session.merge(copy)
    session.commit()

    assert stored(Plain, 1)["name"] == "ours"


# -- roots -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["owning", "inverse"])
def test_links_that_count_move_the_version_of_the_side_that_says_so(orders, watched, stored, side):
    """HB-24: and of no other, whichever side was written."""
    session = watched(autoflush=False)
    order, label = session.get_one(Order, 1), session.get_one(Label, 1)
    if side == "owning":
        order.labels.append(label)
    else:
        label.orders.append(order)
    session.commit()

    assert (stored(Order, 1)["version"], stored(Label, 1)["version"]) == (2, 1)
