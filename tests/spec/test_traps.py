"""The 37 traps: what is got wrong easily is done right here, or refused clearly."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.attributes import flag_modified, set_committed_value

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    UnitOfWork,
    bulk_update,
    client_wins,
    merge_fields,
    repeatable_read,
    retrying,
    serializable,
    touch,
    unit_of_work,
    verify,
)
from optilock.statements import no_bump, unchanged
from tests.spec.models import (
    Address,
    Blob,
    Dirty,
    Doc,
    Kid,
    Line,
    Mark,
    Moved,
    Order,
    Parent,
    Plain,
    Point,
    Sheet,
    Whole,
)
from tests.spec.steps import alive, statement, stub, told
from tests.support.models import (
    Animal,
    Dog,
    Eager,
    Page,
    Settings,
)

# -- state and recovery ----------------------------------------------------------------------------


@alive
def test_a_savepoint_can_be_rolled_back_after_a_conflict_in_it(store, watched, other, stored):
    """trap 3: ``if savepoint.is_active: savepoint.rollback()`` does what it says."""
    store(*(Doc(id=n, name="a") for n in (1, 2)))
    session = watched()
    one, two = session.get_one(Doc, 1), session.get_one(Doc, 2)
    other(Doc, 2, name="theirs")
    savepoint = session.begin_nested()
    one.name = two.name = "ours"
    told_in(savepoint, session)
    session.commit()

    assert [stored(Doc, n)["name"] for n in (1, 2)] == ["a", "theirs"]


def told_in(savepoint, session):
    with pytest.raises(ConcurrencyError):
        session.flush()
    assert savepoint.is_active
    savepoint.rollback()
    assert session.is_active


def test_a_query_that_flushes_tells_the_conflict_and_the_unit_catches_it(
    engine, store, other, stored
):
    """trap 4: wherever it comes up, it is the same error, and the unit is run again."""
    store(Doc(id=1, name="a"), Plain(id=1))
    ran = []

    @unit_of_work(sessionmaker(engine), retry=retrying(wait_initial=0))
    def edit(session):
        ran.append(session)
        doc = session.get_one(Doc, 1)
        if len(ran) == 1:
            other(Doc, 1, other="theirs")
        doc.name = "ours"
        session.scalars(select(Plain)).all()
        ran.append("after the query")

    edit()

    assert [isinstance(step, Session) for step in ran] == [True, True, False]
    assert (stored(Doc, 1)["name"], stored(Doc, 1)["other"]) == ("ours", "theirs")


def test_after_savepoints_the_version_is_that_of_each(store, watched, stored):
    """trap 7: savepoints inside savepoints; rails#58001."""
    store(Doc(id=1, name="1"))
    session = watched()
    doc = session.get_one(Doc, 1)
    savepoints = []
    for name in ("2", "3", "4"):
        doc.name = name
        session.flush()
        savepoints.append(session.begin_nested())
    doc.name = "5"
    session.flush()
    for savepoint, version in zip(reversed(savepoints), (4, 3, 2), strict=True):
        savepoint.rollback()
        assert (doc.version, doc.name) == (version, str(version))
        doc.other = "a"
        session.flush()
        assert doc.version == version + 1
    session.commit()

    assert stored(Doc, 1) == {"id": 1, "name": "2", "other": "a", "version": 3}


# -- what goes into WHERE --------------------------------------------------------------------------


def test_a_version_that_was_seen_is_named_without_being_written(store, watched, other, stored):
    """trap 8: assigning is refused; ``set_committed_value`` puts it into the WHERE."""
    store(Doc(id=1, name="a"))
    other(Doc, 1, name="theirs")
    session = watched()
    doc = session.get_one(Doc, 1)
    with pytest.raises(ConfigurationError):
        doc.version = 1
    set_committed_value(doc, "version", 1)
    doc.name = "ours"
    [entry] = told(session).entries
    session.rollback()

    assert entry.original["version"] == 1
    assert stored(Doc, 1) == {"id": 1, "name": "theirs", "other": None, "version": 2}


