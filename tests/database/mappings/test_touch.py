"""``touch`` moves a version without a change; ``no_bump`` writes without moving it."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Mapped, Session, mapped_column, scoped_session
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Versioned,
    client_wins,
    etag_of,
    merge_fields,
    store_wins,
    touch,
)
from optilock.statements import no_bump
from optilock.testing import count_statements
from optilock.tokens import Timestamp
from tests.support.models import (
    Account,
    Base,
    Dog,
    Manager,
    Native,
    Note,
    Page,
    Signed,
    Tag,
    Timed,
    key,
)
from tests.support.tags import version_text

alive = pytest.mark.needs("resolves-in-place")


class Viewed(Versioned, Base):
    """A time as the version, and a column that is none of its business."""

    __tablename__ = "touched_viewed"
    __version_token__ = Timestamp()
    __version_ignore__ = ("views",)
    id: Mapped[int] = key()
    text: Mapped[str | None]
    views: Mapped[int] = mapped_column(default=0)


# -- touch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 3])
def test_the_version_moves_by_one_though_nothing_changes(store, watched, stored, engine, many):
    """HB-29"""
    store(*(Account(id=n, owner="a") for n in range(many)))
    session = watched()
    for account in session.scalars(select(Account)):
        touch(account)
        touch(account)
    with count_statements(engine) as sent:
        session.flush()
    session.commit()

    assert [stored(Account, n)["version"] for n in range(many)] == [2] * many
    assert stored(Account, 0)["owner"] == "a"
    if many == 1:
        assert sent.count == 1


def test_a_dirty_object_moves_by_one_as_well(store, watched, stored):
    """HB-29, trap 26"""
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    touch(account)
    account.owner = "mine"
    session.flush()
    assert account.version == 2
    account.owner = "again"
    touch(account)
    session.commit()

    assert stored(Account, 1)["version"] == 3


@pytest.mark.parametrize("model", [Account, Dog, Note])
def test_an_expired_object_is_touched_in_the_version_that_was_seen(
    store, watched, other, gone, refused, engine, model
):
    name = "text" if model is Note else "owner" if model is Account else "tricks"
    store(*(model(id=n) for n in (1, 2, 3)))
    session = watched()
    moved, left, removed = session.scalars(select(model).order_by(model.id)).all()
    session.commit()
    other(model, 1, **{name: "theirs"})
    gone(model, 3)
    with count_statements(engine) as sent:
        touch(left)
        session.flush()
    assert sent.count == 1
    session.commit()
    touch(moved)
    touch(removed)
    entries = refused(session).entries
    assert [(entry.identity, entry.kind) for entry in entries] == [
        ((1,), "updated"),
        ((3,), "deleted"),
    ]


@pytest.mark.modes
@pytest.mark.parametrize("model", [Account, Timed, Signed])
@pytest.mark.parametrize("many", [1, 3])
def test_an_expired_object_is_touched_and_changed_in_one_step(store, watched, stored, model, many):
    store(*(model(id=n, owner="a") for n in range(many)))
    session = watched()
    rows = session.scalars(select(model).order_by(model.id)).all()
    before = rows[0].version
    session.commit()
    for row in rows:
        touch(row)
        row.owner = "mine"
    session.flush()
    after = [row.version for row in rows]
    assert before not in after
    rows[-1].owner = "again"
    session.commit()
    assert stored(model, many - 1)["owner"] == "again"
    if many > 1:
        assert stored(model, 0)["version"] == after[0]


@pytest.mark.modes
@pytest.mark.parametrize("how", ["changed", "deleted"])
@pytest.mark.parametrize("edited", [True, False])
@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("model", [Account, Timed, Signed])
def test_the_row_that_another_one_has_written_is_the_conflict(
    store, watched, other, gone, model, read, edited, how
):
    """RL-10: whatever makes the versions of those that nobody else has written."""
    store(*(model(id=n, owner="a") for n in (1, 2, 3)))
    session = watched()
    rows = session.scalars(select(model).order_by(model.id)).all()
    session.commit()
    if read:
        assert [row.owner for row in rows] == ["a"] * 3
    if how == "changed":
        other(model, 1, owner="theirs")
    else:
        gone(model, 1)
    for row in rows:
        touch(row)
        if edited:
            row.owner = "mine"
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()
    [entry] = caught.value.entries
    assert (entry.identity, entry.action) == ((1,), "update")
    assert entry.kind == ("updated" if how == "changed" else "deleted")


def test_a_plain_session_can_touch(store, engine, stored):
    store(Account(id=1))
    with Session(engine) as session:
        touch(session.get_one(Account, 1))
        session.commit()
    assert stored(Account, 1)["version"] == 2


def test_a_plain_session_checks_what_it_touches(store, engine, other):
    store(Account(id=1))
    with Session(engine) as session:
        touch(session.get_one(Account, 1))
        other(Account, 1, owner="theirs")
        with pytest.raises(Exception) as caught:  # noqa: PT011 - or the database's own error
            session.commit()
        assert isinstance(caught.value, StaleDataError) or "1020" in str(caught.value)


@pytest.mark.parametrize("model", [Dog, Manager])
def test_a_child_class_moves_its_base_tables_version(store, watched, stored, model):
    """HB-12"""
    store(model(id=1, name="a"))
    session = watched()
    touch(session.get_one(model, 1))
    session.commit()
    assert stored(model, 1)["version"] == 2


def test_any_version_can_be_touched(store, watched, stored):
    store(Note(id=1), Native(id=1))
    session = watched()
    note, native = session.get_one(Note, 1), session.get_one(Native, 1)
    before = note.version
    touch(note)
    touch(native)
    session.commit()

    assert stored(Note, 1)["version"] != before
    assert stored(Native, 1)["revision"] == 2


def test_an_expired_object_is_read_and_touched(store, watched, stored):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    session.commit()
    touch(account)
    session.commit()
    assert stored(Account, 1)["version"] == 2


def test_a_touched_object_has_no_etag_until_the_flush(store, watched):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    touch(account)
    with pytest.raises(ConfigurationError, match="flush"):
        etag_of(account)
    session.flush()
    assert version_text(etag_of(account)) == "2"


def test_a_rollback_takes_the_touch_back(store, watched, stored):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    touch(account)
    session.flush()
    session.rollback()
    assert account.version == 1
    assert version_text(etag_of(account)) == "1"
    session.commit()
    assert stored(Account, 1)["version"] == 1


def test_an_object_whose_touch_was_rolled_back_unflushed_has_an_etag(store, watched):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    touch(account)
    session.rollback()
    session.refresh(account)
    assert version_text(etag_of(account)) == "1"


@alive
@pytest.mark.parametrize("many", [1, 3])
def test_a_stale_object_stays_touched_until_it_is_read_again(
    store, watched, other, refused, stored, many
):
    store(*(Account(id=n) for n in range(many)))
    session = watched()
    for account in session.scalars(select(Account)):
        touch(account)
    other(Account, 0, owner="theirs")
    [entry] = refused(session).entries
    assert (entry.action, dict(entry.changes), entry.conflicting) == ("update", {}, frozenset())
    refused(session)
    session.rollback()

    account = session.get_one(Account, 0)
    assert account.version == 2
    touch(account)
    session.commit()
    assert stored(Account, 0)["version"] == 3


@alive
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize(
    ("resolver", "version"), [(merge_fields, 3), (client_wins, 3), (store_wins, 2)]
)
def test_a_resolver_settles_a_touch(store, watched, other, stored, resolver, version, many):
    store(*(Account(id=n) for n in range(many)))
    session = watched(resolver)
    accounts = session.scalars(select(Account)).all()
    for account in accounts:
        touch(account)
    other(Account, 0, owner="theirs")
    session.flush()
    assert session.get_one(Account, 0).version == version
    session.commit()

    assert stored(Account, 0)["version"] == version
    assert stored(Account, 0)["owner"] == "theirs"


def test_new_and_deleted_objects_are_left_alone(store, watched, stored):
    """trap 26"""
    store(Account(id=1))
    session = watched()
    new, old = Account(id=2), session.get_one(Account, 1)
    session.add(new)
    session.delete(old)
    touch(new)
    touch(old)
    session.commit()

    assert stored(Account, 2)["version"] == 1
    assert stored(Account, 1) is None


def test_what_cannot_be_touched_is_refused(store, watched):
    """HB-27"""
    store(Account(id=1), Tag(id=1))
    session = watched()
    with pytest.raises(ConfigurationError, match="in no session"):
        touch(Account(id=5))
    with pytest.raises(ConfigurationError, match="no version to move"):
        touch(session.get_one(Tag, 1))
    with pytest.raises(ConfigurationError, match="mapped class"):
        touch(object())


# -- no_bump --------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 3])
def test_the_version_stays_for_what_is_written_inside(store, watched, stored, engine, many):
    """RL-12"""
    store(*(Account(id=n, owner="a") for n in range(many)))
    session = watched()
    accounts = session.scalars(select(Account)).all()
    with no_bump(session):
        for account in accounts:
            account.note = "seen"
    assert accounts[0].version == 1
    accounts[0].owner = "mine"
    session.commit()

    assert stored(Account, 0)["version"] == 2
    assert stored(Account, many - 1)["note"] == "seen"
    if many > 1:
        assert stored(Account, 1)["version"] == 1


def test_what_was_changed_before_the_block_moves_the_version(store, watched, stored):
    """RL-12"""
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    account.owner = "mine"
    with no_bump(session):
        account.note = "seen"
    session.commit()
    assert stored(Account, 1)["version"] == 2


@pytest.mark.parametrize("many", [1, 3])
def test_the_row_is_checked_all_the_same(store, watched, other, stored, many):
    """RL-12"""
    store(*(Account(id=n) for n in range(many)))
    session = watched()
    accounts = session.scalars(select(Account)).all()
    other(Account, 0, owner="theirs")
    with pytest.raises(ConcurrencyError), no_bump(session):
        for account in accounts:
            account.note = "seen"
    session.rollback()
    assert stored(Account, 0)["note"] is None


def test_only_the_named_classes_and_objects_stand_still(store, watched, stored):
    """DJ-10"""
    store(Account(id=1), Account(id=2), Note(id=1), Page(id=1))
    session = watched()
    one, two = session.get_one(Account, 1), session.get_one(Account, 2)
    note, page = session.get_one(Note, 1), session.get_one(Page, 1)
    before = note.version
    with no_bump(session, one, Note):
        one.note = two.note = note.text = page.body = "seen"
    session.commit()

    assert stored(Account, 1)["version"] == 1
    assert stored(Account, 2)["version"] == 2
    assert stored(Note, 1)["version"] == before
    assert stored(Page, 1)["version"] == 2


def test_a_scoped_session_stands_for_its_session(store, watched, stored):
    store(Account(id=1))
    scope = scoped_session(watched)
    account = scope.get_one(Account, 1)
    with no_bump(scope):
        account.note = "seen"
    scope.commit()
    scope.remove()
    assert (stored(Account, 1)["version"], stored(Account, 1)["note"]) == (1, "seen")


def test_blocks_can_be_nested(store, watched, stored):
    store(Account(id=1), Note(id=1))
    session = watched()
    account, note = session.get_one(Account, 1), session.get_one(Note, 1)
    before = note.version
    with no_bump(session, Account):
        with no_bump(session, Note):
            account.note = note.text = "both"
        note.text = "moves"
    session.commit()
    assert stored(Account, 1)["version"] == 1
    assert stored(Note, 1)["version"] != before


def test_a_joined_child_stands_still(store, watched, stored):
    store(Dog(id=1, name="a"))
    session = watched()
    dog = session.get_one(Dog, 1)
    with no_bump(session):
        dog.tricks = "sit"
    session.commit()
    assert (stored(Dog, 1)["version"], stored(Dog, 1)["tricks"]) == (1, "sit")


def test_an_error_in_the_block_ends_it(store, watched, stored):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    with pytest.raises(ZeroDivisionError), no_bump(session):
        account.note = "seen"
        raise ZeroDivisionError
    session.commit()
    assert stored(Account, 1)["version"] == 2


def test_new_rows_get_their_first_version(store, watched, stored, tables):
    tables(Account)
    session = watched()
    with no_bump(session):
        session.add(Account(id=1))
    session.commit()
    assert stored(Account, 1)["version"] == 1


def test_what_cannot_stand_still_is_refused(store, watched, engine):
    store(Account(id=1))
    session = watched()
    with pytest.raises(ConfigurationError, match=r"inside no_bump\(\)"), no_bump(session):
        touch(session.get_one(Account, 1))
    with pytest.raises(ConfigurationError, match="mapped classes and objects"):
        no_bump(session, "Account")
    with Session(engine) as plain, pytest.raises(ConfigurationError, match="watched session"):
        no_bump(plain)


@pytest.mark.anyio
async def test_an_async_session_awaits_it(async_engine, async_tables):
    from sqlalchemy.ext.asyncio import async_sessionmaker

    from optilock import watch

    async_tables(Account)
    async with watch(async_sessionmaker(async_engine))() as session:
        account = Account(id=1)
        session.add(account)
        await session.commit()
        await session.refresh(account)
        async with no_bump(session):
            account.note = "seen"
        assert account.version == 1
        touch(account)
        await session.flush()
        assert account.version == 2
        with pytest.raises(ConfigurationError, match="async with"), no_bump(session):
            pass


@pytest.mark.parametrize("order", ["touched first", "changed first"])
def test_a_touch_moves_the_version_beside_an_ignored_column(store, watched, stored, order):
    store(Page(id=1, body="a"))
    session = watched()
    page = session.get_one(Page, 1)
    if order == "touched first":
        touch(page)
    page.views = 5
    touch(page)
    session.commit()
    assert (stored(Page, 1)["views"], stored(Page, 1)["version"]) == (5, 2)


def test_a_stale_touch_beside_an_ignored_column_conflicts(store, watched, other, refused):
    store(Page(id=1, body="a"))
    session = watched()
    page = session.get_one(Page, 1)
    other(Page, 1, body="theirs")
    page.views = 5
    touch(page)
    [entry] = refused(session).entries
    assert entry.changes == {"views": 5}
    if session.is_active:
        refused(session)


# -- what is read between the touch and its flush -------------------------------------------------


def _refresh(session, obj):
    session.refresh(obj)


def _expire(session, obj):
    session.expire(obj)


def _expire_all(session, obj):
    session.expire_all()


def _expire_version(session, obj):
    session.expire(obj, ["version"])


def _refresh_version(session, obj):
    session.refresh(obj, ["version"])


def _refresh_with_a_lock(session, obj):
    session.refresh(obj, with_for_update=True)


def _read_anew(session, obj):
    session.get(type(obj), obj.id, populate_existing=True)


READINGS = [
    _refresh,
    _expire,
    _expire_all,
    _expire_version,
    _refresh_version,
    _refresh_with_a_lock,
    _read_anew,
]


@pytest.mark.parametrize("autoflush", [True, False], ids=["autoflush", "no autoflush"])
@pytest.mark.parametrize("reading", READINGS)
def test_a_touch_outlives_what_is_read(store, watched, stored, reading, autoflush):
    store(Account(id=1))
    session = watched(autoflush=autoflush)
    account = session.get_one(Account, 1)
    touch(account)
    reading(session, account)
    del account
    session.commit()
    assert stored(Account, 1)["version"] == 2


@pytest.mark.parametrize("end", ["flush", "begin"])
@pytest.mark.parametrize("model", [Dog, Note])
def test_and_any_flush_writes_it(store, watched, stored, model, end):
    store(model(id=1))
    before = stored(model, 1)["version"]
    session = watched()
    obj = session.get_one(model, 1)
    touch(obj)
    session.expire(obj)
    if end == "flush":
        session.flush()
        session.commit()
    else:  # as ``with session.begin()`` commits
        session.get_transaction().commit()
    assert stored(model, 1)["version"] != before


@pytest.mark.parametrize("reading", [_refresh, _expire, _read_anew])
def test_a_touch_outlives_what_a_plain_session_reads(store, engine, stored, reading):
    store(Account(id=1))
    with Session(engine, autoflush=False) as session:
        account = session.get_one(Account, 1)
        touch(account)
        reading(session, account)
        session.commit()
    assert stored(Account, 1)["version"] == 2


def test_a_touch_that_was_expired_is_checked_in_the_version_that_was_seen(
    store, watched, other, refused
):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    session.commit()
    touch(account)
    session.expire(account)
    other(Account, 1, owner="theirs")
    [entry] = refused(session).entries
    assert (entry.original["version"], entry.database["version"]) == (1, 2)


def test_a_touch_that_was_refreshed_is_written_in_the_version_that_was_read(
    store, watched, other, stored
):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    session.commit()
    touch(account)
    other(Account, 1, owner="theirs")
    with session.no_autoflush:
        session.refresh(account)
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("theirs", 3)


def test_it_moves_the_version_once(store, watched, stored):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    touch(account)
    session.flush()
    session.refresh(account)
    session.commit()
    session.refresh(account)
    session.commit()
    assert stored(Account, 1)["version"] == 2


@pytest.mark.parametrize("reading", [_refresh, _expire])
@pytest.mark.parametrize("nested", [False, True])
def test_a_rollback_takes_back_a_touch_that_was_read_over(store, watched, stored, reading, nested):
    store(Account(id=1))
    session = watched(autoflush=False)
    account = session.get_one(Account, 1)
    savepoint = session.begin_nested() if nested else session.get_transaction()
    touch(account)
    reading(session, account)
    savepoint.rollback()
    account.owner = account.owner
    session.commit()
    assert stored(Account, 1)["version"] == 1


@alive
def test_a_refused_touch_that_is_read_again_stays_a_touch(store, watched, other, refused, stored):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    touch(account)
    other(Account, 1, owner="theirs")
    refused(session)
    with session.no_autoflush:
        session.expire(account)
        session.refresh(account, with_for_update=True)
    session.commit()
    assert stored(Account, 1)["version"] == 3


def test_what_is_deleted_or_expunged_is_touched_no_more(store, watched, stored):
    store(Account(id=1), Account(id=2))
    session = watched()
    one, two = session.get_one(Account, 1), session.get_one(Account, 2)
    touch(one)
    touch(two)
    session.expunge(one)
    session.delete(two)
    session.commit()
    assert stored(Account, 1)["version"] == 1
    assert stored(Account, 2) is None


@alive
def test_a_refused_touch_is_not_lost_beside_an_edit_of_an_ignored_column(
    tables, store, watched, other, refused, stored
):
    """The database's time is set by an expression, which a refused flush takes back."""
    tables(Viewed)
    store(Viewed(id=1))
    session = watched()
    row = session.get_one(Viewed, 1)
    touch(row)
    other(Viewed, 1, text="theirs")
    row.views = 1
    refused(session)
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert stored(Viewed, 1)["views"] == 0
