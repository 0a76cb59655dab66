"""Each operation on one row, with each kind of token."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from optilock import ConcurrencyError, ConfigurationError, PreconditionFailed, entities, etag_of
from optilock.entities import Stored, Version
from optilock.errors import (
    AlreadyExists,
    BadEntity,
    BadPrecondition,
    NotFound,
    PreconditionRequired,
)
from optilock.preconditions.entity_tags import ETags
from tests.support.entities import KINDS, Reset, Thing, Visited
from tests.support.models import Account, Note, Odd, Seat
from tests.support.tags import tag, version_text

ONLY = {"Xmin": [pytest.mark.engines("postgresql")]}
WRITES = ("merge", "replace", "delete")


@pytest.fixture(params=[pytest.param(name, marks=ONLY.get(name, [])) for name in KINDS])
def kind(request: pytest.FixtureRequest, tables: Any) -> Any:
    tables(KINDS[request.param])
    return KINDS[request.param]


def moves_with_its_values(cls: Any) -> bool:
    return cls is KINDS["Hash"]


@pytest.fixture
def body(watched: Any) -> Any:
    """What is stored of a row of a kind, and its tag; the session's transaction is committed."""

    def body(session: Session, cls: Any, key: Any) -> Any:
        session.commit()
        session.expire_all()
        row = session.get(cls, key)
        found = None if row is None else (row.title, row.body, etag_of(row))
        session.rollback()
        return found

    return body


def write(operation: str, session: Session, cls: Any, key: Any, if_match: Any) -> Stored:
    values = () if operation == "delete" else ({"title": "mine", "body": "mine"},)
    return getattr(entities, operation)(session, cls, key, *values, if_match=if_match)


def test_one_life(kind, watched, body):
    """Inserted, merged, replaced and deleted, each with the tag that came before."""
    session = watched()
    first = entities.insert(session, kind, 1, {"title": "a", "body": "a"})
    assert first.identity == (1,)
    assert body(session, kind, 1) == ("a", "a", first.etag)

    second = entities.merge(session, kind, 1, {"title": "b", "body": "b"}, if_match=first.etag)
    assert body(session, kind, 1) == ("b", "b", second.etag)
    third = entities.replace(session, kind, 1, {"title": "c"}, if_match=Version(second.version))
    assert body(session, kind, 1) == ("c", None, third.etag)
    assert len({first.etag, second.etag, third.etag}) == 3

    for operation in WRITES:  # another version
        with pytest.raises(PreconditionFailed) as caught:
            write(operation, session, kind, 1, [first.etag, second.etag])
        assert (caught.value.status, caught.value.etag) == (412, third.etag)
        (entry,) = caught.value.entries
        assert entry.database["title"] == "c"
        assert entry.action == ("delete" if operation == "delete" else "update")
    assert body(session, kind, 1) == ("c", None, third.etag)

    gone = entities.delete(session, kind, 1, if_match=[first.etag, third.etag])
    assert gone == Stored((1,), None, None)
    for operation in WRITES:  # no row, whatever is demanded
        for if_match in (third.etag, "*", '"-"', [first.etag, second.etag], []):
            with pytest.raises(NotFound) as missing:
                write(operation, session, kind, 1, if_match)
            assert (missing.value.status, missing.value.identity) == (404, (1,))
    assert body(session, kind, 1) is None


def test_other_ways_to_name_versions(kind, watched, body):
    """A star, one of several tags, and none at all; the tag is always the one that is stored."""
    session = watched()
    tags = [entities.insert(session, kind, 1, {"title": "a", "body": "a"}).etag]
    session.commit()
    for number, star in enumerate((True, False, True)):
        values = {"title": f"b{number}", "body": "b"}
        done = entities.merge(session, kind, 1, values, if_match="*" if star else tags)
        tags.append(done.etag)
        assert body(session, kind, 1) == (f"b{number}", "b", done.etag)
    if not moves_with_its_values(kind):  # a merge of nothing changes nothing
        for if_match in (tags[-1], "*"):
            assert entities.merge(session, kind, 1, if_match=if_match).etag == tags[-1]
            assert body(session, kind, 1) == ("b2", "b", tags[-1])
        with pytest.raises(PreconditionFailed):
            entities.merge(session, kind, 1, if_match=tags[0])
    assert len({*tags}) == len(tags)
    entities.delete(session, kind, 1, if_match="*")
    assert body(session, kind, 1) is None


