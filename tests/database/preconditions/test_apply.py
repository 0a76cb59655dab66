"""``apply``: edit a row if it still is what was seen, in one call."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Computed, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

import optilock.asyncio
from optilock import (
    AsyncUnitOfWork,
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    apply,
    client_wins,
    etag_of,
)
from optilock.errors import BadEntity, BadPrecondition
from optilock.testing import count_statements
from tests.support.models import Account, Base, Dog, Note, Post, Seat, Tag, key
from tests.support.tags import tag
from tests.support.two_writers import Do
from tests.support.work import calls_of


def refused(session: Session, *args: Any, expected: object) -> PreconditionFailed:
    with pytest.raises(PreconditionFailed) as caught:
        apply(session, *args, expected=expected)
    assert not session.dirty
    return caught.value


def test_the_row_that_was_seen_is_edited(account: Any, watched: Do, stored: Do) -> None:
    session = watched()
    edited = apply(session, Account, 1, {"owner": "Eve", "note": None}, expected=tag(Account, 1, 1))
    assert edited is session.get(Account, 1)
    session.flush()
    assert etag_of(edited) == tag(Account, 1, 2)
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == ("Eve", None)


def test_a_row_that_moved_is_refused_with_what_is_stored(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    other(Account, 1, owner="Bea", note="theirs")
    session = watched(client_wins)
    (entry,) = refused(session, Account, 1, {"owner": "Eve"}, expected=tag(Account, 1, 1)).entries
    assert (entry.kind, entry.action, entry.identity) == ("updated", "update", (1,))
    assert entry.original == {"version": 1}
    assert entry.changes == {"owner": "Eve"}
    assert entry.conflicting == {"owner"}
    assert entry.database is not None
    assert (entry.database["version"], entry.database["owner"]) == (2, "Bea")
    session.commit()
    assert stored(Account, 1)["owner"] == "Bea"


def test_names_and_values_cost_no_sql_and_no_question_to_the_session(
    account: Any, watched: Do
) -> None:
    session = watched()

    def edit() -> None:
        apply(session, Account, 1, {"owner": "Eve", "note": None}, version=1)

    edit()  # what is worked out once
    called = {name for file, name in calls_of(edit)}
    assert called.isdisjoint({"operate", "_boolean_compare", "get_bind", "limits"})


def test_the_row_is_read_as_the_session_reads_rows(account: Any, engine: Engine) -> None:
    class Mine(Session):
        def get(self, entity: Any, ident: Any, **options: Any) -> Any:
            found = super().get(entity, ident, **options)
            return None if found is None or found.owner == "hidden" else found

    with UnitOfWork(sessionmaker(engine, class_=Mine)) as session:
        apply(session, Account, 1, {"owner": "hidden"}, version=1)
    with UnitOfWork(sessionmaker(engine, class_=Mine)) as session:
        assert (
            refused(session, Account, 1, {"owner": "Eve"}, expected=2).entries[0].database is None
        )


@pytest.mark.parametrize("held", [False, True])
def test_a_miss_reads_the_row_once(
    account: Any, watched: Do, other: Do, engine: Engine, held: bool
) -> None:
    session = watched(expire_on_commit=False)
    kept = session.get(Account, 1) if held else None
    session.commit()
    other(Account, 1, note="theirs")
    with count_statements(engine) as sent:
        error = refused(session, Account, 1, {"owner": "Eve"}, expected=tag(Account, 1, 9))
    assert sum("SELECT" in one.text for one in sent.statements) == 1
    assert error.entries[0].database is not None
    assert error.entries[0].database["version"] == 2
    assert kept is None or kept.note == "theirs"


def test_a_row_that_is_known_by_another_form_of_its_key_is_read_again(
    account: Any, watched: Do, other: Do, engine: Engine
) -> None:
    session = watched(expire_on_commit=False)
    held = session.get(Account, 1)
    session.commit()
    other(Account, 1, note="theirs")
    seen = tag(Account, 1, 2)
    assert apply(session, Account, "1", {"owner": "Eve"}, expected=seen) is held


def test_a_row_that_goes_after_the_session_has_read_it_is_refused(
    account: Any, watched: Do, other: Do, gone: Do
) -> None:
    """B10: it was SQLAlchemy's "Could not refresh instance", an error of the program."""
    session = watched(expire_on_commit=False)
    held = session.get_one(Account, 1)
    session.commit()
    other(Account, 1, note="theirs")
    gone(Account, 1)
    (entry,) = refused(session, Account, 1, {"owner": "Eve"}, expected=tag(Account, 1, 2)).entries
    assert (entry.database, held.owner) == (None, "Ada")