@pytest.mark.parametrize("again", [Session.refresh, Session.expire])
@pytest.mark.parametrize("resolver", [None, merge_fields])
def test_a_row_that_was_reloaded_in_part_is_still_the_older_version(
    store, watched, other, stored, again, resolver
):
    """trap 10: what was not reloaded may be out of date; a merge knows what was."""
    store(Doc(id=1, name="a", other="a"))
    session = watched(resolver, expire_on_commit=False)
    doc = session.get_one(Doc, 1)
    session.commit()
    other(Doc, 1, name="theirs", other="theirs")
    again(session, doc, ["name"])
    assert (doc.name, doc.other, doc.version) == ("theirs", "a", 1)
    doc.name = "ours"
    if resolver is None:
        [entry] = told(session).entries
        session.rollback()
        assert (entry.original["name"], entry.conflicting) == ("theirs", set())
        assert stored(Doc, 1)["name"] == "theirs"
    else:
        session.commit()
        assert (doc.name, doc.other, doc.version) == ("ours", "theirs", 3)
        assert stored(Doc, 1)["other"] == "theirs"


@pytest.mark.parametrize("model", [Whole, Dirty])
def test_compared_values_may_be_null_and_are_those_that_were_loaded(
    store, watched, engine, stored, refused, model
):
    """trap 12: NULL is no reason to miss, and a composite that is replaced keeps its original."""
    store(model(id=1, name=None, other="a", address=Address(None, "a")))
    session = watched()
    row = session.get_one(model, 1)
    row.name, row.address = "b", Address("b", "b")
    session.commit()
    assert (row.name, row.address, row.keeper_id) == ("b", Address("b", "b"), None)
    row.address = Address("c", "c")
    statement(engine, model, 1, street=None)
    [entry] = refused(session).entries

    assert (entry.original["street"], entry.database["street"]) == ("b", None)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("name", "theirs"), [("real", 0.3), ("blob", b"b"), ("data", {"a": 2}), ("late", "b")]
)
def test_compared_values_may_be_floats_blobs_json_and_deferred(
    store, watched, engine, stored, refused, name, theirs, count
):
    """trap 12: equal ones are no conflict, others are. What was not loaded is not compared."""
    values = {"real": 0.1 + 0.2, "blob": b"a", "data": {"a": 1}, "late": "a"}
    store(*(Sheet(id=n, name="a", **values) for n in range(count)))
    session = watched()
    sheets = session.scalars(select(Sheet).order_by(Sheet.id)).all()
    for sheet in sheets:
        sheet.name = "b"
    session.commit()
    assert [sheet.name for sheet in sheets] == ["b"] * count
    if name != "late":
        statement(engine, Sheet, 0, late="b")
    else:
        assert [sheet.late for sheet in sheets] == ["a"] * count
    for sheet in sheets:
        sheet.name = "ours"
    statement(engine, Sheet, 0, **{name: theirs})
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.original[name], entry.database[name]) == (values[name], theirs)
    assert stored(Sheet, 0)["name"] == "b"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_versions_of_bytes_match_whatever_holds_them(store, watched, stored, kind):
    """trap 13: sqlalchemy#8389."""
    store(Blob(id=1, name="a"))
    session = watched()
    stub(session, Blob, kind(stored(Blob, 1)["version"]), id=1).name = "ours"
    session.commit()

    assert stored(Blob, 1)["name"] == "ours"


@pytest.mark.parametrize("count", [1, 3])
def test_a_counter_goes_beyond_32_bits(store, watched, stored, engine, count):
    """trap 16"""
    store(*(Doc(id=n) for n in range(count)))
    statement(engine, Doc, 0, version=2**31 - 1)
    session = watched()
    docs = session.scalars(select(Doc).order_by(Doc.id)).all()
    for name in ("a", "b"):
        for doc in docs:
            doc.name = name
        session.commit()

    assert stored(Doc, 0)["version"] == docs[0].version == 2**31 + 1


