"""Answers are lost between a server and its client, who sends again, to another server.

Both servers are processes of their own, over one database. A proxy cuts the client off when the
server has answered. A trigger of the database counts what is really written.
"""

from __future__ import annotations

import http.client
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from sqlalchemy import Engine, create_engine, event, func, make_url, select
from sqlalchemy.orm import Session, sessionmaker

from optilock import CommitOutcomeUnknown, entities, unit_of_work
from optilock.entities import Idempotency
from tests.engines import Target
from tests.pages_server import Page, Write, lossy, prepare, serving


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
def numbers(pytestconfig: pytest.Config) -> range:
    return range(200 if pytestconfig.option.full else 20)


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

        @unit_of_work(sessions, on=CommitOutcomeUnknown)
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