def test_upserts_store_a_new_row_and_move_the_version_of_an_old_one(kind, watched, body):
    session = watched()
    tags = []
    for upsert in (entities.insert_or_replace, entities.insert_or_merge):
        for title in "ab":
            done = upsert(session, kind, 1, {"title": title, "body": upsert.__name__})
            tags.append(done.etag)
            assert body(session, kind, 1) == (title, upsert.__name__, done.etag)
    assert len({*tags}) == len(tags)
    with pytest.raises(PreconditionFailed):
        entities.delete(session, kind, 1, if_match=tags[:3])


@pytest.mark.parametrize(("operation", "left"), [("replace", None), ("merge", "a")])
def test_what_an_upsert_leaves_out(tables, watched, stored, operation, left):
    tables(Account)
    session = watched()
    entities.insert(session, Account, 1, {"owner": "a", "note": "a", "balance": 9})
    getattr(entities, f"insert_or_{operation}")(session, Account, 1, {"owner": "b"})
    session.commit()
    row = stored(Account, 1)
    assert (row["owner"], row["note"]) == ("b", left)
    assert row["balance"] == (0 if operation == "replace" else 9)
    assert row["version"] == 2


def test_insert_of_a_row_that_is_there_is_409(tables, watched, stored):
    tables(Account)
    session = watched()
    first = entities.insert(session, Account, 1, {"owner": "a"})
    with pytest.raises(AlreadyExists) as caught:
        entities.insert(session, Account, 1, {"owner": "b"})
    error = caught.value
    assert (error.status, error.etag, error.database["owner"]) == (409, first.etag, "a")
    session.commit()  # the transaction goes on
    assert stored(Account, 1)["owner"] == "a"


def test_if_none_match_star_only_inserts(tables, watched, stored):
    tables(Account)
    session = watched()
    entities.insert(session, Account, 1, {"owner": "a"}, if_none_match="*")
    for insert in (entities.insert, entities.insert_or_replace, entities.insert_or_merge):
        with pytest.raises(AlreadyExists) as caught:
            insert(session, Account, 1, {"owner": "b"}, if_none_match="*")
        assert caught.value.status == 412
    session.commit()
    assert stored(Account, 1)["owner"] == "a"


def test_the_database_makes_the_key(tables, watched):
    tables(Thing)
    session = watched()
    first = entities.insert(session, Thing, None, {"name": "a"})
    second = entities.insert(session, Thing, None, {"name": "b"})
    assert second.identity[0] > first.identity[0]
    entities.merge(session, Thing, second.identity, {"name": "c"}, if_match=second.etag)
    session.commit()
    assert session.get_one(Thing, second.identity).name == "c"


def test_a_replacement_resets_what_it_does_not_name(tables, watched, stored):
    tables(Reset)
    session = watched()
    full = {"scalar": 1, "called": "x", "derived": "x", "sql": "x", "server": 1, "text": "x"}
    first = entities.insert(session, Reset, 1, {"plain": "a", **full})
    session.commit()
    entities.replace(session, Reset, 1, {"plain": "b"}, if_match=first.etag)
    session.commit()
    wanted = {
        "plain": "b",
        "scalar": 5,
        "called": "made",
        "derived": "b!",
        "sql": "sql",
        "server": 7,
        "text": "it's 100%",
        "touched": "touched",
        "double": 10,
    }
    row = stored(Reset, 1)
    assert {name: row[name] for name in wanted} == wanted

    entities.merge(session, Reset, 1, full, if_match="*")
    entities.insert_or_replace(session, Reset, 1, {"plain": "c"})
    session.commit()
    row = stored(Reset, 1)
    assert {name: row[name] for name in wanted} == {**wanted, "plain": "c", "derived": "c!"}


def test_none_is_null_and_absent_is_kept(tables, watched, stored):
    tables(Account)
    session = watched()
    first = entities.insert(session, Account, 1, {"owner": "a", "note": "a"})
    entities.merge(session, Account, 1, {"owner": None}, if_match=first.etag)
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == (None, "a")