# -- counting rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("stale", [False, True])
def test_rows_are_counted_also_where_the_write_returns_values(
    store, watched, other, refused, stored, count, stale
):
    """trap 18: with RETURNING, SQLite's cursor says 0 rows; sqlalchemy#9228."""
    store(*(Eager(id=n, name="a") for n in range(count)))
    session = watched()
    for row in session.scalars(select(Eager)):
        row.name = "ours"
    if stale:
        other(Eager, 0, name="theirs")
        assert [e.identity for e in refused(session).entries] == [(0,)]
    else:
        session.commit()
        assert [stored(Eager, n)["name"] for n in range(count)] == ["ours"] * count
        assert stored(Eager, 0)["lower"] == "abc"


@pytest.mark.engines("mariadb")
def test_a_driver_that_counts_changed_rows_only_does_not_disturb_versions(
    store, watched_on, engine, other, stored
):
    """trap 19: without CLIENT.FOUND_ROWS a row that is written with its own values counts 0."""
    import pymysql
    from sqlalchemy import create_engine

    url = engine.url
    options = {
        "host": url.host, "port": url.port, "user": url.username, "password": url.password or "",
        "database": url.database, "init_command": url.query["init_command"],
    }  # fmt: skip
    bare = create_engine("mysql+pymysql://", creator=lambda: pymysql.connect(**options))
    store(Doc(id=1, name="a"), Doc(id=2, name="a"))
    session = watched_on(bare)
    for doc in session.scalars(select(Doc)):
        doc.name = "a" if doc.id == 1 else "b"
        flag_modified(doc, "name")
    session.commit()
    session.get_one(Doc, 2).name = "ours"
    other(Doc, 2, name="theirs")
    told(session)
    session.close()
    bare.dispose()

    assert [stored(Doc, n)["version"] for n in (1, 2)] == [2, 3]


def test_a_duplicate_key_is_an_integrity_error(store, watched):
    """trap 21: in a batch as well, and whatever resolver there is."""
    store(Doc(id=2))
    session = watched(client_wins)
    session.add_all(Doc(id=n) for n in (1, 2, 3))
    with pytest.raises(IntegrityError) as caught:
        session.commit()

    assert not isinstance(caught.value, ConcurrencyError)


# -- engines and isolation -------------------------------------------------------------------------


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize(
    "level", [Isolation.READ_COMMITTED, Isolation.REPEATABLE_READ, Isolation.SERIALIZABLE]
)
def test_a_lost_race_is_the_same_error_at_every_level(engine, store, other, stored, level):
    """trap 22: where PostgreSQL ends the transaction, its error is the cause."""
    store(Doc(id=1, name="a"))
    with (
        pytest.raises(ConcurrencyError) as caught,
        UnitOfWork(sessionmaker(engine), isolation=level) as session,
    ):
        doc = session.get_one(Doc, 1)
        other(Doc, 1, name="theirs")
        doc.name = "ours"
    [entry] = caught.value.entries

    assert (entry.original["name"], entry.current["name"]) == ("a", "ours")
    assert entry.database["name"] == "theirs"
    cause = caught.value.__cause__
    assert (cause is None) == (level is Isolation.READ_COMMITTED)
    assert cause is None or cause.orig.sqlstate == "40001"
    assert stored(Doc, 1)["name"] == "theirs"


@alive
@pytest.mark.engines("mariadb")
def test_the_stored_values_of_an_entry_are_the_newest(store, watched, other, stored):
    """trap 23: a plain read of the same transaction shows the old row for ever."""
    store(Doc(id=1, name="a"))
    seen = []

    def resolve(entry):
        plain = session.connection().exec_driver_sql("SELECT name FROM spec_docs").scalar()
        seen.append((entry.database["name"], plain))
        return client_wins(entry)

    session = watched(resolve)
    doc = session.get_one(Doc, 1)
    other(Doc, 1, name="theirs", other="theirs")
    doc.name = "ours"
    session.commit()

    assert seen == [("theirs", "a")]
    assert stored(Doc, 1) == {"id": 1, "name": "ours", "other": "theirs", "version": 3}


