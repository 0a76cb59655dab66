"""A request that is sent again after its answer was lost counts once, and nobody else's does."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as with_
from typing import Any

import pytest
from sqlalchemy import Engine, String
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, Session, mapped_column

from optilock import ConfigurationError, PreconditionFailed, Versioned, asyncio, entities, events
from optilock.conditions import Condition, Demand
from optilock.entities import Idempotency, Version
from optilock.errors import AlreadyExists, BadEntity, NotFound
from optilock.preconditions.entity_tags import ETags
from optilock.statements import demand
from optilock.testing import count_statements
from optilock.tokens import Unique
from tests.support.entities import KINDS, Base
from tests.support.models import key

OLD, NEW = b"an old secret of the server", b"a new secret of the server"
AGAIN = Idempotency('"5b0a"', keys=[OLD], principal="ada")


class Post(Versioned, Base):
    """``visits`` neither moves the version nor conflicts."""

    __tablename__ = "ent_posts"
    __version_token__ = Unique()
    __version_ignore__ = ("visits",)
    id: Mapped[int] = key()
    title: Mapped[str | None] = mapped_column(String(20), unique=True)
    text: Mapped[str | None]
    made: Mapped[str] = mapped_column(String(40), default=lambda: uuid.uuid4().hex)
    visits: Mapped[int] = mapped_column(default=0)


class Comment(Versioned, Base):
    """Its key is a UUID, which the server chooses."""

    __tablename__ = "ent_comments"
    __version_token__ = Unique()
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    text: Mapped[str | None]


class Numbered(Versioned, Base):
    """Its key is a number, which the database makes."""

    __tablename__ = "ent_numbered"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str | None]


@pytest.fixture
def first(tables: Any, engine: Engine) -> str:
    """The tag of a post that was stored without more."""
    tables(Post)
    with Session(engine) as session, session.begin():
        tag = entities.insert(session, Post, 1, {"title": "a", "text": "a"}).etag
    assert tag is not None
    return tag


@pytest.fixture
def once(watched: Any) -> Any:
    """Calls an operation in a transaction of its own."""
    session = watched()

    def once(operation: Any, *args: Any, **options: Any) -> Any:
        try:
            done = operation(session, *args, **options)
            session.commit()
        finally:
            session.rollback()
        return done

    return once


# -- replace and merge -----------------------------------------------------------------------------

WRITES = pytest.mark.parametrize("write", [entities.merge, entities.replace])


@WRITES
def test_a_request_that_is_sent_again_gets_the_same_answer(first, watched, engine, stored, write):
    heard = []
    answers, rows, sent = [], [], []
    events.listen(heard.append, written=False)
    try:
        for _ in range(3):
            session = watched()
            session.connection()
            with count_statements(engine) as counted:
                values = {"title": "b"}
                answers.append(write(session, Post, 1, values, if_match=first, idempotency=AGAIN))
            sent.append(counted.count)
            session.commit()
            rows.append(stored(Post, 1))
    finally:
        events.unlisten(heard.append)
    assert answers[0] == answers[1] == answers[2]
    assert [one.again for one in answers] == [False, True, True]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0]["version"] == answers[0].version
    assert sent == [1, 2, 2]
    assert {type(one) for one in heard} == {events.SessionCommitted}  # nothing was in conflict


def _version_of(watched: Any, tag: str, **options: Any) -> Any:
    """The version that such a request makes; it is taken back."""
    session = watched()
    given = {"idempotency": AGAIN, "write": entities.merge, "values": {"text": "b"}, **options}
    write, values = given.pop("write"), given.pop("values")
    try:
        return write(session, Post, 1, values, if_match=tag, **given).version
    finally:
        session.rollback()


OTHERS: dict[str, dict[str, Any]] = {
    "body": {"values": {"text": "c"}},
    "more": {"values": {"text": "b", "visits": 1}},
    "names": {"values": {"title": "b"}},
    "operation": {"write": entities.replace},
    "key": {"idempotency": with_(AGAIN, header='"5b0b"')},
    "principal": {"idempotency": with_(AGAIN, principal="bob")},
    "secret": {"idempotency": with_(AGAIN, keys=[NEW])},
    "no key": {"idempotency": with_(AGAIN, header=None)},
    "nothing": {"idempotency": None},
}


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_in_anything_is_another_request(first, once, watched, name):
    assert _version_of(watched, first) == _version_of(watched, first)
    assert _version_of(watched, first, **OTHERS[name]) != _version_of(watched, first)
    once(entities.merge, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    with pytest.raises(PreconditionFailed):
        _version_of(watched, first, **OTHERS[name])


def test_so_is_one_for_another_row_or_tenant(store, watched, engine):
    store(Post(id=1, title="a"), Post(id=2, title="b"))
    version = uuid.uuid4()
    with engine.begin() as connection:
        connection.execute(Post.__table__.update().values(version=version))
    session = watched()
    for number in (1, 2):
        session.get_one(Post, number)
    made = set()
    for key_, tenant in ((1, ""), (2, ""), (1, "acme")):
        with session.begin_nested() as savepoint:
            done = entities.merge(
                session,
                Post,
                key_,
                {"text": "b"},
                if_match=Version(version),
                etags=ETags(tenant=tenant),
                idempotency=AGAIN,
            )
            made.add(done.version)
            savepoint.rollback()
    assert len(made) == 3


def test_after_another_edit_it_is_412(first, once, other, stored):
    once(entities.merge, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    other(Post, 1, text="theirs")
    with pytest.raises(PreconditionFailed) as caught:
        once(entities.merge, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    assert caught.value.entries[0].database["text"] == "theirs"
    assert stored(Post, 1)["text"] == "theirs"


def test_old_secrets_recognise_until_they_are_taken_away(first, once):
    done = once(entities.merge, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    for keys in ([OLD, NEW], [NEW, OLD]):
        again = with_(AGAIN, keys=keys)
        told = once(entities.merge, Post, 1, {"text": "b"}, if_match=first, idempotency=again)
        assert told == done
        assert told.again
    again = with_(AGAIN, keys=[NEW])
    with pytest.raises(PreconditionFailed):
        once(entities.merge, Post, 1, {"text": "b"}, if_match=first, idempotency=again)


def test_several_tags_are_bound_as_a_set(first, once, watched):
    tags = [first, '"other.00000000000000000000000000000000"', first]
    version = uuid.uuid4()
    session = watched()
    wanted = [*tags, Version(version)]
    done = entities.merge(session, Post, 1, {"text": "b"}, if_match=wanted, idempotency=AGAIN)
    session.commit()
    turned = wanted[::-1]
    told = once(entities.merge, Post, 1, {"text": "b"}, if_match=turned, idempotency=AGAIN)
    assert (told, told.again) == (done, True)
    with pytest.raises(PreconditionFailed):
        once(entities.merge, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)


def test_of_a_star_nothing_is_known_and_no_version_comes_back(first, once):
    """Otherwise a tag of the first sending would be good for what was stored after it."""
    made = []
    for _ in range(2):
        done = once(entities.merge, Post, 1, {"text": "b"}, if_match="*", idempotency=AGAIN)
        made.append(done.version)
        assert not done.again
    assert made[0] != made[1]


def test_ignored_columns_alone_are_written_again_and_the_tag_stays(first, once, stored):
    for _ in range(2):
        done = once(entities.merge, Post, 1, {"visits": 3}, if_match=first, idempotency=AGAIN)
        assert (done.etag, done.again) == (first, False)
    assert stored(Post, 1)["visits"] == 3


def test_what_was_rolled_back_is_written(first, watched, stored):
    session = watched()
    lost = entities.merge(session, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    session.rollback()
    done = entities.merge(session, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    session.commit()
    assert (done, done.again) == (lost, False)
    assert stored(Post, 1)["text"] == "b"


def test_an_object_of_the_session_shows_what_is_stored(first, watched, engine):
    session = watched(expire_on_commit=False)
    mine = session.get_one(Post, 1)
    with Session(engine) as theirs, theirs.begin():
        entities.merge(theirs, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    session.commit()
    entities.merge(session, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    assert mine.text == "b"
    mine.text = "c"
    session.commit()


def test_no_other_tag_is_tried(first, once, engine):
    """A tag of another row stands for no version, so nothing is written and nothing known."""
    again = {"if_match": '"AAAAAAAA.1"', "idempotency": AGAIN}
    for _ in range(2):
        with pytest.raises(PreconditionFailed):
            once(entities.merge, Post, 1, {"text": "b"}, **again)


# -- insert ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("star", ["*", None])
def test_a_new_row_is_stored_once(tables, once, watched, stored, engine, star):
    """The row has a value that is to be unique, besides."""
    tables(Post)
    answers, sent = [], []
    for _ in range(2):
        session = watched()
        session.connection()
        with count_statements(engine) as counted:
            answers.append(
                entities.insert(
                    session, Post, 1, {"title": "a"}, if_none_match=star, idempotency=AGAIN
                )
            )
        sent.append(counted.count)
        session.commit()
    assert answers[0] == answers[1]
    assert [one.again for one in answers] == [False, True]
    assert sent[0] == 1
    for other in ({"values": {"title": "a", "text": "c"}}, {"again": with_(AGAIN, header="x")}):
        values, again = other.get("values", {"title": "a"}), other.get("again", AGAIN)
        with pytest.raises(AlreadyExists) as caught:
            once(entities.insert, Post, 1, values, if_none_match=star, idempotency=again)
        assert (caught.value.status, caught.value.etag) == (412 if star else 409, answers[0].etag)
    once(entities.insert_or_merge, Post, 2, {"title": "b"}, if_none_match="*", idempotency=AGAIN)


def test_a_new_row_that_others_have_edited_is_there_already(tables, once, other, stored):
    tables(Post)
    once(entities.insert, Post, 1, {"title": "a"}, idempotency=AGAIN)
    other(Post, 1, text="theirs")
    with pytest.raises(AlreadyExists):
        once(entities.insert, Post, 1, {"title": "a"}, idempotency=AGAIN)
    assert stored(Post, 1)["text"] == "theirs"


def test_the_server_makes_the_same_key_for_the_same_request(tables, once):
    tables(Comment)
    rotated = with_(AGAIN, keys=[NEW, OLD])
    done = once(entities.insert, Comment, None, {"text": "a"}, idempotency=AGAIN)
    assert done.identity == (AGAIN.key_for(Comment),)
    for again in (AGAIN, rotated):
        told = once(entities.insert, Comment, None, {"text": "a"}, idempotency=again)
        assert (told, told.again) == (done, True)
    told = once(entities.insert, Comment, AGAIN.key_for(Comment), {"text": "a"}, idempotency=AGAIN)
    assert told == done
    with pytest.raises(AlreadyExists):
        once(entities.insert, Comment, None, {"text": "b"}, idempotency=AGAIN)
    for other in (
        with_(AGAIN, header="x"),
        with_(AGAIN, principal="bob"),
        with_(AGAIN, header=None),
    ):
        made = once(entities.insert, Comment, None, {"text": "a"}, idempotency=other)
        assert made.identity != done.identity
        assert not made.again
    acme = ETags(tenant="acme")
    made = once(entities.insert, Comment, None, etags=acme, idempotency=AGAIN)
    assert made.identity == (AGAIN.key_for(Comment, tenant="acme"),) != done.identity


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("header", ['"5b0a"', None])
def test_a_key_that_the_database_makes_would_be_another_one(tables, once, engine, header):
    tables(Numbered)
    again = with_(AGAIN, header=header)
    with count_statements(engine) as sent, pytest.raises(ConfigurationError, match="second row"):
        once(entities.insert, Numbered, None, {"text": "a"}, idempotency=again)
    assert sent.count == 0
    once(entities.insert, Numbered, 7, {"text": "a"}, idempotency=again)


# -- the others ------------------------------------------------------------------------------------


def test_a_row_that_is_gone_is_not_found(first, once):
    once(entities.delete, Post, 1, if_match=first, idempotency=AGAIN)
    with pytest.raises(NotFound):
        once(entities.delete, Post, 1, if_match=first, idempotency=AGAIN)


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("write", [entities.insert_or_merge, entities.insert_or_replace])
def test_an_upsert_takes_none(tables, once, engine, write):
    tables(Post)
    with count_statements(engine) as sent, pytest.raises(ConfigurationError, match="last writer"):
        once(write, Post, 1, {"text": "a"}, idempotency=AGAIN)
    assert sent.count == 0


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("header", ['"5b0a"', None])
def test_only_random_versions_can_be_made_of_a_request(tables, once, engine, header):
    again = with_(AGAIN, header=header)
    for name in sorted({*KINDS} - {"Unique", "Xmin"}):
        cls = KINDS[name]
        with count_statements(engine) as sent:
            with pytest.raises(ConfigurationError, match=r"Unique\(\)"):
                once(entities.insert, cls, 1, {"title": "a"}, idempotency=again)
            with pytest.raises(ConfigurationError, match=r"Unique\(\)"):
                once(entities.merge, cls, 1, if_match="*", idempotency=again)
        assert sent.count == 0


@pytest.mark.engines("sqlite-wal")
def test_values_without_a_lasting_text_are_refused_before_anything_is_sent(first, once, engine):
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value, kind in ((object(), ConfigurationError), (deep, BadEntity)):
        with count_statements(engine) as sent, pytest.raises(kind):
            once(entities.merge, Post, 1, {"text": value}, if_match=first, idempotency=AGAIN)
        assert sent.count == 0


@pytest.mark.engines("sqlite-wal")
def test_nobody_tells_such_a_version_from_a_random_one(first, watched):
    made = _version_of(watched, first)
    assert (made.version, made.variant) == (4, uuid.RFC_4122)


# -- around it -------------------------------------------------------------------------------------


def test_what_has_written_the_row_twice_is_not_known(first, watched):
    """The version that the operation has made is not the one that is stored."""
    session = watched()
    entities.merge(session, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)
    session.get_one(Post, 1).title = "besides"
    session.commit()
    with pytest.raises(PreconditionFailed):
        entities.merge(session, Post, 1, {"text": "b"}, if_match=first, idempotency=AGAIN)


@dataclass(frozen=True)
class Titled(Condition):
    """The title must still be the one of the beginning."""

    column: Any

    def clause(self, given: Any) -> Any:
        return self.column == given("title", self.column.type)

    def explain(self, entry: Any) -> Exception:
        return LookupError(entry.database["title"])


@dataclass(frozen=True)
class TitleOf(Demand):
    values: Mapping[str, Any]

    def on(self, mapper: Any) -> Condition | None:
        return Titled(mapper.columns.title)


def test_what_the_session_demands_is_not_asked_again_of_what_is_stored(first, watched, stored):
    for again in (False, True):
        session = watched()
        demand(session, TitleOf({"title": "a"}))
        values = {"title": "b"}
        done = entities.merge(session, Post, 1, values, if_match=first, idempotency=AGAIN)
        session.commit()
        assert done.again is again
        version = done.version
    session = watched()
    demand(session, TitleOf({"title": "a"}))
    with pytest.raises(LookupError):
        entities.merge(session, Post, 1, {"text": "c"}, if_match=done.etag, idempotency=AGAIN)
    session.rollback()
    assert stored(Post, 1)["version"] == version


@pytest.mark.anyio
async def test_async_sessions_know_it_again(async_engine: AsyncEngine, async_tables: Any) -> None:
    async_tables(Post, Comment)
    async with AsyncSession(async_engine) as session, session.begin():
        first = await asyncio.insert(session, Post, 1, {"text": "a"})
    told = []
    for _ in range(2):
        async with AsyncSession(async_engine) as session, session.begin():
            told += [
                await asyncio.insert(session, Comment, None, {"text": "a"}, idempotency=AGAIN),
                await asyncio.replace(session, Post, 1, if_match=first.etag, idempotency=AGAIN),
            ]
    assert told[:2] == told[2:]
    assert [one.again for one in told] == [False, False, True, True]
