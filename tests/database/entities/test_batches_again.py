"""A batch that is sent again after its answer was lost is known as a whole."""

from __future__ import annotations

import uuid
from dataclasses import replace as with_
from typing import Any

import pytest
from sqlalchemy import Engine, String, create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, Session, mapped_column

from optilock import ConfigurationError, PreconditionFailed, Versioned, asyncio, entities
from optilock.entities import (
    Idempotency,
    Operation,
    delete,
    insert,
    insert_or_merge,
    merge,
    replace,
)
from optilock.errors import BadEntity, BatchFailed, NotFound
from optilock.testing import count_statements
from optilock.tokens import Unique
from tests.support.entities import Base
from tests.support.models import Account, Note

AGAIN = Idempotency("5b0a", keys=["an old secret of the server"], principal="ada")


class Piece(Versioned, Base):
    """The server chooses its key; ``visits`` neither moves the version nor conflicts."""

    __tablename__ = "ent_pieces"
    __version_token__ = Unique()
    __version_ignore__ = ("visits",)
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    text: Mapped[str | None]
    visits: Mapped[int] = mapped_column(default=0)
    name: Mapped[str | None] = mapped_column(String(20), unique=True)


@pytest.fixture
def tags(tables: Any, engine: Engine) -> list[Any]:
    """Those of the notes 0 to 4, which are there."""
    tables(Note, Piece)
    with Session(engine) as session, session.begin():
        return [entities.insert(session, Note, n, {"text": "a"}).etag for n in range(5)]


def batch(tags: list[Any]) -> list[Operation]:
    """Of each kind one; what alone would be written again, or would fail, comes first."""
    return [
        Operation(delete, Note, 0, if_match=tags[0]),
        Operation(replace, Note, 1, {"text": "b"}, if_match="*"),
        Operation(insert_or_merge, Note, 9, {"text": "b"}),
        Operation(merge, Note, 2, {"text": "b"}, if_match=tags[2]),
        Operation(insert, Piece, None, {"text": "one"}),
        Operation(insert, Piece, None, {"text": "two"}),
        Operation(replace, Note, 3, {"text": "b"}, if_match=[tags[3]]),
    ]


def sent(engine: Engine, some: list[Operation], idempotency: Any = AGAIN) -> list[Any]:
    with Session(engine) as session, session.begin():
        return entities.transaction(session, some, idempotency=idempotency)


def rows(engine: Engine) -> set[Any]:
    with Session(engine) as session:
        found = [*session.query(Note), *session.query(Piece)]
        return {(type(one).__name__, one.id, one.text, one.version) for one in found}


@pytest.mark.parametrize("begin", [0, 1, 3], ids=["delete", "star", "tag"])
def test_what_was_stored_is_told_again_and_nothing_is_written(tags, engine, begin):
    """Whether the first operation fails, is written again at first, or is known itself."""
    first = sent(engine, batch(tags)[begin:])
    assert not any(one.again for one in first)
    before = rows(engine)
    rotated = with_(AGAIN, keys=["a new secret of the server", *AGAIN.keys])
    told = sent(engine, batch(tags)[begin:], rotated)
    assert rows(engine) == before
    assert all(one.again for one in told)
    of_none = {0, 1, 2}  # a row that is gone, and rows of which the last writer wins
    for index, (one, other) in enumerate(zip(first, told, strict=True), begin):
        assert one.identity == other.identity
        etag = None if index in of_none else one.etag
        assert (other.etag, other.version) == (etag, etag and one.version)
    assert len({one.identity for one in first}) == len(first)


def test_a_secret_that_was_taken_away_recognises_no_batch(tags, engine):
    sent(engine, batch(tags))
    with pytest.raises(BatchFailed):
        sent(engine, batch(tags), with_(AGAIN, keys=["a new secret of the server"]))


def test_a_version_that_did_not_move_shows_nothing(tags, engine):
    (line,) = sent(engine, [Operation(insert, Piece, None, {"text": "one"})])
    seen = Operation(merge, Piece, line.identity, {"visits": 1}, if_match=line.etag)
    some = [seen, Operation(merge, Note, 2, {"text": "b"}, if_match=tags[2])]
    first = sent(engine, some)
    told = sent(engine, some)
    assert [one.again for one in told] == [True, True]
    assert [one.etag for one in told] == [None, first[1].etag]
    assert first[0].etag == line.etag


def test_one_row_that_nobody_has_written_since_shows_that_all_were_stored(tags, engine, other):
    first = sent(engine, batch(tags))
    other(Note, 1, text="theirs")
    other(Note, 2, text="theirs")
    for one in (4, 5):
        other(Piece, first[one].identity[0], text="theirs")
    before = rows(engine)
    told = sent(engine, batch(tags))
    assert rows(engine) == before
    assert told[2].identity == first[2].identity
    assert [one.etag for one in told][3:] == [one.etag for one in first][3:]  # as of then
    other(Note, 3, text="theirs")
    before = rows(engine)
    with pytest.raises(BatchFailed) as caught:
        sent(engine, batch(tags))
    assert (caught.value.index, caught.value.status) == (0, 404)
    with pytest.raises(BatchFailed) as caught:
        sent(engine, batch(tags)[1:])
    assert (caught.value.index, caught.value.status) == (2, 412)
    assert rows(engine) == before