@pytest.mark.engines("mariadb-snapshot")
def test_where_the_database_ends_the_transaction_the_entry_is_read_after_it(
    store, watched, other, refused
):
    """trap 23: error 1020."""
    store(Doc(id=1, name="a"))
    session = watched(client_wins)
    session.get_one(Doc, 1).name = "ours"
    other(Doc, 1, name="theirs")
    error = refused(session)

    assert error.__cause__.orig.args[0] == 1020
    assert error.entries[0].database["name"] == "theirs"


@pytest.mark.engines("sqlite-wal")
def test_a_snapshot_that_is_too_old_ends_the_unit_and_the_unit_is_run_again(
    engine, store, other, stored
):
    """trap 24: SQLITE_BUSY_SNAPSHOT; repeating the statement could never help."""
    store(Doc(id=1, name="a"))
    ran = []

    @unit_of_work(
        sessionmaker(engine), isolation=Isolation.REPEATABLE_READ, retry=retrying(wait_initial=0)
    )
    def edit(session):
        ran.append(1)
        doc = session.get_one(Doc, 1)
        if len(ran) == 1:
            other(Doc, 1, other="theirs")
        doc.name = "ours"

    edit()

    assert len(ran) == 2
    assert stored(Doc, 1) == {"id": 1, "name": "ours", "other": "theirs", "version": 3}


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("unit", [repeatable_read, serializable])
def test_write_skew_is_prevented_by_serializable_alone(engine, store, stored, unit):
    """trap 25: each writes its own row, so no version moves under the other."""
    store(Doc(id=1, name="on"), Doc(id=2, name="on"))
    failed = 0
    try:
        sessions = sessionmaker(engine)
        with unit(sessions) as ours, unit(sessions, propagation="independent") as theirs:
            for session, key in ((ours, 1), (theirs, 2)):
                docs = session.scalars(select(Doc).order_by(Doc.id)).all()
                assert [doc.name for doc in docs] == ["on", "on"]
                docs[key - 1].name = "off"
                session.flush()
    except ConcurrencyError:
        failed = 1

    assert failed == (1 if unit is serializable else 0)
    assert [stored(Doc, n)["name"] for n in (1, 2)].count("on") == failed


# -- mapping ---------------------------------------------------------------------------------------


@alive
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("act", ["edit", "delete"])
def test_of_a_joined_row_that_missed_neither_table_is_written(
    store, watched, other, refused, engine, act, count
):
    """trap 28: looked at in the same transaction, before any rollback."""
    store(*(Dog(id=n, name="a", tricks="a") for n in range(count)))
    session = watched()
    for dog in session.scalars(select(Dog)):
        if act == "edit":
            dog.tricks = "ours"
        else:
            session.delete(dog)
    other(Animal, 0, name="theirs")
    refused(session)

    with session.no_autoflush:
        tricks = session.scalar(text("SELECT tricks FROM dogs WHERE id = 0"))
        assert tricks == "a"


