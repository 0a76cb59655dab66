"""Every token keeps the same promises: what a row of each kind goes through, on every engine."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, String, create_engine, inspect, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import (
    Mapped,
    Session,
    make_transient_to_detached,
    mapped_column,
    sessionmaker,
)
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    client_wins,
    etag_of,
    expect,
    merge_fields,
    store_wins,
    touch,
    verify,
    watch,
)
from optilock.statements import no_bump
from optilock.testing import wire
from optilock.tokens import Manual, Timestamp
from tests.support.models import Account, Base
from tests.support.token_classes import TOKENS, docs, new, with_version

alive = pytest.mark.needs("resolves-in-place")


DOCS = docs("tok")


class Tagged(Versioned, Base):
    """The application's versions are texts."""

    __tablename__ = "tok_tagged"
    __version_token__ = Manual(String(40))
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str | None]


class Visited(Versioned, Base):
    __tablename__ = "tok_visited"
    __version_token__ = Timestamp()
    __version_ignore__ = ("visits",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str | None]
    visits: Mapped[int | None]


ONLY = {"Xmin": [pytest.mark.engines("postgresql")]}


@pytest.fixture(params=[pytest.param(name, marks=ONLY.get(name, [])) for name in DOCS])
def doc(request: pytest.FixtureRequest, engine: Engine) -> Any:
    return DOCS[request.param]


def shared_by_a_transaction(cls: Any) -> bool:
    """Is the version that of the transaction, so that its second write changes nothing?"""
    return getattr(cls.__version_token__, "xmin", False)


def edit(obj: Any, **values: Any) -> None:
    for name, value in with_version(type(obj), values).items():
        setattr(obj, name, value)


@pytest.fixture
def edits(other: Any) -> Any:
    def edits(cls: Any, identity: int, **values: Any) -> None:
        other(cls, identity, **with_version(cls, values))

    return edits


def settled(session: Session, obj: Any, stored: Any) -> dict[str, Any]:
    """Flush; the object then holds what is stored, and is clean."""
    session.flush()
    assert obj not in session.dirty
    held = {n: obj.__dict__.get(n) for n in inspect(type(obj)).column_attrs.keys()}  # noqa: SIM118
    session.commit()
    found = stored(type(obj), held["id"])
    assert found == held
    return found


# -- one writer -----------------------------------------------------------------------------------


def test_every_write_moves_the_version_and_the_object_knows_it(doc, store, watched, stored):
    """HB-24"""
    store(new(doc, id=1, title="a"))
    session = watched(expire_on_commit=False)
    row = session.get(doc, 1)
    seen = [row.version]
    for n in range(4):
        edit(row, title=str(n))
        session.flush()
        seen.append(row.version)
        if n % 2 or shared_by_a_transaction(doc):
            session.commit()
            assert stored(doc, 1)["version"] == row.version
    assert len(set(seen)) == 5
    assert None not in seen


def test_a_single_writer_saves_twice_in_a_plain_session(doc, engine, store, stored):
    store(new(doc, id=1, title="a"))
    with Session(engine, expire_on_commit=False) as session:
        row = session.get(doc, 1)
        for n in range(2):
            edit(row, title=f"{n} first")
            session.flush()
            edit(row, title=f"{n} second")
            session.commit()
        session.delete(row)
        session.commit()
    assert stored(doc, 1) is None


def test_what_is_inserted_can_be_changed_and_deleted_at_once(doc, tables, watched, stored):
    tables(doc)
    session = watched()
    row = new(doc, id=1, title="a")
    session.add(row)
    session.flush()
    tag = etag_of(row)
    edit(row, title="b")
    session.flush()
    assert (etag_of(row) != tag) is not shared_by_a_transaction(doc)
    session.delete(row)
    session.commit()
    assert stored(doc, 1) is None


def test_many_rows_are_written_at_once_and_each_knows_its_version(doc, store, watched, stored):
    store(*(new(doc, id=n, title="a") for n in range(4)))
    session = watched(expire_on_commit=False)
    rows = session.scalars(select(doc).order_by(doc.id)).all()
    before = [row.version for row in rows]
    for row in rows:
        edit(row, title="b")
    session.commit()
    assert [stored(doc, n)["version"] for n in range(4)] == [row.version for row in rows]
    assert not {*before} & {row.version for row in rows}
    for row in rows:
        edit(row, body="c")
    session.commit()


