"""``bulk_update`` and ``bulk_delete``: many rows by key and version, with a report."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Mapped, Session

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Versioned,
    bulk_delete,
    bulk_update,
    verify,
)
from optilock._watched.statements.bulk import Done
from optilock.testing import count_statements
from optilock.tokens import RowVersion
from tests.support.models import (
    Account,
    Base,
    Dog,
    Kinds,
    Native,
    Note,
    Ranked,
    Seat,
    Stamped,
    Tag,
    key,
)

alive = pytest.mark.needs("resolves-in-place")


def rows(*keys, **values):
    return [{"id": key, "version": 1, **values} for key in keys]


@pytest.mark.parametrize("many", [1, 2, 20])
def test_rows_in_their_version_are_written(store, watched, stored, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched()
    result = bulk_update(session, Account, rows(*range(many), owner="mine"))
    session.commit()

    assert result.conflicts == ()
    assert result.updated == tuple(Done((n,), 2) for n in range(many))
    assert (stored(Account, many - 1)["owner"], stored(Account, 0)["version"]) == ("mine", 2)


@alive
@pytest.mark.parametrize("many", [1, 2, 20])
def test_rows_in_another_version_come_back_as_entries(store, watched, other, gone, stored, many):
    store(*(Account(id=n, owner="a") for n in range(many)))
    session = watched()
    given = rows(*range(many), owner="mine")
    other(Account, 0, owner="theirs")
    if many > 1:
        gone(Account, 1)
    result = bulk_update(session, Account, given)
    session.commit()

    entry = result.conflicts[0]
    assert (entry.identity, entry.kind, entry.action) == ((0,), "updated", "update")
    assert (entry.original["version"], entry.database["version"]) == (1, 2)
    assert dict(entry.changes) == {"owner": "mine"}
    if many > 1:
        assert result.conflicts[1].kind == "deleted"
    assert len(result.updated) == max(0, many - 2)
    assert stored(Account, 0)["owner"] == "theirs"


def test_objects_get_what_onupdate_has_made(store, watched):
    store(Stamped(id=1, name="a"))
    session = watched()
    row = session.get_one(Stamped, 1)
    assert (row.scalar, row.called) == (None, None)
    bulk_update(session, Stamped, [{"id": 1, "version": 1, "name": "b"}])
    assert (row.name, row.scalar) == ("b", 7)
    assert row.called is not None
    session.commit()


@alive
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("change", [bulk_update, bulk_delete])
def test_a_row_that_missed_keeps_no_promise(store, watched, other, stored, change, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched(expire_on_commit=False)
    first = session.get_one(Account, 0)
    session.commit()  # what was read is older than the transaction
    verify(first)
    other(Account, 0, owner="theirs")
    given = rows(*range(many), owner="mine") if change is bulk_update else rows(*range(many))
    assert len(change(session, Account, given).conflicts) == 1
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert stored(Account, many - 1) is not None  # none of them was written


def test_each_row_sets_what_it_names(store, watched, stored):
    store(*(Account(id=n, owner="a", note="a") for n in range(3)))
    session = watched()
    bulk_update(
        session,
        Account,
        [
            {"id": 0, "version": 1, "owner": "b"},
            {"id": 1, "version": 1, "note": "b", "balance": 5},
            {"id": 2, "version": 1, "owner": None},
        ],
    )
    session.commit()
    found = [stored(Account, n) for n in range(3)]
    assert [(row["owner"], row["note"], row["balance"]) for row in found] == [
        ("b", "a", 0),
        ("a", "b", 5),
        (None, "a", 0),
    ]


@pytest.mark.engines("postgresql", "sqlite")
def test_one_statement_writes_them_all(store, watched, engine):
    store(*(Account(id=n) for n in range(10)))
    session = watched()
    session.connection()
    given = [
        {"id": n, "version": 1, **({"owner": "b"} if n % 2 else {"note": "b"})} for n in range(10)
    ]
    with count_statements(engine) as sent:
        bulk_update(session, Account, given)
    assert sent.count == (1 if engine.dialect.name == "postgresql" else 2)


def test_objects_in_the_session_follow(store, watched, stored):
    store(Account(id=1, owner="a"))
    session = watched()
    account = session.get_one(Account, 1)
    bulk_update(session, Account, rows(1, owner="mine"))
    assert (account.owner, account.version) == ("mine", 2)
    account.note = "again"
    session.commit()
    assert stored(Account, 1)["version"] == 3


def test_an_object_that_is_older_than_its_row_keeps_its_version(store, watched, other, refused):
    store(Account(id=1, owner="Ada"))
    session = watched()
    account = session.get_one(Account, 1)
    session.expunge(account)
    session.rollback()
    other(Account, 1, owner="theirs")
    session.add(account)
    bulk_update(session, Account, [{"id": 1, "version": 2, "balance": 7}])
    account.owner = "mine"
    assert refused(session).entries[0].database["owner"] == "theirs"


def test_what_is_pending_is_written_first(store, watched, stored):
    store(Account(id=1))
    session = watched()
    session.get_one(Account, 1).owner = "mine"
    result = bulk_update(session, Account, [{"id": 1, "version": 2, "note": "bulk"}])
    session.commit()
    assert result.updated == (Done((1,), 3),)
    assert stored(Account, 1)["owner"] == "mine"


def test_any_token_key_and_type_will_do(store, watched, stored, engine):
    store(Note(id=1), Native(id=1), Seat(show="a", number=1), Kinds(id=1), Stamped(id=1))
    session = watched()
    note = stored(Note, 1)["version"]
    [done] = bulk_update(session, Note, [{"id": 1, "version": note, "text": "b"}]).updated
    assert done.version not in (None, note)
    assert bulk_update(session, Native, [{"id": 1, "revision": 1, "text": "b"}]).conflicts == ()
    seat = {"show": "a", "number": 1, "version": 1, "guest": "Ada"}
    assert bulk_update(session, Seat, [seat]).updated == (Done(("a", 1), 2),)
    assert bulk_update(session, Kinds, rows(1, data={"a": 1}, blob=b"x")).conflicts == ()
    assert bulk_update(session, Stamped, rows(1, name="b")).conflicts == ()
    session.commit()
    assert stored(Kinds, 1)["data"] == {"a": 1}
    assert stored(Stamped, 1)["scalar"] == 7


def test_unique_columns_are_written_in_the_given_order(store, watched, stored):
    store(*(Ranked(id=n, rank=n) for n in (1, 2, 3)))
    session = watched()
    bulk_update(session, Ranked, [{"id": n, "version": 1, "rank": n - 1} for n in (1, 2, 3)])
    session.commit()
    assert [stored(Ranked, n)["rank"] for n in (1, 2, 3)] == [0, 1, 2]


# -- deletes --------------------------------------------------------------------------------------


@alive
@pytest.mark.parametrize("many", [1, 2, 20])
def test_rows_are_deleted_in_their_version(store, watched, other, engine, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched()
    other(Account, 0, owner="theirs")
    account = session.get_one(Account, many - 1)
    result = bulk_delete(session, Account, rows(*range(many)))
    assert (account in session) is (many == 1)
    session.commit()

    assert [entry.identity for entry in result.conflicts] == [(0,)]
    assert result.conflicts[0].action == "delete"
    assert result.deleted == tuple(Done((n,)) for n in range(1, many))
    with Session(engine) as fresh:
        assert list(fresh.scalars(select(Account.id))) == [0]


# -- what is refused, before anything is sent -----------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([{"id": 1, "owner": "a"}], "no 'version'"),
        ([{"version": 1, "owner": "a"}], "no 'id'"),
        ([{"id": None, "version": 1, "owner": "a"}], "no 'id'"),
        ([{"id": 1, "version": None, "owner": "a"}], "no 'version'"),
        ([{"id": 1, "version": 1}], "sets no column"),
        ([{"id": 1, "version": 1, "nothing": 1}], "not a column attribute"),
        ([{"id": 1, "version": 1, "owner": Account.note}], "SQL expression"),
        (rows(1, 1, owner="a"), "same key"),
        (["text"], "is of type str"),
    ],
)
def test_bad_rows_are_refused_as_a_whole(store, watched, engine, given, why):
    store(Account(id=1), Account(id=2))
    session = watched()
    with count_statements(engine) as sent, pytest.raises(ConfigurationError, match=why):
        bulk_update(session, Account, [*rows(2, owner="mine"), *given])
    assert sent.count == 0


def test_classes_that_cannot_be_checked_are_refused(watched):
    session = watched()
    with pytest.raises(ConfigurationError, match="no version"):
        bulk_update(session, Tag, rows(1, name="a"))
    with pytest.raises(ConfigurationError, match="mapped class"):
        bulk_update(session, object, rows(1))
    with pytest.raises(ConfigurationError, match="another table"):
        bulk_update(session, Dog, rows(1, tricks="sit"))
    with pytest.raises(ConfigurationError, match="several tables"):
        bulk_delete(session, Dog, rows(1))
    with pytest.raises(ConfigurationError, match="besides its key"):
        bulk_delete(session, Account, rows(1, owner="a"))


def test_no_rows_are_no_work(watched, engine):
    with count_statements(engine) as sent:
        assert bulk_update(watched(), Account, []).updated == ()
        assert bulk_delete(watched(), Account, []).deleted == ()
    assert sent.count == 0


@pytest.mark.anyio
async def test_an_async_session_runs_it(async_engine, async_tables):
    from sqlalchemy.ext.asyncio import async_sessionmaker

    from optilock import watch

    async_tables(Account)
    async with watch(async_sessionmaker(async_engine))() as session:
        session.add_all([Account(id=1), Account(id=2)])
        await session.commit()
        result = await session.run_sync(bulk_update, Account, rows(1, 2, owner="mine"))
        await session.commit()
    assert len(result.updated) == 2


# -- objects that the session holds ---------------------------------------------------------------


def test_an_object_that_was_expired_does_not_conflict_with_its_own_bulk_row(store, watched, stored):
    store(Account(id=1, owner="a"))
    session = watched()
    account = session.get_one(Account, 1)
    session.commit()
    bulk_update(session, Account, rows(1, note="bulk"))
    account.owner = "mine"
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == ("mine", "bulk")


@alive
def test_an_object_that_is_older_than_the_row_in_bulk_stays_stale(
    store, watched, other, stored, refused
):
    """The caller saw version 2, and the object is of version 1: it has not seen "theirs"."""
    store(Account(id=1, owner="a"))
    session = watched(expire_on_commit=False)
    account = session.get_one(Account, 1)
    session.commit()
    other(Account, 1, owner="theirs")
    bulk_update(session, Account, [{"id": 1, "version": 2, "note": "bulk"}])
    account.owner = "mine"
    [entry] = refused(session).entries
    assert (entry.original["owner"], entry.database["owner"]) == ("a", "theirs")
    session.rollback()
    assert stored(Account, 1)["owner"] == "theirs"


def test_after_a_savepoint_is_rolled_back_the_object_is_as_before_the_bulk_row(
    store, watched, stored
):
    store(Account(id=1, owner="a"))
    session = watched()
    account = session.get_one(Account, 1)
    savepoint = session.begin_nested()
    bulk_update(session, Account, rows(1, note="bulk"))
    savepoint.rollback()
    account.owner = "mine"
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == ("mine", None)


@pytest.mark.parametrize("model", [Account, Note])
def test_objects_follow_an_update_by_primary_key(store, watched, stored, model):
    store(model(id=1))
    session = watched()
    obj = session.get_one(model, 1)
    name = "owner" if model is Account else "text"
    session.execute(update(model), [{"id": 1, "version": obj.version, name: "bulk"}])
    assert (getattr(obj, name), obj.version) == ("bulk", stored_version(session, model))
    setattr(obj, name, "mine")
    session.commit()
    assert stored(model, 1)[name] == "mine"


@alive
def test_an_object_that_is_older_than_an_update_by_primary_key_stays_stale(
    store, watched, other, refused
):
    store(Account(id=1, owner="a"))
    session = watched(expire_on_commit=False)
    account = session.get_one(Account, 1)
    session.commit()
    other(Account, 1, owner="theirs")
    session.execute(update(Account), [{"id": 1, "version": 2, "note": "bulk"}])
    assert account.version == 1
    account.owner = "mine"
    [entry] = refused(session).entries
    assert entry.database["owner"] == "theirs"


def stored_version(session, model):
    return session.connection().scalar(select(model.__table__.c.version))


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("how", ["execute", "bulk_update_mappings"])
def test_an_update_by_primary_key_does_not_set_a_system_column(store, watched, stored, how):
    store(Numbered(id=1, name="a"))
    session = watched()
    row = {"id": 1, "version": session.get_one(Numbered, 1).version, "name": "b"}
    with pytest.raises(ConfigurationError, match="bulk_update"):
        if how == "execute":
            session.execute(update(Numbered), [row])
        else:
            session.bulk_update_mappings(Numbered, [row])
    assert bulk_update(session, Numbered, [row]).conflicts == ()
    session.commit()
    assert stored(Numbered, 1)["name"] == "b"


class Numbered(Versioned, Base):
    """The version is the number of the transaction that wrote the row."""

    __tablename__ = "numbered_in_bulk"
    __version_token__ = RowVersion(xmin=True)
    id: Mapped[int] = key()
    name: Mapped[str | None]