def test_flagging_an_attribute_moves_the_version_and_flagging_the_version_is_refused(
    store, watched, stored
):
    """trap 30: so is adding to it."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    with pytest.raises(ConfigurationError):
        doc.version += 1
    with pytest.raises(ConfigurationError):
        flag_modified(doc, "version")
    flag_modified(doc, "name")
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("a", 2)


def test_a_composite_that_is_changed_in_place_has_its_original(
    store, watched, other, stored, refused
):
    """trap 31"""
    store(Mark(id=1, at=Point(1, 1)))
    session = watched()
    mark = session.get_one(Mark, 1)
    mark.at.x = 5
    other(Mark, 1, at=Point(1, 9))
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.original["x"], entry.changes) == (1, {"x": 5})
    assert entry.conflicting == {"x", "y"}  # a composite is one value
    assert mark.at == Point(1, 9)


def test_a_plain_value_that_is_changed_in_place_is_saved_when_it_is_flagged(
    store, watched, other, stored, refused
):
    """trap 31: SQLAlchemy does not see the change itself; the original is known all the same."""
    store(Settings(id=1, plain=[1]))
    session = watched()
    settings = session.get_one(Settings, 1)
    settings.plain.append(2)
    flag_modified(settings, "plain")
    other(Settings, 1, plain=[1, 9])
    [entry] = refused(session).entries

    assert (entry.original["plain"], entry.current["plain"]) == ([1], [1, 2])
    assert entry.database["plain"] == [1, 9]


def test_a_value_that_comes_back_to_itself_moves_nothing(store, watched, other, stored):
    """trap 36: so it conflicts with nobody either."""
    store(Doc(id=1, name="a"))
    session = watched()
    doc = session.get_one(Doc, 1)
    doc.name = "b"
    doc.name = "a"
    other(Doc, 1, name="theirs")
    session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("theirs", 2)


def test_an_ignored_column_does_not_keep_other_writers_from_theirs(store, watched, stored):
    """trap 36: beside a counted one it moves the version, alone it does not."""
    store(Page(id=1, body="a", views=0))
    session = watched()
    page = session.get_one(Page, 1)
    page.views = 1
    session.commit()
    assert stored(Page, 1)["version"] == 1
    page.views, page.body = 2, "b"
    session.commit()

    assert stored(Page, 1) == {"id": 1, "body": "b", "views": 2, "version": 2}


# -- expired objects, and bookkeeping --------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_bookkeeping_in_the_same_transaction_is_no_conflict_with_oneself(
    store, watched, stored, count
):
    """trap 37: a touch, a counter, a note: the object always knows the stored version."""
    store(*(Doc(id=n, name="a") for n in range(count)))
    session = watched(expire_on_commit=False)
    docs = session.scalars(select(Doc).order_by(Doc.id)).all()
    for doc in docs:
        touch(doc)
    session.flush()
    for doc in docs:
        doc.name = Doc.name + "b"
    session.flush()
    with no_bump(session):
        for doc in docs:
            doc.other = "c"
    for doc in docs:
        doc.name = "ours"
    session.commit()

    assert [doc.version for doc in docs] == [4] * count
    assert stored(Doc, 0) == {"id": 0, "name": "ours", "other": "c", "version": 4}


# -- roots, and versions that triggers move --------------------------------------------------------


def through_the_collection(session, order):
    order.lines.append(Line(id=3))


def by_removal(session, order):
    session.delete(session.get_one(Line, 1))


def by_moving_away(session, order):
    session.get_one(Line, 1).order_id = 2


@pytest.mark.parametrize("act", [through_the_collection, by_removal, by_moving_away])
def test_two_who_change_different_lines_of_an_order_meet(orders, watched, refused, stored, act):
    """trap 29: the root is declared; no row is written by both."""
    session, theirs = watched(autoflush=False), watched(autoflush=False)
    mine, yours = session.get_one(Order, 1), theirs.get_one(Order, 1)
    kept = [session.get_one(Line, 1), session.get_one(Line, 2)]
    line = theirs.get_one(Line, 2)
    line.amount = 5
    theirs.commit()
    assert yours.version == 2
    act(session, mine)
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.model, entry.identity, kept[0].id) == (Order, (1,), 1)
    assert [stored(Order, n)["version"] for n in (1, 2)] == [2, 1]
    assert stored(Line, 1)["order_id"] == 1


def test_without_a_declared_root_the_parent_stays(store, watched, stored):
    """trap 29: off by default."""
    store(Parent(id=1, kids=[Kid(id=1)]))
    session = watched()
    parent = session.get_one(Parent, 1)
    parent.kids[0].name = "ours"
    parent.kids.append(Kid(id=2))
    session.commit()

    assert stored(Parent, 1)["version"] == 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("stale", [False, True])
def test_a_version_that_a_trigger_moves_is_the_stored_one(
    store, watched, engine, stored, refused, count, stale
):
    """trap 35, EX-13: three saves, and a writer that knows nothing of versions."""
    store(*(Moved(id=n, name="a") for n in range(count)))
    session = watched(expire_on_commit=False)
    rows = session.scalars(select(Moved).order_by(Moved.id)).all()
    for name in ("b", "c", "d"):
        for row in rows:
            row.name = name
        session.flush()
    session.commit()
    assert [row.version for row in rows] == [stored(Moved, n)["version"] for n in range(count)]
    if stale:
        statement(engine, Moved, 0, name="theirs")
    for row in rows:
        row.name = "ours"
    if stale:
        [entry] = told(session).entries
        session.rollback()
        assert entry.identity == (0,)
    else:
        session.commit()

    assert stored(Moved, 0)["name"] == ("theirs" if stale else "ours")


def test_of_a_row_that_is_deleted_here_nothing_is_verified(engine, store, stored):
    """trap 26: HHH-9419."""
    store(Doc(id=1, name="a"))
    with UnitOfWork(sessionmaker(engine), verify_reads=True) as session:
        doc = session.get_one(Doc, 1)
        verify(doc)
        session.delete(doc)

    assert stored(Doc, 1) is None


# -- statements ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["auto", "evaluate", "fetch"])
def test_an_update_statement_moves_the_version_and_the_object_knows(
    store, watched, other, stored, strategy
):
    """trap 34: SQLAlchemy's neither checks nor moves; checking is said with ``unchanged``."""
    store(Doc(id=1, name="a"))
    session = watched(expire_on_commit=False)
    doc = session.get_one(Doc, 1)
    options = {"synchronize_session": strategy}
    session.execute(update(Doc).where(Doc.id == 1).values(name="b"), execution_options=options)
    session.commit()
    assert (doc.name, doc.version) == ("b", 2)
    other(Doc, 1, name="theirs")
    found = session.execute(update(Doc).where(unchanged(doc)).values(name="ours"))
    session.commit()

    assert found.rowcount == 0
    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("theirs", 3)