def test_no_net_change_moves_nothing(doc, store, watched, stored):
    store(new(doc, id=1, title="a"))
    before = stored(doc, 1)
    session = watched()
    row = session.get(doc, 1)
    row.title = "b"
    row.title = "a"
    session.commit()
    assert stored(doc, 1) == before


def test_a_row_that_is_deleted_and_made_again_in_one_flush_moves(doc, store, watched, stored):
    store(new(doc, id=1, title="a"))
    before = stored(doc, 1)["version"]
    session = watched(expire_on_commit=False)
    session.delete(session.get(doc, 1))
    row = new(doc, id=1, title="b")
    session.add(row)
    found = settled(session, row, stored)
    assert found["title"] == "b"
    assert found["version"] != before
    edit(row, title="c")
    session.commit()


def test_a_savepoint_that_is_rolled_back_takes_the_version_back(doc, store, watched, stored):
    store(new(doc, id=1, title="a"))
    session = watched(expire_on_commit=False)
    row = session.get(doc, 1)
    edit(row, title="b")
    session.flush()
    first = row.version
    with session.begin_nested() as savepoint:
        edit(row, title="c")
        session.flush()
        savepoint.rollback()
    assert row.version == first
    edit(row, body="d")
    found = settled(session, row, stored)
    assert (found["title"], found["body"]) == ("b", "d")


# -- two writers ----------------------------------------------------------------------------------


def test_a_lost_update_is_refused_until_it_is_settled(doc, store, watched, edits, refused, stored):
    """EC-01, EF-50, HB-15, HB-24"""
    store(new(doc, id=1, title="a", body="x"))
    session = watched()
    row = session.get(doc, 1)
    seen = row.version
    edits(doc, 1, title="theirs")
    edit(row, title="ours")
    entry = refused(session).entries[0]
    assert entry.original["version"] == seen
    assert entry.database["version"] == stored(doc, 1)["version"] != seen
    assert entry.changes == {"title": "ours"}
    assert entry.conflicting == {"title"}
    assert entry.describe()
    if session.is_active:
        assert row.title == "ours"
        refused(session)
    session.rollback()
    session.refresh(row)
    edit(row, title="again")
    session.commit()
    assert stored(doc, 1)["title"] == "again"


def test_a_plain_session_raises_stale_data_error(doc, engine, store, edits, stored):
    store(new(doc, id=1, title="a"))
    with Session(engine) as session:
        row = session.get(doc, 1)
        edits(doc, 1, body="theirs")
        edit(row, title="ours")
        with pytest.raises((StaleDataError, DBAPIError)) as caught:
            session.flush()
        assert isinstance(caught.value, StaleDataError) or "1020" in str(caught.value)
    assert stored(doc, 1)["title"] == "a"


@alive
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("resolver", "title"), [(client_wins, "ours"), (store_wins, "theirs"), (merge_fields, "ours")]
)
def test_each_resolver_leaves_object_and_row_equal(
    doc, store, watched, edits, stored, resolver, title, count
):
    store(*(new(doc, id=n, title="a", body="x") for n in range(count)))
    session = watched(resolver, expire_on_commit=False)
    rows = session.scalars(select(doc).order_by(doc.id)).all()
    theirs = {"body": "theirs"} if resolver is merge_fields else {"title": "theirs"}
    edits(doc, 0, **theirs)
    between = stored(doc, 0)["version"]
    for row in rows:
        edit(row, title="ours")
    found = settled(session, rows[0], stored)
    assert found["title"] == title
    assert (found["version"] != between) is (resolver is not store_wins)
    for row in rows:
        edit(row, body="again")
    session.commit()
    assert stored(doc, 0)["body"] == "again"