def test_what_others_have_taken_since_is_no_hindrance(tags, engine, watched):
    """What is written at first, and taken back, meets their value."""
    (mine,) = sent(engine, [Operation(insert, Piece, None)])
    some = [
        Operation(replace, Piece, mine.identity, {"name": "x"}, if_match="*"),
        Operation(merge, Note, 2, {"text": "b"}, if_match=tags[2]),
    ]
    first = sent(engine, some)
    with Session(engine) as session, session.begin():
        entities.merge(session, Piece, mine.identity, {"name": "mine"}, if_match="*")
        entities.insert(session, Piece, uuid.uuid4(), {"name": "x"})
    before = rows(engine)
    assert sent(engine, some)[1] == first[1]
    assert rows(engine) == before
    with pytest.raises(IntegrityError):
        sent(engine, some, with_(AGAIN, header="another"))


def test_another_batch_with_the_same_operation_is_another_request(tags, engine):
    """Or what it has besides would be taken for stored."""
    same = Operation(merge, Note, 2, {"text": "b"}, if_match=tags[2])
    sent(engine, [same, Operation(merge, Note, 1, {"text": "b"}, if_match=tags[1])])
    before = rows(engine)
    for more in ([], [Operation(delete, Note, 3, if_match=tags[3])]):
        with pytest.raises(BatchFailed) as caught:
            sent(engine, [same, *more])
        assert isinstance(caught.value.cause, PreconditionFailed)
    with Session(engine) as session, pytest.raises(PreconditionFailed):
        entities.merge(session, Note, 2, {"text": "b"}, if_match=tags[2], idempotency=AGAIN)
    assert rows(engine) == before


def test_of_deletes_alone_nothing_is_known(tags, engine):
    some = [Operation(delete, Note, n, if_match=tags[n]) for n in (0, 1)]
    assert [one.etag for one in sent(engine, some)] == [None, None]
    with pytest.raises(BatchFailed) as caught:
        sent(engine, some)
    assert isinstance(caught.value.cause, NotFound)


def test_the_session_goes_on_and_shows_what_is_stored(tags, engine, watched):
    session = watched(expire_on_commit=False)
    seen = [session.get_one(Note, n) for n in (1, 2, 3)]
    assert [one.text for one in seen] == ["a"] * 3
    session.commit()
    sent(engine, batch(tags))
    entities.insert(session, Note, 11, {"text": "before"})
    entities.transaction(session, batch(tags), idempotency=AGAIN)
    assert [one.text for one in seen] == ["b"] * 3
    seen[0].text = "c"
    session.commit()
    assert {("Note", 1, "c"), ("Note", 11, "before")} <= {one[:3] for one in rows(engine)}


def test_the_first_sending_costs_no_statement_more(tags, engine):
    some = batch(tags)
    counts = []
    for idempotency in (None, AGAIN):
        with Session(engine) as session:
            session.connection()
            with count_statements(engine) as counted:
                entities.transaction(session, some, idempotency=idempotency)
            counts.append(counted.count)
    assert counts[0] == counts[1]


def test_without_a_key_of_the_client_nothing_is_known(tags, engine):
    silent = with_(AGAIN, header=None)
    first = sent(engine, batch(tags), silent)
    assert len({one.identity for one in first}) == len(first)
    with pytest.raises(BatchFailed):
        sent(engine, batch(tags), silent)


def test_what_cannot_be_read_is_named_before_anything_is_sent(tags, engine):
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    for values in ({"colour": 1}, {"text": deep}):
        refuse(tags, engine, Operation(merge, Note, 7, values, if_match="*"))


def refuse(tags: list[Any], engine: Engine, bad: Operation) -> None:
    with count_statements(engine) as counted, pytest.raises(BatchFailed) as caught:
        sent(engine, [*batch(tags), bad])
    assert (caught.value.index, counted.count) == (7, 0)
    assert isinstance(caught.value.cause, BadEntity)


def test_classes_whose_versions_tell_nothing_are_refused(tags, tables, engine):
    tables(Account)
    some = [Operation(insert, Account, 1, {"owner": "a"})]
    refused = pytest.raises(ConfigurationError, match=r"Unique\(\)")
    with count_statements(engine) as counted, refused as caught:
        sent(engine, [*batch(tags), *some])
    assert counted.count == 0
    assert caught.value.__notes__ == ["It was operation 7 of the transaction."]


@pytest.mark.engines("sqlite-wal")
def test_rows_of_two_databases_are_not_stored_as_one(tags, engine):
    other = create_engine("sqlite://")
    Piece.__table__.create(other)
    session = Session(binds={Note: engine, Piece: other})
    with pytest.raises(ConfigurationError, match="several databases"):
        entities.transaction(session, batch(tags), idempotency=AGAIN)
    session.close()
    other.dispose()


@pytest.mark.anyio
async def test_async_sessions_know_it_again(async_engine: AsyncEngine, async_tables: Any) -> None:
    async_tables(Note, Piece)
    async with AsyncSession(async_engine) as session, session.begin():
        tags = [(await asyncio.insert(session, Note, n, {"text": "a"})).etag for n in range(5)]
    told = []
    for _ in range(2):
        async with AsyncSession(async_engine) as session, session.begin():
            done = await asyncio.transaction(session, batch(tags), idempotency=AGAIN)
        told.append([(one.identity, one.etag) for one in done[3:]])
    assert told[0] == told[1]
    assert all(one.again for one in done)
