"""``merge_changes``: what a client sends is merged with what others wrote, on a signed base."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sqlalchemy import JSON, Engine, Enum, LargeBinary, Numeric, String, Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import optilock.asyncio
from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    Entry,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    client_wins,
    events,
    is_transient,
    merge_fields,
    reject,
    store_wins,
    unit_of_work,
)
from optilock.errors import BadEntity, BadPrecondition
from optilock.preconditions import merge_changes, sign_seen
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.preconditions.signed_values import LONGEST
from optilock.resolvers import Resolution, add_delta, merge_text, per_field
from optilock.testing import count_statements
from optilock.web.problems import problem_of
from tests.support.ids import told
from tests.support.models import Account, Dog
from tests.support.models import Base as Shared
from tests.support.two_writers import Do

OLD, NEW = "the old key, of 16 bytes or more", "the new key, of 16 bytes or more"
TAGS = ETags(keys=[NEW, OLD], tenant="acme")
NAMES = ["owner", "balance", "note"]


def seen_of(session: Session, key: int = 1, etags: ETags = TAGS, names: Any = NAMES) -> str:
    text = sign_seen(session.get_one(Account, key), names, etags=etags)
    session.rollback()
    return text


def test_each_column_comes_from_the_side_that_changed_it(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    seen = seen_of(watched())
    other(Account, 1, note="theirs")
    session = watched(reject)
    form = {"owner": "Eve", "balance": 10, "note": "n"}  # every field comes back
    merged = merge_changes(session, Account, 1, form, seen=seen, etags=TAGS)
    assert (merged.owner, merged.note, merged.version) == ("Eve", "theirs", 2)
    session.commit()
    row = stored(Account, 1)
    assert (row["owner"], row["note"], row["version"]) == ("Eve", "theirs", 3)


def test_a_row_that_has_not_moved_is_edited(account: Any, watched: Do, stored: Do) -> None:
    seen = seen_of(watched())
    session = watched()
    merge_changes(session, Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS, on_conflict=reject)
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Eve", 2)


def reads(engine: Engine, session: Session, seen: str) -> int:
    with count_statements(engine) as sent:
        merged = merge_changes(session, Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS)
    assert (merged.owner, merged.note) == ("Eve", "theirs")
    return sum("SELECT" in one.text for one in sent.statements)


def test_it_reads_the_row_once(account: Any, watched: Do, other: Do, engine: Engine) -> None:
    session = watched(expire_on_commit=False)
    held = session.get(Account, 1)
    session.commit()
    other(Account, 1, balance=11)
    seen = seen_of(watched())  # of a newer version than the session has
    other(Account, 1, note="theirs")
    assert reads(engine, watched(), seen) == 1
    assert reads(engine, session, seen) == 1
    assert held.balance == 11


def test_what_clashes_is_refused_with_the_three_values(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    seen = seen_of(watched())
    other(Account, 1, owner="Bea", balance=5)
    session = watched(client_wins)
    with pytest.raises(ConcurrencyError) as caught:
        merge_changes(session, Account, 1, {"owner": "Eve", "note": "mine"}, seen=seen, etags=TAGS)
    assert isinstance(caught.value, PreconditionFailed)
    assert not is_transient(caught.value)
    assert "both sides changed owner" in caught.value.__notes__[0]
    (found,) = caught.value.entries
    assert found.original == {"version": 1, "owner": "Ada", "balance": 10, "note": "n"}
    assert found.changes == {"owner": "Eve", "note": "mine"}
    assert found.database is not None
    assert (found.database["owner"], found.database["version"]) == ("Bea", 2)
    assert found.conflicting == {"owner"}
    assert not session.dirty
    session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Bea", 2)


def both(original: str, current: str, database: str) -> str:
    return f"{database} and {current}"


def ours_of_owner(entry: Entry[Any]) -> Resolution:
    return Resolution.write({name: entry.current[name] for name in entry.conflicting})


@pytest.mark.parametrize(
    ("resolver", "owner", "balance", "version"),
    [
        (per_field(owner=both, balance=add_delta), "Bea and Eve", 25, 3),
        (client_wins, "Eve", 15, 3),
        (ours_of_owner, "Eve", 15, 3),
        (store_wins, "Bea", 20, 2),
    ],
)
def test_any_resolver_settles_it(
    account: Any,
    watched: Do,
    other: Do,
    stored: Do,
    resolver: Any,
    owner: str,
    balance: int,
    version: int,
) -> None:
    seen = seen_of(watched())
    other(Account, 1, owner="Bea", balance=20)
    session = watched(reject)
    changes = {"owner": "Eve", "balance": 15}
    merge_changes(session, Account, 1, changes, seen=seen, etags=TAGS, on_conflict=resolver)
    session.commit()
    row = stored(Account, 1)
    assert (row["owner"], row["balance"], row["version"]) == (owner, balance, version)


def test_what_was_not_signed_cannot_be_merged(account: Any, watched: Do, other: Do) -> None:
    seen = seen_of(watched(), names=["note"])
    other(Account, 1, note="theirs")
    with pytest.raises(PreconditionFailed) as caught:
        merge_changes(watched(), Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS)
    assert caught.value.entries[0].conflicting == {"owner"}
    assert "is unknown" in caught.value.__notes__[0]


def test_a_row_that_is_gone_asks_no_resolver(account: Any, watched: Do, gone: Do) -> None:
    seen = seen_of(watched())
    gone(Account, 1)
    with pytest.raises(PreconditionFailed) as caught:
        merge_changes(
            watched(), Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS, on_conflict=client_wins
        )
    (found,) = caught.value.entries
    assert (found.kind, found.original["owner"]) == ("deleted", "Ada")


def test_a_row_that_was_made_again_in_the_same_version_has_moved(
    account: Any, store: Do, watched: Do, gone: Do
) -> None:
    seen = seen_of(watched())
    gone(Account, 1)
    store(Account(id=1, owner="Zoe", balance=10, note="n"))
    with pytest.raises(PreconditionFailed):
        merge_changes(watched(), Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("resolver", [merge_fields, client_wins])
def test_a_row_that_moves_again_before_the_write_is_a_conflict_that_no_resolver_settles(
    account: Any, watched: Do, other: Do, stored: Do, resolver: Any, moved: bool
) -> None:
    seen = seen_of(watched())
    if moved:
        other(Account, 1, note="theirs")
    session = watched(resolver)
    merge_changes(session, Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS)
    other(Account, 1, owner="later")
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    assert is_transient(caught.value)
    session.rollback()
    assert stored(Account, 1)["owner"] == "later"


def test_and_a_retry_merges_with_what_is_stored_then(
    account: Any, engine: Engine, watched: Do, other: Do, stored: Do
) -> None:
    seen, attempts = seen_of(watched()), []

    @unit_of_work(sessionmaker(engine), attempts=3)
    def submit(session: Session) -> None:
        merge_changes(session, Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS)
        attempts.append(1)
        if len(attempts) == 1:
            other(Account, 1, note="theirs")

    submit()
    assert len(attempts) == 2
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == ("Eve", "theirs")


# -- what is signed --------------------------------------------------------------------------------


def answered(error: Exception) -> str:
    """What a client is told: nothing of tags, and no name of a class."""
    problem = problem_of(error)
    assert problem is not None
    return f"{problem.status} {problem.body['detail']}"


def test_whatever_was_not_signed_for_this_row_is_refused_before_anything_is_read(
    account: Any, watched: Do, engine: Engine
) -> None:
    seen = seen_of(watched())
    ours = ETags(keys=NEW, tenant="acme")
    head, _, payload = seen.rpartition(".")
    forged = [
        "",
        ".",
        "..",
        seen[:-1],
        seen[1:],
        seen + "A",
        f"{head}.{payload[:-2]}AA",
        payload,
        head,
        f"{head.partition('.')[0]}.2.{payload}",
        seen_of(watched(), key=2),
        seen_of(watched(), etags=ETags(keys=NEW, tenant="other")),
        seen_of(watched(), etags=ETags(keys="a key that nobody here has")),
        ours.of(watched().get_one(Account, 1)),
        ours.of(watched().get_one(Account, 1)).strip('"'),
        "\N{SNOWMAN}." + payload,
        "\ud800" + seen,
        seen * 200_000,
        7,
        {"owner": "Ada"},
        [seen],
    ]
    forged += [
        seen[:at] + ("A" if seen[at] != "A" else "B") + seen[at + 1 :] for at in range(len(seen))
    ]
    session = watched(client_wins)
    with count_statements(engine) as sent:
        for text in forged:
            with pytest.raises(BadPrecondition) as caught:
                merge_changes(session, Account, 1, {"owner": "Eve"}, seen=text, etags=TAGS)
            assert answered(caught.value).startswith("400 What was seen was not signed here")
        with pytest.raises(BadPrecondition) as caught:
            merge_changes(session, Account, 1, {"owner": "Eve"}, seen=None, etags=TAGS)
        assert answered(caught.value).startswith("428 What was seen is missing")
        with pytest.raises(BadPrecondition):  # and a tag is not opened by it either
            TAGS.versions(Account, 1, seen)
        assert TAGS.versions(Account, 1, f'"{seen}"') == ()
    assert sent.count == 0


def test_keys_are_rotated(account: Any, watched: Do) -> None:
    before = seen_of(watched(), etags=ETags(keys=OLD, tenant="acme"))
    after = ETags(keys=NEW, tenant="acme")
    session = watched()
    merge_changes(session, Account, 1, {"owner": "Eve"}, seen=before, etags=TAGS)
    with pytest.raises(BadPrecondition, match="key"):
        merge_changes(session, Account, 1, {"owner": "Eve"}, seen=before, etags=after)


def test_without_keys_nothing_is_signed_or_merged(account: Any, watched: Do) -> None:
    session = watched()
    seen = seen_of(session)
    with pytest.raises(ConfigurationError, match="keys"):
        sign_seen(session.get_one(Account, 1), NAMES, etags=PLAIN)
    with pytest.raises(ConfigurationError, match="keys"):
        merge_changes(session, Account, 1, {}, seen=seen, etags=PLAIN)


@pytest.mark.parametrize(
    ("changes", "options", "error"),
    [
        ({"id": 2}, {}, BadEntity),
        ({"version": 2}, {}, BadEntity),
        ({"nothing": 2}, {}, BadEntity),
        ({"balance": "x"}, {}, BadEntity),
        ({"balance": None}, {}, BadEntity),
        ({"balance": Account.balance + 1}, {}, ConfigurationError),
        ({}, {"on_conflict": merge_text}, ConfigurationError),
        ({}, {"on_conflict": per_field(nothing=merge_text)}, ConfigurationError),
        ({}, {"on_conflict": None}, ConfigurationError),
    ],
    ids=told,
)
def test_what_cannot_be_merged_is_refused(
    account: Any, watched: Do, changes: Any, options: Any, error: type[Exception]
) -> None:
    session = watched()
    with pytest.raises(error):
        merge_changes(
            session, Account, 1, changes, **{"seen": seen_of(watched()), "etags": TAGS, **options}
        )
    with Session(session.get_bind()) as plain, pytest.raises(ConfigurationError, match="watched"):
        merge_changes(plain, Account, 1, {}, seen="", etags=TAGS)


def test_what_cannot_be_signed_is_refused(account: Any, store: Do, watched: Do) -> None:
    session = watched()
    ada = session.get_one(Account, 1)
    for names in (["id"], ["version"], ["nothing"]):
        with pytest.raises(ConfigurationError, match=names[0]):
            sign_seen(ada, names, etags=TAGS)
    with pytest.raises(ConfigurationError, match="not stored"):
        sign_seen(Account(id=9), NAMES, etags=TAGS)
    session.refresh(ada)
    session.expire(ada, ["note"])
    with pytest.raises(ConfigurationError, match="note"):
        sign_seen(ada, NAMES, etags=TAGS)
    with pytest.raises(ConfigurationError, match="object of a mapped class"):
        sign_seen("ada", NAMES, etags=TAGS)


class Base(DeclarativeBase):
    metadata = Shared.metadata


class Colour(enum.Enum):
    red = 1
    green = 2


class Rich(Versioned, Base):
    __tablename__ = "merge_rich"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    price: Mapped[Decimal | None] = mapped_column(Numeric(8, 2))
    ref: Mapped[uuid.UUID | None] = mapped_column(Uuid())
    day: Mapped[datetime.date | None]
    at: Mapped[datetime.datetime | None]
    raw: Mapped[bytes | None] = mapped_column(LargeBinary())
    data: Mapped[Any | None] = mapped_column(JSON)
    colour: Mapped[Colour | None] = mapped_column(Enum(Colour))
    name: Mapped[str | None] = mapped_column(String(200))


RICH: dict[str, Any] = {
    "price": Decimal("12.50"),
    "ref": uuid.UUID(int=5),
    "day": datetime.date(2026, 1, 2),
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5),
    "raw": b"\0\xff",
    "data": {"a": [1, {"": None}]},
    "colour": Colour.green,
    "name": "Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}",
}


def test_each_type_is_compared_as_it_was_loaded(
    store: Do, watched: Do, other: Do, stored: Do
) -> None:
    store(Rich(id=1, **RICH))
    session = watched()
    seen = sign_seen(session.get_one(Rich, 1), RICH, etags=TAGS)
    session.rollback()
    other(Rich, 1, name="theirs")
    changes = {**RICH, "price": Decimal("13")}
    merge_changes(session, Rich, 1, changes, seen=seen, etags=TAGS)
    session.commit()
    row = stored(Rich, 1)
    assert {name: row[name] for name in RICH} == {**RICH, "price": 13, "name": "theirs"}


def test_edits_that_are_not_flushed_were_not_seen(account: Any, watched: Do, other: Do) -> None:
    session = watched()
    ada = session.get_one(Account, 1)
    ada.owner = "never stored"
    seen = sign_seen(ada, NAMES, etags=TAGS)
    session.rollback()
    other(Account, 1, note="theirs")
    merged = merge_changes(session, Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS)
    assert merged.owner == "Eve"


def test_what_is_too_long_for_a_field_is_compared_and_not_merged(
    store: Do, watched: Do, other: Do
) -> None:
    noise = "".join(Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=LONGEST))
    store(Rich(id=1, name="a", data=noise))
    session = watched()
    seen = sign_seen(session.get_one(Rich, 1), ["name", "data"], etags=TAGS)
    assert len(seen) < 300
    session.rollback()
    other(Rich, 1, name="b")
    merge_changes(session, Rich, 1, {"data": "mine"}, seen=seen, etags=TAGS)
    session.commit()
    with pytest.raises(PreconditionFailed) as failed:
        merge_changes(session, Rich, 1, {"data": "later"}, seen=seen, etags=TAGS)
    assert failed.value.entries[0].conflicting == {"data"}
    assert "data" not in failed.value.entries[0].original


def test_a_row_of_a_subclass_is_merged_through_either_class(
    store: Do, watched: Do, other: Do, stored: Do
) -> None:
    store(Dog(id=1, name="Rex"))
    session = watched()
    seen = sign_seen(session.get_one(Dog, 1), ["name"], etags=TAGS)
    session.rollback()
    other(Dog, 1, name="Rex II")
    base = Dog.__mapper__.base_mapper.class_
    merge_changes(session, base, 1, {"name": "Max"}, seen=seen, etags=TAGS, on_conflict=client_wins)
    session.commit()
    assert stored(Dog, 1)["name"] == "Max"


def test_listeners_hear_of_it(account: Any, watched: Do, other: Do) -> None:
    seen, heard = seen_of(watched()), []
    other(Account, 1, note="theirs")
    hear = events.listen(heard.append, written=False)
    try:
        merge_changes(watched(), Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS)
    finally:
        events.unlisten(hear)
    assert [type(one).__name__ for one in heard] == ["Conflict", "Resolved"]


@pytest.mark.anyio
async def test_async_sessions_have_the_same_call(async_engine: Any, async_store: Any) -> None:
    async_store(Account(id=1, owner="Ada"))
    async with AsyncUnitOfWork(async_engine) as session:
        ada = await session.get(Account, 1)
        seen = sign_seen(ada, NAMES, etags=TAGS)
        ada.note = "theirs"

    async def ours(entry: Entry[Any]) -> Resolution:
        return Resolution.overwrite()

    async with AsyncUnitOfWork(async_engine) as session:
        merged = await optilock.asyncio.merge_changes(
            session,
            Account,
            1,
            {"owner": "Eve", "note": "mine"},
            seen=seen,
            etags=TAGS,
            on_conflict=ours,
        )
        assert (merged.owner, merged.note) == ("Eve", "mine")


def test_a_unit_of_work_merges_in_one_line(
    account: Any, engine: Engine, watched: Do, other: Do, stored: Do
) -> None:
    seen = seen_of(watched())
    other(Account, 1, note="theirs")
    with UnitOfWork(sessionmaker(engine)) as session:
        merge_changes(session, Account, 1, {"owner": "Eve"}, seen=seen, etags=TAGS)
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == ("Eve", "theirs")