@alive
def test_after_a_correction_every_earlier_version_is_stale(doc, store, watched, edits, refused):
    store(new(doc, id=1, title="a"))
    readers, rows = [], []
    session = watched(client_wins)
    row = session.get(doc, 1)
    for step in range(2):
        reader = watched(expire_on_commit=False)
        rows.append(reader.get(doc, 1))
        reader.commit()
        readers.append(reader)
        if step == 0:
            edits(doc, 1, title="theirs")
    edit(row, title="ours")
    session.commit()
    for reader, held in zip(readers, rows, strict=True):
        edit(held, body="late")
        refused(reader)
        reader.rollback()


def test_a_stale_delete_is_refused_and_the_row_stays(doc, store, watched, edits, refused, stored):
    """EC-01, HB-15"""
    store(new(doc, id=1, title="a"))
    session = watched()
    row = session.get(doc, 1)
    edits(doc, 1, title="theirs")
    session.delete(row)
    assert refused(session).entries[0].action == "delete"
    session.rollback()
    assert stored(doc, 1)["title"] == "theirs"


@alive
def test_client_wins_deletes_the_changed_row(doc, store, watched, edits, stored):
    store(new(doc, id=1, title="a"))
    session = watched(client_wins)
    row = session.get(doc, 1)
    edits(doc, 1, title="theirs")
    session.delete(row)
    session.commit()
    assert stored(doc, 1) is None


@alive
@pytest.mark.parametrize("count", [1, 3])
def test_client_wins_inserts_the_deleted_row_again(doc, store, watched, gone, stored, count):
    store(*(new(doc, id=n, title="a") for n in range(count)))
    session = watched(client_wins, expire_on_commit=False)
    rows = session.scalars(select(doc).order_by(doc.id)).all()
    before = rows[0].version
    gone(doc, 0)
    for row in rows:
        edit(row, title="ours")
    found = settled(session, rows[0], stored)
    assert found["title"] == "ours"
    assert found["version"] != before
    edit(rows[0], title="again")
    session.commit()


@alive
def test_store_wins_lets_the_object_of_a_deleted_row_go(doc, store, watched, gone, stored):
    store(new(doc, id=1, title="a"))
    session = watched(store_wins)
    row = session.get(doc, 1)
    gone(doc, 1)
    edit(row, title="ours")
    session.commit()
    assert inspect(row).detached
    assert stored(doc, 1) is None


def test_a_refused_row_of_many_leaves_the_others_written(doc, store, watched, edits, refused):
    store(*(new(doc, id=n, title="a") for n in range(3)))
    session = watched()
    rows = session.scalars(select(doc).order_by(doc.id)).all()
    edits(doc, 1, title="theirs")
    for row in rows:
        edit(row, title="ours")
    assert [entry.identity for entry in refused(session).entries] == [(1,)]


# -- rows with a joined table ---------------------------------------------------------------------


def test_a_change_of_the_joined_table_alone_moves_the_version(doc, store, watched, stored):
    letter = doc.Letter
    store(new(letter, id=1, title="a", to="x"))
    before = stored(letter, 1)["version"]
    session = watched(expire_on_commit=False)
    row = session.get(letter, 1)
    edit(row, to="y")
    found = settled(session, row, stored)
    assert found["version"] != before
    edit(row, to="z")
    settled(session, row, stored)


def test_two_changes_of_the_joined_table_alone_conflict(doc, store, watched, edits, refused):
    letter = doc.Letter
    store(new(letter, id=1, title="a", to="x"))
    session = watched()
    row = session.get(letter, 1)
    edits(letter, 1, to="theirs")
    edit(row, to="ours")
    assert refused(session).entries[0].conflicting == {"to"}
    if session.is_active:
        assert row.to == "ours"
        assert row.id == 1
        refused(session)


@alive
@pytest.mark.parametrize("resolver", [client_wins, store_wins])
@pytest.mark.parametrize("count", [1, 3])
def test_a_conflict_in_the_joined_table_is_resolved(
    doc, store, watched, edits, stored, resolver, count
):
    letter = doc.Letter
    store(*(new(letter, id=n, title="a", to="x") for n in range(count)))
    session = watched(resolver, expire_on_commit=False)
    rows = session.scalars(select(letter).order_by(letter.id)).all()
    edits(letter, 0, to="theirs")
    between = stored(letter, 0)["version"]
    for row in rows:
        edit(row, to="ours")
    found = settled(session, rows[0], stored)
    assert found["to"] == ("ours" if resolver is client_wins else "theirs")
    assert (found["version"] != between) is (resolver is client_wins)
    edit(rows[0], to="again")
    session.commit()