def test_a_row_that_is_gone_is_refused(account: Any, watched: Do, gone: Do) -> None:
    gone(Account, 1)
    (entry,) = refused(watched(), Account, 1, {"owner": "Eve"}, expected=tag(Account, 1, 1)).entries
    assert (entry.kind, entry.database, entry.original) == ("deleted", None, {"version": 1})
    assert entry.changes == {"owner": "Eve"}


def test_a_row_that_moves_later_is_refused_at_the_flush(
    account: Any, watched: Do, other: Do
) -> None:
    session = watched(client_wins)
    apply(session, Account, 1, {"owner": "Eve"}, expected=1)
    other(Account, 1, note="theirs")
    with pytest.raises(PreconditionFailed):
        session.commit()


def test_the_client_may_have_seen_more_than_the_session(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    session = watched(expire_on_commit=False)
    held = session.get(Account, 1)
    session.commit()
    other(Account, 1, note="theirs")
    assert apply(session, Account, 1, {"owner": "Eve"}, expected=2) is held
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == ("Eve", "theirs")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("title", "no such"),
        ("id", "primary key"),
        ("version", "version"),
        ("metadata", "no such"),
        ("__class__", "no such"),
        (3, "no such"),
    ],
)
def test_a_name_that_cannot_be_edited_is_refused_before_anything_is_read(
    account: Any, watched: Do, engine: Engine, name: Any, why: str
) -> None:
    for given in ({"changes": {"owner": "Eve", name: 1}}, {"changes": {}, "seen": {name: 1}}):
        with count_statements(engine) as sent, pytest.raises(BadEntity, match=why) as caught:
            apply(watched(), Account, 1, **given, expected=1)
        assert sent.count == 0
        assert (caught.value.status, caught.value.names) == (400, (str(name),))


def test_null_where_the_column_takes_none_is_refused_and_not_set(account: Any, watched: Do) -> None:
    session = watched()
    with pytest.raises(BadEntity, match="cannot be null") as caught:
        apply(session, Account, 1, {"owner": "Eve", "balance": None}, expected=1)
    assert (caught.value.status, caught.value.names) == (400, ("balance",))
    assert not session.is_modified(session.get_one(Account, 1))


class Parcel(Versioned, Base):
    __tablename__ = "apply_parcels"
    id: Mapped[int] = key()
    weight: Mapped[int]
    twice: Mapped[int] = mapped_column(Computed("weight * 2", persisted=True))