def test_rows_in_bulk_come_back_as_written_or_as_conflicts(store, watched, other, stored):
    """trap 34: each in the version that it names."""
    store(*(Doc(id=n, name="a") for n in (1, 2, 3)))
    other(Doc, 2, name="theirs")
    session = watched()
    rows = [{"id": n, "version": 1, "name": "ours"} for n in (1, 2, 3)]
    result = bulk_update(session, Doc, rows)
    session.commit()

    assert [done.identity for done in result.updated] == [(1,), (3,)]
    assert [entry.identity for entry in result.conflicts] == [(2,)]
    assert [stored(Doc, n)["name"] for n in (1, 2, 3)] == ["ours", "theirs", "ours"]


def test_an_object_that_was_saved_in_bulk_is_no_conflict_with_itself(store, watched, stored):
    """trap 34: SQLAlchemy leaves the old version in it."""
    store(Doc(id=1, name="a"))
    session = watched(expire_on_commit=False)
    doc = session.get_one(Doc, 1)
    doc.name = "b"
    session.bulk_save_objects([doc])
    session.commit()
    doc.other = "c"
    session.commit()

    assert stored(Doc, 1)["version"] == doc.version == 3


@pytest.mark.parametrize("again", [True, False])
def test_a_query_that_populates_existing_objects_writes_their_edits_first(
    store, watched, stored, again
):
    """trap 34: with autoflush; without it, it drops them, which is what it is for."""
    store(Doc(id=1, name="a"))
    session = watched(autoflush=again)
    doc = session.get_one(Doc, 1)
    doc.name = "ours"
    session.scalars(select(Doc).execution_options(populate_existing=True)).one()
    session.commit()

    assert stored(Doc, 1)["name"] == doc.name == ("ours" if again else "a")