def test_a_plain_session_refuses_a_stale_change_of_the_joined_table(
    doc, engine, store, edits, stored
):
    letter = doc.Letter
    store(new(letter, id=1, title="a", to="x"))
    with Session(engine) as session:
        row = session.get(letter, 1)
        edits(letter, 1, to="theirs")
        edit(row, to="ours")
        with pytest.raises((StaleDataError, DBAPIError)) as caught:
            session.flush()
        assert isinstance(caught.value, StaleDataError) or "1020" in str(caught.value)
    assert stored(letter, 1)["to"] == "theirs"


def test_watched_sessions_send_no_more_statements(doc, engine, store):
    from optilock.testing import count_statements

    store(*(new(doc, id=n, title="a") for n in range(3)))
    sent = []
    for sessions in (sessionmaker(engine), watch(sessionmaker(engine))):
        with sessions() as session:
            rows = session.scalars(select(doc).order_by(doc.id)).all()
            for row in rows:
                edit(row, title=f"b{len(sent)}")
            with count_statements(engine) as counted:
                session.commit()
            sent.append(counted.count)
    assert sent[1] <= sent[0]


# -- touches, bookkeeping, expectations -----------------------------------------------------------


def movable(cls: Any) -> None:
    if cls.__version_token__.made_by not in ("python", "database"):
        pytest.skip("it moves with an assignment, or with the values, alone")


@pytest.mark.parametrize("joined", [False, True])
def test_a_touch_moves_the_version_and_nothing_else(doc, store, watched, stored, joined):
    movable(doc)
    cls = doc.Letter if joined else doc
    store(new(cls, id=1, title="a"))
    before = stored(cls, 1)
    session = watched(expire_on_commit=False)
    row = session.get(cls, 1)
    touch(row)
    touch(row)
    session.commit()
    after = stored(cls, 1)
    assert after["version"] not in (None, before["version"])
    assert row.version == after["version"]
    assert {**after, "version": 0} == {**before, "version": 0}
    assert row.id == 1
    edit(row, title="b")
    touch(row)
    session.commit()
    assert stored(cls, 1)["title"] == "b"


@pytest.mark.parametrize("joined", [False, True])
def test_a_stale_touch_is_refused_until_it_is_settled(
    doc, store, watched, edits, refused, stored, joined
):
    movable(doc)
    cls = doc.Letter if joined else doc
    store(new(cls, id=1, title="a"))
    session = watched()
    row = session.get(cls, 1)
    edits(cls, 1, title="theirs")
    touch(row)
    assert refused(session).entries[0].changes == {}
    if session.is_active:
        assert row.id == 1
        refused(session)
    session.rollback()
    session.refresh(row)  # without it, nobody has seen what the other writer wrote
    touch(row)
    session.commit()
    assert stored(cls, 1)["title"] == "theirs"


@alive
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("resolver", [client_wins, merge_fields])
def test_a_stale_touch_is_made_on_the_stored_row(
    doc, store, watched, edits, stored, resolver, joined
):
    movable(doc)
    cls = doc.Letter if joined else doc
    store(new(cls, id=1, title="a"))
    session = watched(resolver, expire_on_commit=False)
    row = session.get(cls, 1)
    edits(cls, 1, title="theirs")
    between = stored(cls, 1)["version"]
    touch(row)
    found = settled(session, row, stored)
    assert found["title"] == "theirs"
    assert found["version"] != between


def test_bookkeeping_leaves_the_version_or_is_refused(doc, store, watched, stored):
    store(new(doc, id=1, title="a"))
    before = stored(doc, 1)["version"]
    session = watched(expire_on_commit=False)
    row = session.get(doc, 1)
    if doc.__version_token__.every_write:
        with pytest.raises(ConfigurationError, match="RowVersion"), no_bump(session):
            row.body = "seen"
        return
    with no_bump(session):
        row.body = "seen"
    assert row.version == before
    edit(row, title="b")
    session.commit()
    assert stored(doc, 1)["body"] == "seen"