@pytest.mark.parametrize(
    ("model", "changes", "error", "why"),
    [
        (Post, {"comments": []}, BadEntity, "relationship"),
        (Dog, {"kind": "cat"}, BadEntity, "discriminator"),
        (Parcel, {"twice": 2}, BadEntity, "computed"),
        (Tag, {"name": "x"}, ConfigurationError, "no version"),
        (int, {}, ConfigurationError, "mapped class"),
        (Account, ["owner"], BadEntity, "mapping"),
    ],
)
def test_what_cannot_be_edited_this_way_is_refused(
    watched: Do, model: Any, changes: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        apply(watched(), model, 1, changes, expected=1)


@pytest.mark.parametrize("pk", [None, (), (1, 2), {"no": 1}, [None]])
def test_a_key_that_the_class_cannot_have_is_refused(watched: Do, pk: Any) -> None:
    with pytest.raises(ConfigurationError, match="primary key"):
        apply(watched(), Account, pk, {}, expected=1)


@pytest.mark.parametrize(
    ("expected", "status"), [(None, 428), ("*", 428), ('"1', 400), ("1", 400), ("", 400)]
)
def test_what_is_no_version_is_refused_before_anything_is_read(
    watched: Do, engine: Engine, expected: Any, status: int
) -> None:
    with count_statements(engine) as sent, pytest.raises(BadPrecondition) as caught:
        apply(watched(), Account, 1, {"owner": "Eve"}, expected=expected)
    assert sent.count == 0
    assert caught.value.status == status


@pytest.mark.parametrize("given", [{}, {"expected": 1, "version": 1}, {"version": None}], ids=str)
def test_one_way_of_naming_the_version_is_needed(
    watched: Do, engine: Engine, given: dict[str, Any]
) -> None:
    with count_statements(engine) as sent, pytest.raises(ConfigurationError, match="version="):
        apply(watched(), Account, 1, {"owner": "Eve"}, **given)
    assert sent.count == 0


def test_the_tag_of_another_row_is_another_version(account: Any, watched: Do, stored: Do) -> None:
    """Ada's and Bob's rows are both in version 1."""
    (entry,) = refused(watched(), Account, 1, {"owner": "Eve"}, expected=tag(Account, 2, 1)).entries
    assert entry.original == {"version": tag(Account, 2, 1)}
    assert stored(Account, 1)["owner"] == "Ada"


def test_a_session_that_nobody_watches_is_refused(engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(ConfigurationError, match="not watched"):
        apply(session, Account, 1, {}, expected=1)


def test_a_key_of_two_columns_comes_as_a_tuple_or_by_name(store: Do, watched: Do) -> None:
    names = list(Seat.__mapper__.column_attrs.keys())
    keys = [Seat.__mapper__.get_property_by_column(c).key for c in Seat.__mapper__.primary_key]
    store(Seat(**{key: n for n, key in enumerate(keys, 1)}))
    assert names
    session = watched()
    assert apply(session, Seat, (1, 2), {}, expected=1) is apply(
        session, Seat, {key: n for n, key in enumerate(keys, 1)}, {}, expected=1
    )


def test_the_text_of_a_random_version_is_a_version_where_it_is_called_one(
    store: Do, watched: Do, stored: Do
) -> None:
    """RL-16"""
    store(Note(id=1, text="a"))
    seen = str(stored(Note, 1)["version"])
    session = watched()
    apply(session, Note, 1, {"text": "mine"}, version=seen)
    session.commit()
    assert stored(Note, 1)["text"] == "mine"
    with pytest.raises(PreconditionFailed):
        apply(watched(), Note, 1, {"text": "again"}, version=seen)


def test_a_unit_of_work_edits_in_one_line(account: Any, engine: Engine, stored: Do) -> None:
    with UnitOfWork(sessionmaker(engine)) as session:
        apply(session, Account, 1, {"owner": "Eve"}, expected=tag(Account, 1, 1))
    assert stored(Account, 1)["owner"] == "Eve"


@pytest.mark.anyio
async def test_async_sessions_have_the_same_call(
    async_engine: AsyncEngine, async_store: Any
) -> None:
    async_store(Account(id=1, owner="Ada"))
    async with AsyncUnitOfWork(async_engine) as session:
        await optilock.asyncio.apply(
            session, Account, 1, {"owner": "Eve"}, expected=tag(Account, 1, 1)
        )
        with pytest.raises(ConfigurationError, match="await"):
            apply(session, Account, 1, {}, expected=1)  # type: ignore[arg-type]
    with pytest.raises(PreconditionFailed):
        async with AsyncUnitOfWork(async_engine) as session:
            await optilock.asyncio.apply(
                session, Account, 1, {"owner": "x"}, expected=tag(Account, 1, 1)
            )


@pytest.mark.parametrize("expected", [2.5, True, [1], {"version": 1}], ids=str)
def test_a_value_that_a_body_brought_in_the_place_of_a_tag_is_the_clients_mistake(
    account: Any, watched: Do, expected: object
) -> None:
    with pytest.raises(BadPrecondition, match="Account") as caught:
        apply(watched(), Account, 1, {"owner": "Eve"}, expected=expected)
    assert caught.value.status == 400


@pytest.mark.parametrize("given", [{"expected": object()}, {"version": 2.5}, {"version": "x"}])
def test_a_version_of_another_type_is_refused_in_the_name_of_apply(
    account: Any, watched: Do, given: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"^apply\(\) got .*Account") as caught:
        apply(watched(), Account, 1, {"owner": "Eve"}, **given)
    assert "expect()" not in str(caught.value)
