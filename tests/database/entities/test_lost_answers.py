"""Answers are lost between a server and its client, who sends again, to another server.

Both servers are processes of their own, over one database. A proxy cuts the client off when the
server has answered. A trigger of the database counts what is really written.
"""

from __future__ import annotations

import http.client
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, create_engine, event, func, make_url, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import optilock.asyncio
from optilock import Versioned, entities, retry, retrying, unit_of_work
from optilock.entities import Idempotency
from optilock.errors import CommitOutcomeUnknown
from optilock.tokens import Unique
from tests.engines import Target
from tests.support.cut_line import Cut
from tests.support.cut_line import cut as cut
from tests.support.pages_server import Page, Write, lossy, prepare, serving


class Ports(NamedTuple):
    lossy: int
    second: int


class Answer(NamedTuple):
    status: int
    etag: str | None
    again: bool
    text: str


@pytest.fixture
def ports(database: Target, engine: Engine) -> Iterator[Ports]:
    prepare(engine)
    with serving(database) as (first, second), lossy(first) as line:
        line.losing.set()
        yield Ports(line.port, second)


@pytest.fixture
def numbers(tries: Callable[[int, int, int], int]) -> range:
    return range(tries(20, 50, 200))


def ask(port: int, method: str, path: str, text: str = "", **fields: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    try:
        connection.request(method, path, text, {"From": "ada", **named})
        answer = connection.getresponse()
        again = answer.headers["Again"] == "True"
        return Answer(answer.status, answer.headers["ETag"], again, answer.read().decode())
    finally:
        connection.close()


def lose(ports: Ports, *request: str, **fields: str) -> None:
    """Send the request; it is performed, and nobody learns of it."""
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        ask(ports.lossy, *request, **fields)


def request(ports: Ports, number: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """One of each method in turn; the page that it is about is there, where it has to be."""
    path, text = f"/pages/{number}", f"new {number}"
    fields = {"Idempotency_Key": f'"{uuid.uuid4()}"'}
    match number % 4:
        case 0:
            return ("POST", "/pages", text), fields
        case 1:
            return ("PUT", path, text), {**fields, "If_None_Match": "*"}
        case other:
            tag = ask(ports.second, "PUT", path, "old", If_None_Match="*").etag
            assert tag is not None
            return ("PUT" if other == 2 else "PATCH", path, text), {**fields, "If_Match": tag}


def writes(engine: Engine) -> dict[str, int]:
    """How often each text was written."""
    with Session(engine) as session:
        counted = select(Write.text, func.count()).group_by(Write.text)
        return {text: count for text, count in session.execute(counted) if text != "old"}


@pytest.mark.engines("sqlite-wal", "postgresql")
@pytest.mark.usually("postgresql")
@pytest.mark.timeout(300)
@pytest.mark.full
def test_requests_sent_again_are_stored_once_and_answered(ports, numbers, engine):
    """One test, because the processes take longer than all that is asked of them."""
    the_same_again(ports, numbers, engine)
    after_anothers_edit(ports, numbers, engine)
    without_a_key_of_the_client(ports)
    deletes(ports)


def the_same_again(ports: Ports, numbers: range, engine: Engine) -> None:
    tags: dict[str, str] = {}
    for number in numbers:
        given, fields = request(ports, number)
        lose(ports, *given, **fields)
        answer = ask(ports.second, *given, **fields)
        assert (answer.status, answer.again) == (204, True)
        tags[given[-1]] = str(answer.etag)
    assert writes(engine) == {f"new {number}": 1 for number in numbers}
    with Session(engine) as session:
        stored = {page.text: page.version.hex for page in session.query(Page)}
    assert {text: tag[1:-1].partition(".")[2] for text, tag in tags.items()} == stored


def after_anothers_edit(ports: Ports, numbers: range, engine: Engine) -> None:
    asked = [number + 1_000 for number in numbers if number % 4 in (2, 3)]
    for number in asked:
        given, fields = request(ports, number)
        lose(ports, *given, **fields)
        tag = ask(ports.second, "GET", given[1]).etag
        edit = ask(ports.second, "PATCH", given[1], "theirs", If_Match=str(tag), From="bob")
        assert edit.status == 204
        assert ask(ports.second, *given, **fields).status == 412
        assert ask(ports.second, "GET", given[1]).text == "theirs"
    written = writes(engine)
    assert {f"new {number}": written[f"new {number}"] for number in asked} == {
        f"new {number}": 1 for number in asked
    }
    assert written["theirs"] == len(asked)


def without_a_key_of_the_client(ports: Ports) -> None:
    """As it always was; and what is no key is said."""
    given, fields = request(ports, 2_003)
    del fields["Idempotency_Key"]
    lose(ports, *given, **fields)
    assert ask(ports.second, *given, **fields).status == 412
    assert ask(ports.second, *given, **fields, Idempotency_Key='"x').status == 400


def deletes(ports: Ports) -> None:
    (_, path, *_), fields = request(ports, 3_003)
    lose(ports, "DELETE", path, **fields)
    assert ask(ports.second, "DELETE", path, **fields).status == 404


# -- between the program and its database ----------------------------------------------------------


@pytest.mark.needs("server")
def test_a_unit_whose_commit_was_not_answered_may_be_run_again(tables, database, stored):
    """The work is the same each time: so it knows again what it has stored."""
    tables(Page)
    url, key = make_url(database.url), uuid.uuid4()
    with lossy(url.port or 0) as line:
        engine = create_engine(url.set(host="127.0.0.1", port=line.port))
        sessions = sessionmaker(engine)
        told = []

        @unit_of_work(sessions, retry=retrying(on=CommitOutcomeUnknown))
        def work(session: Session) -> None:
            line.losing.clear()
            again = Idempotency("5b0a", keys=["a secret of the server"], principal="job")
            told.append(entities.insert(session, Page, key, {"text": "a"}, idempotency=again))
            if len(told) == 1:
                event.listen(session, "before_commit", lambda _: line.losing.set())

        work()
        engine.dispose()
    assert [one.again for one in told] == [False, True]
    assert stored(Page, key)["version"] == told[0].version


# -- a connection in AUTOCOMMIT mode ---------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Leaf(Versioned, Base):
    __tablename__ = "lost_leaves"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str | None]


FIRST = uuid.UUID(int=1)
SEEN: Any = entities.Version(FIRST)
OPERATIONS: dict[str, tuple[bytes, Callable[..., object]]] = {
    "insert": (b"INSERT", lambda s, **o: entities.insert(s, Leaf, 2, {"title": "new"}, **o)),
    "replace": (
        b"UPDATE",
        lambda s, **o: entities.replace(s, Leaf, 1, {"title": "new"}, if_match=SEEN, **o),
    ),
    "merge": (
        b"UPDATE",
        lambda s, **o: entities.merge(s, Leaf, 1, {"title": "new"}, if_match=SEEN, **o),
    ),
    "delete": (b"DELETE", lambda s, **o: entities.delete(s, Leaf, 1, if_match=SEEN, **o)),
    "insert_or_replace": (
        b"INSERT",
        lambda s, **o: entities.insert_or_replace(s, Leaf, 2, {"title": "new"}, **o),
    ),
    "insert_or_merge": (
        b"INSERT",
        lambda s, **o: entities.insert_or_merge(s, Leaf, 1, {"title": "new"}, **o),
    ),
}


@pytest.fixture
def leaves(tables: Any, engine: Engine, cut: Cut) -> Iterator[sessionmaker[Session]]:
    """One row; the sessions are over a line that can be cut, in AUTOCOMMIT mode."""
    tables(Leaf)
    with engine.begin() as connection:
        connection.execute(Leaf.__table__.insert(), {"id": 1, "title": "old", "version": FIRST})
    made = create_engine(
        cut.url, isolation_level="AUTOCOMMIT", connect_args={"prepare_threshold": None}
    )
    with made.connect():
        pass
    yield sessionmaker(made)
    made.dispose()


def titles(engine: Engine) -> list[str | None]:
    with Session(engine) as session:
        return list(session.scalars(select(Leaf.title).order_by(Leaf.id)))


def again(sessions: sessionmaker[Session], do: Callable[..., Any], **options: Any) -> Any:
    @retry(attempts=3, wait_initial=0)
    def run() -> Any:
        with sessions() as session:
            return do(session, **options)

    return run()


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("passes", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_whose_answer_is_lost_is_not_told_as_refused(
    engine, leaves, cut, name, passes
):
    """G5: run again it was 412, 409 or 404, although it is our own write that is stored."""
    before = titles(engine)
    at, do = OPERATIONS[name]
    cut.passes, cut.at = passes, at
    with pytest.raises(CommitOutcomeUnknown, match="Leaf"):
        again(leaves, do)
    assert (titles(engine) != before) is passes


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("passes", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("name", ["insert", "replace", "merge"])
def test_one_that_is_known_again_by_its_version_is_run_again(engine, leaves, cut, name, passes):
    """G5."""
    at, do = OPERATIONS[name]
    known = Idempotency('"a"', keys=["0123456789abcdef"], principal="ada")
    cut.passes, cut.at = passes, at
    stored = again(leaves, do, idempotency=known)
    assert stored.again is passes
    assert "new" in titles(engine)


@pytest.mark.engines("postgresql")
def test_in_a_transaction_it_is_run_again_as_ever(engine, leaves, cut):
    """G5: the other side of the same question."""
    made = leaves.kw["bind"].execution_options(isolation_level="READ COMMITTED")

    @retry(attempts=2, wait_initial=0)
    def merge() -> None:
        with Session(made) as session, session.begin():
            OPERATIONS["merge"][1](session)

    cut.passes, cut.at = True, b"UPDATE"
    merge()
    assert titles(engine) == ["new"]


@pytest.mark.engines("postgresql")
@pytest.mark.anyio
async def test_an_async_operation_whose_answer_is_lost_is_not_told_as_refused(engine, leaves, cut):
    """G5."""

    made = create_async_engine(
        cut.url, isolation_level="AUTOCOMMIT", connect_args={"prepare_threshold": None}
    )

    @retry(attempts=2, wait_initial=0)
    async def merge() -> None:
        async with AsyncSession(made) as session:
            given: Any = {"title": "new"}
            await optilock.asyncio.merge(session, Leaf, 1, given, if_match=SEEN)

    cut.passes, cut.at = True, b"UPDATE"
    with pytest.raises(CommitOutcomeUnknown):
        await merge()
    await made.dispose()
    assert titles(engine) == ["new"]