def test_ignored_columns_leave_the_tag_as_it_is(tables, watched, stored):
    tables(Visited)
    session = watched()
    first = entities.insert(session, Visited, 1, {"name": "a"})
    for demand in (first.etag, "*"):
        done = entities.merge(session, Visited, 1, {"visits": 3}, if_match=demand)
        assert done == first
    session.commit()
    assert stored(Visited, 1)["version"] == first.version
    assert entities.merge(session, Visited, 1, {"visits": 4, "name": "b"}, if_match="*") != first
    with pytest.raises(PreconditionFailed):
        entities.merge(session, Visited, 1, {"visits": 5}, if_match=first.etag)


def test_keys_of_several_columns_and_odd_names(tables, watched, stored):
    tables(Seat, Odd)
    session = watched()
    seat = entities.insert(session, Seat, ("Lear", 7), {"guest": "Ada"})
    seat = entities.merge(
        session, Seat, {"number": 7, "show": "Lear"}, {"guest": "Bob"}, if_match=seat.etag
    )
    entities.insert_or_replace(session, Seat, ("Lear", 7), {"guest": "Eve"})
    odd = entities.insert(session, Odd, 1, {"name": "a", "select": "b", "colon": 1})
    entities.replace(session, Odd, 1, {"colon": 2}, if_match=odd.etag)
    entities.insert_or_merge(session, Odd, 1, {"select": "c"})
    session.commit()
    assert seat.identity == ("Lear", 7)
    assert stored(Seat, ("Lear", 7))["guest"] == "Eve"
    assert stored(Odd, 1) == {"id": 1, "name": None, "select": "c", "colon": 2, "version": 3}


# -- objects of the session ------------------------------------------------------------------------


def test_the_object_of_the_row_follows(store, watched, stored):
    store(Account(id=1, owner="a"))
    session = watched()
    account = session.get_one(Account, 1)
    entities.merge(session, Account, 1, {"owner": "b"}, if_match=etag_of(account))
    assert (account.owner, account.version) == ("b", 2)
    account.note = "mine"
    session.commit()
    assert stored(Account, 1)["version"] == 3


@pytest.mark.parametrize("how", ["star", "upsert"])
def test_the_object_of_a_row_that_was_overwritten_is_read_again(store, watched, stored, how):
    store(Account(id=1, owner="a"))
    session = watched()
    account = session.get_one(Account, 1)
    if how == "star":
        entities.merge(session, Account, 1, {"owner": "b"}, if_match="*")
    else:
        entities.insert_or_merge(session, Account, 1, {"owner": "b"})
    assert (account.owner, account.version) == ("b", 2)
    account.note = "mine"
    session.commit()
    assert stored(Account, 1)["version"] == 3


def test_an_object_that_is_older_conflicts_at_its_next_flush(store, watched, other, refused):
    store(Account(id=1, owner="a"))
    session = watched()
    account = session.get_one(Account, 1)
    session.expunge(account)
    session.rollback()
    other(Account, 1, owner="theirs")
    session.add(account)
    entities.merge(session, Account, 1, {"balance": 7}, if_match=Version(2))
    account.owner = "mine"
    assert refused(session).entries[0].database["owner"] == "theirs"


def test_after_a_rollback_the_object_has_its_old_version(store, watched, other, stored):
    """Another writer's version has the same number as the one that was rolled back."""
    store(Account(id=1, owner="a"))
    session = watched()
    account = session.get_one(Account, 1)
    entities.merge(session, Account, 1, {"owner": "b"}, if_match=etag_of(account))
    session.rollback()
    other(Account, 1, owner="theirs")
    account.note = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()


def test_a_deleted_object_leaves_the_session(store, watched):
    store(Account(id=1))
    session = watched()
    account = session.get_one(Account, 1)
    entities.delete(session, Account, 1, if_match=etag_of(account))
    assert account not in session
    session.commit()


