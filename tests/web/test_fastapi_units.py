"""FastAPI and one unit of work a request: where it is entered and left, and who finds it."""

# No annotations from the future: FastAPI reads those of local names.
import asyncio
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import pytest
from fastapi import FastAPI, HTTPException
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConcurrencyError, Isolation, UnitOfWork, client_wins
from optilock.unit import Part
from optilock.web.fastapi import install, unit
from tests.applications import pages
from tests.applications.pages import Base, Page


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Engine]:
    """One connection, for which nobody waits long."""
    url = f"sqlite:///{tmp_path / 'pages.db'}"
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=5)
    Base.metadata.create_all(engine)
    pages.fill(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    return sessionmaker(engine)


def application() -> FastAPI:
    app = FastAPI()
    install(app)
    return app


async def asked(app: FastAPI) -> int:
    """The status of a GET of ``/``."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [],
    }
    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


def is_in_loop() -> bool:
    return asyncio._get_running_loop() is not None


class Connecting(Part):
    """A part of an application, which waits for the database when the unit begins."""

    def begin(self, session: Session) -> None:
        assert not is_in_loop()
        session.get_bind().engine.connect().close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"on_conflict": client_wins},
        {"isolation": Isolation.SERIALIZABLE},
        {"isolation": Isolation.REPEATABLE_READ, "read_only": True},
        {"verify_reads": True},
        {"propagation": "savepoint"},
        {"propagation": "independent"},
        {"parts": [Connecting()]},
    ],
    ids=lambda options: "+".join(options) or "none",
)
def test_only_what_may_wait_is_entered_and_all_is_left_in_a_thread(
    engine: Engine, options: Any
) -> None:
    entered, left, connected = [], [], []

    class Noted(Session):
        def __init__(self, *args: Any, **given: Any) -> None:
            super().__init__(*args, **given)
            entered.append(is_in_loop())

        def close(self) -> None:
            left.append(is_in_loop())
            super().close()

    app = application()

    @app.get("/")
    def read(
        session: Annotated[Session, unit(sessionmaker(engine, class_=Noted), **options)],
    ) -> None:
        connected.append(engine.pool.checkedout())  # type: ignore[attr-defined]
        session.get_one(Page, 1)

    assert asyncio.run(asked(app)) == 200
    waits = "parts" in options
    assert (entered, connected, left[-1]) == ([not waits], [0], False)
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_other_unit_of_the_request_joins_it(
    sessions: sessionmaker[Session], asynchronous: bool
) -> None:
    app, found = application(), []
    own, other = unit(sessions), unit(sessions, read_only=True)

    def units(session: Session, read_only: Session) -> None:
        with UnitOfWork(sessions) as inner:
            found.append(len({session, read_only, inner}))

    if asynchronous:

        @app.get("/")
        async def run(one: Annotated[Session, own], two: Annotated[Session, other]) -> None:
            units(one, two)

    else:

        @app.get("/")
        def run_in_thread(one: Annotated[Session, own], two: Annotated[Session, other]) -> None:
            units(one, two)

    assert asyncio.run(asked(app)) == 200
    assert found == [3]


@pytest.mark.parametrize("raised", [HTTPException(418), ConcurrencyError(), KeyError("of ours")])
def test_what_is_raised_rolls_back_and_comes_out_as_it_is(
    engine: Engine, sessions: sessionmaker[Session], raised: Exception
) -> None:
    app, before = application(), pages.stored(engine)

    @app.get("/")
    def change(session: Annotated[Session, unit(sessions)]) -> None:
        session.get_one(Page, 1).title = "Lost"
        session.flush()
        raise raised

    if isinstance(raised, KeyError):
        with pytest.raises(KeyError, match="of ours"):
            asyncio.run(asked(app))
    else:
        assert asyncio.run(asked(app)) == (418 if isinstance(raised, HTTPException) else 409)
    assert pages.stored(engine) == before


@pytest.mark.anyio
async def test_a_client_that_goes_away_does_not_interrupt_commit(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    app, committing, gone = application(), threading.Event(), threading.Event()

    @app.get("/")
    def change(session: Annotated[Session, unit(sessions)]) -> None:
        session.get_one(Page, 1).title = "Stored"

    @event.listens_for(engine, "commit")
    def commit(_: Any) -> None:
        committing.set()
        assert gone.wait(60)

    async with anyio.create_task_group() as group:
        group.start_soon(asked, app)
        assert await anyio.to_thread.run_sync(committing.wait, 60)
        group.cancel_scope.cancel()
        gone.set()
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert pages.stored(engine)[0][1:].count("Stored") == 1


@pytest.mark.anyio
async def test_a_client_that_goes_away_before_is_rolled_back(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    """Also by a FastAPI that leaves it to its dependencies."""
    before, dependency = pages.stored(engine), unit(sessions).dependency

    async def request(flushed: anyio.Event) -> None:
        async with asynccontextmanager(dependency)() as session:
            session.get_one(Page, 1).title = "Lost"
            session.flush()
            flushed.set()
            await anyio.sleep_forever()

    flushed = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(request, flushed)
        await flushed.wait()
        group.cancel_scope.cancel()
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert pages.stored(engine) == before


def test_leaving_waits_for_no_thread_of_those_who_wait_for_its_connection(
    sessions: sessionmaker[Session],
) -> None:
    app = application()

    @app.get("/")
    def read(session: Annotated[Session, unit(sessions)]) -> None:
        session.get_one(Page, 1)

    async def many() -> list[int]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        return await asyncio.gather(*(asked(app) for _ in range(6)))

    assert asyncio.run(many()) == [200] * 6