def test_a_version_that_was_demanded_is_a_condition_of_the_write(doc, store, watched, edits):
    store(new(doc, id=1, title="a"))
    session = watched(expire_on_commit=False)
    tag = etag_of(session.get(doc, 1))
    session.commit()
    row = session.get(doc, 1)
    expect(row, tag)
    edit(row, title="b")
    session.commit()
    with pytest.raises(PreconditionFailed):
        expect(row, tag) if not shared_by_a_transaction(doc) else expect(row, '"0"')


def test_ignored_columns_leave_the_version_of_the_time_alone(engine, tables, watched, stored):
    tables(Visited)
    with Session(engine) as session, session.begin():
        session.add(Visited(id=1, name="a"))
    before = stored(Visited, 1)["version"]
    session = watched(expire_on_commit=False)
    row = session.get(Visited, 1)
    row.visits = 5
    session.commit()
    assert stored(Visited, 1) == {"id": 1, "name": "a", "visits": 5, "version": before}
    assert row.version == before
    row.name = "b"
    session.commit()
    assert stored(Visited, 1)["version"] > before


def test_a_row_that_nobody_has_read_is_refused(doc, store, watched, stored):
    store(new(doc, id=1, title="a"))
    session = watched()
    stub = doc(id=1)
    make_transient_to_detached(stub)
    session.add(stub)
    stub.title = "blind"
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="without having been read"):
            session.flush()
    session.refresh(stub)
    stub.title = "seen"
    session.commit()
    assert stored(doc, 1)["title"] == "seen"


def test_versions_that_differ_in_case_only_are_two_versions(store, watched, other, refused):
    """Most collations of MariaDB say that they are one."""
    store(Tagged(id=1, version="dGhpcw"))
    session = watched()
    mine = session.get_one(Tagged, 1)
    other(Tagged, 1, name="theirs", version="DGHPCW")
    mine.name, mine.version = "mine", "another"
    [entry] = refused(session).entries
    assert entry.database["name"] == "theirs"


# -- who has not read the row ----------------------------------------------------------------------

MOVED = [n for n, token in TOKENS.items() if token.made_by in ("python", "database")]


@pytest.mark.parametrize("how", ["the class", "the table", "a connection"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=ONLY.get(name, [])) for name in MOVED])
def test_an_update_that_nobody_watches_moves_the_version(
    engine, store, watched, refused, stored, name, how
):
    """C8: of a plain session, or of none; also where the kind says nothing of an UPDATE."""
    doc = DOCS[name]
    store(doc(id=1, title="a"))
    session = watched()
    session.get(doc, 1).title = "mine"
    named = doc if how == "the class" else doc.__table__
    key = doc.id if how == "the class" else doc.__table__.c.id
    with engine.begin() as connection, Session(connection) as plain:
        sends = connection if how == "a connection" else plain
        sends.execute(update(named).where(key == 1).values(body="theirs"))
    [entry] = refused(session).entries
    assert entry.database["body"] == "theirs"
    session.rollback()
    assert stored(doc, 1)["body"] == "theirs"


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("moves", [False, True])
def test_a_version_is_verified_in_the_trip_of_commit(doc, moves, store, database, edits, stored):
    store(new(doc, id=1, title="a"), Account(id=1, balance=0))
    with wire(database.url) as line:
        far = create_engine(line.url, connect_args={"prepare_threshold": None})
        far.connect().close()

        def work():
            with UnitOfWork(far, pipelined=True) as session:
                verify(session.get_one(doc, 1))
                session.get_one(Account, 1).balance = 5
                if moves:
                    edits(doc, 1, title="c")

        with line.counting() as trips:
            if moves:
                with pytest.raises(ConcurrencyError) as caught:
                    work()
                assert [entry.identity for entry in caught.value.entries] == [(1,)]
            else:
                work()
        far.dispose()
    assert stored(Account, 1)["balance"] == (0 if moves else 5)
    assert moves or trips.count == 3