# -- what a client gets wrong ----------------------------------------------------------------------


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"nothing": 1}, "no such mapped attribute"),
        ({"id": 2}, "the primary key"),
        ({"version": 2}, "the version"),
        ({"balance": None}, "cannot be null"),
        ({3: "a"}, "no such mapped attribute"),
        ([1], "not list"),
    ],
)
def test_a_body_that_its_row_cannot_have_is_400(tables, watched, values, says):
    tables(Account)
    for operation in ("insert", "merge", "replace", "insert_or_merge", "insert_or_replace"):
        options = {"if_match": "*"} if operation in ("merge", "replace") else {}
        with pytest.raises(BadEntity, match=says) as caught:
            getattr(entities, operation)(watched(), Account, 1, values, **options)
        assert caught.value.status == 400


@pytest.mark.engines("sqlite-wal")
def test_a_new_row_needs_what_cannot_be_null(tables, watched):
    tables(Thing)
    for write in (entities.insert, entities.insert_or_replace):
        with pytest.raises(BadEntity, match="needs name") as caught:
            write(watched(), Thing, 1, {})
        assert caught.value.names == ("name",)
    with pytest.raises(BadEntity, match="needs name"):
        entities.replace(watched(), Thing, 1, {}, if_match="*")


@pytest.mark.engines("sqlite-wal")
def test_a_write_without_a_condition_is_428(watched):
    for operation in WRITES:
        values = () if operation == "delete" else ({"nothing": 1},)
        with pytest.raises(PreconditionRequired) as caught:
            getattr(entities, operation)(watched(), Account, 1, *values)
        assert caught.value.status == 428


@pytest.mark.engines("sqlite-wal")
def test_a_condition_that_is_no_tag_is_400(store, watched, stored):
    store(Account(id=1))
    for if_match in ("", "1", "garbage", '"a', '"1","2"', 1, ["*"], {}, [None], [1], b'"1"'):
        for operation in WRITES:
            with pytest.raises(BadPrecondition) as caught:
                write(operation, watched(), Account, 1, if_match)
            assert caught.value.status == 400
    assert stored(Account, 1)["version"] == 1


@pytest.mark.parametrize("cls", [Account, Note, KINDS["Timestamp"]], ids=lambda cls: cls.__name__)
def test_a_tag_that_no_row_can_have_is_412(tables, watched, cls):
    tables(cls)
    session = watched()
    first = entities.insert(session, cls, 1)
    text = version_text(first.etag)
    for other in ("0" + text, "x", "", "9" * 30, str(1 << 63), "\xe9", "%00", "1.0", "*"):
        with pytest.raises(PreconditionFailed):
            entities.merge(session, cls, 1, if_match=first.etag.replace(text, other))
    entities.insert(session, cls, 2)
    for foreign in (f"W/{first.etag}", tag(cls, 2, first.version), '"*"'):
        with pytest.raises(PreconditionFailed):
            entities.merge(session, cls, 1, if_match=foreign)
    entities.merge(session, cls, 1, if_match=first.etag)


def test_signed_tags(tables, watched):
    tables(Note)
    session, signed = watched(), ETags(keys=["a key of at least 16"])
    first = entities.insert(session, Note, 1, {"text": "a"}, etags=signed)
    assert first.etag != tag(Note, 1, first.version)
    with pytest.raises(PreconditionFailed) as caught:
        entities.merge(session, Note, 1, if_match=tag(Note, 1, first.version), etags=signed)
    assert caught.value.etag == first.etag
    entities.delete(session, Note, 1, if_match=first.etag, etags=signed)


@pytest.mark.engines("sqlite-wal")
def test_if_none_match_is_for_inserts_alone(tables, watched):
    tables(Account)
    with pytest.raises(BadPrecondition, match="name that in if_match"):
        entities.delete(watched(), Account, 1, if_match="*", if_none_match="*")
    for operation in ("merge", "replace"):  # of a stored row it is 412
        with pytest.raises(NotFound):
            getattr(entities, operation)(watched(), Account, 1, {"owner": "x"}, if_none_match="*")
    with pytest.raises(BadPrecondition, match="alone"):
        entities.insert(watched(), Account, 1, if_none_match='"1"')
    for operation in ("insert", "insert_or_merge", "insert_or_replace"):
        with pytest.raises(ConfigurationError, match="takes no if_match"):
            getattr(entities, operation)(watched(), Account, 1, if_match='"1"')
