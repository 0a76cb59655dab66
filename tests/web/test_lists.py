"""ETags of lists: 304 without a look at the rows, and POSTs that store if the list is unchanged."""

# No annotations from the future: the frameworks read those of local names.
import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Annotated, Any

import litestar
import pytest
from fastapi import FastAPI
from fastapi import Response as FastAPIResponse
from flask import Flask
from flask import Response as FlaskResponse
from litestar.di import NamedDependency
from litestar.params import FromPath
from sqlalchemy import Engine, event, func, select
from sqlalchemy.orm import Session, sessionmaker
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from optilock import UnitOfWork, etag_of, watch
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.tables.names import scopes
from optilock.web import fastapi as on_fastapi
from optilock.web import litestar as on_litestar
from optilock.web.conditions import STRICT, Conditions, Policy
from optilock.web.flask import Optilock
from optilock.web.flask import not_modified as flask_not_modified
from optilock.web.starlette import (
    ConditionalRequests,
    conditions_of,
    exception_handlers,
    not_modified,
)
from tests.support.rooms import ALL, EIGHT, Base, Booking, Room
from tests.support.serving import Answer, asgi, ask, wsgi

SIGNED = ETags(keys=["k" * 32])
KEYS = itertools.count(10)


def bookings(session: Session, room: int) -> list[Booking]:
    return list(session.scalars(select(Booking).where(Booking.room_id == room)))


def show(session: Session, asked: Conditions, room: int) -> tuple[str, str | None]:
    """Return the tag and the text of a list; no text if the client has it."""
    tag = asked.tag_of(session, Booking.scope(room_id=room))
    if asked.not_modified(tag):
        return tag, None
    return tag, ",".join(str(one.id) for one in bookings(session, room))


def book(session: Session, asked: Conditions, room: int) -> None:
    asked.expect(session, Booking.scope(room_id=room))
    session.add(Booking(id=next(KEYS), room_id=room))


class Options:
    def __init__(self, etags: ETags = PLAIN, policy: Policy = STRICT) -> None:
        self.etags, self.policy = etags, policy


def fastapi_app(sessions: sessionmaker[Session], options: Options) -> FastAPI:
    app = FastAPI()
    on_fastapi.install(app, etags=options.etags, policy=options.policy)
    db = Annotated[Session, on_fastapi.unit(sessions)]

    @app.get("/rooms/{room}/bookings")
    def read(room: int, session: db, asked: on_fastapi.Conditions) -> Any:
        tag, text = show(session, asked, room)
        if text is None:
            return on_fastapi.not_modified(tag)
        return FastAPIResponse(text, headers={"ETag": tag})

    @app.post("/rooms/{room}/bookings", status_code=201)
    def add(room: int, session: db, asked: on_fastapi.Conditions) -> None:
        book(session, asked, room)

    @app.post("/rooms/{room}/forgotten", status_code=201)
    def forgotten(room: int, session: db) -> None:
        session.add(Booking(id=99, room_id=room))

    return app


def flask_app(sessions: sessionmaker[Session], options: Options) -> Flask:
    app = Flask(__name__)
    optilock = Optilock(app, etags=options.etags, policy=options.policy)

    @app.get("/rooms/<int:room>/bookings")
    def read(room: int) -> FlaskResponse:
        with UnitOfWork(sessions) as session:
            tag, text = show(session, optilock.conditions(), room)
        if text is None:
            return flask_not_modified(tag)
        return FlaskResponse(text, headers={"ETag": tag})

    @app.post("/rooms/<int:room>/bookings")
    def add(room: int) -> FlaskResponse:
        asked = optilock.conditions()
        with UnitOfWork(sessions) as session:
            book(session, asked, room)
        return FlaskResponse(status=201)

    return app


def starlette_app(sessions: sessionmaker[Session], options: Options) -> Starlette:
    def in_unit(act: Callable[..., Any], *given: Any) -> Any:
        with UnitOfWork(sessions) as session:
            return act(session, *given)

    async def read(request: Request) -> Response:
        asked = conditions_of(request, etags=options.etags, policy=options.policy)
        tag, text = await run_in_threadpool(in_unit, show, asked, request.path_params["room"])
        return not_modified(tag) if text is None else Response(text, headers={"ETag": tag})

    async def add(request: Request) -> Response:
        asked = conditions_of(request, etags=options.etags, policy=options.policy)
        await run_in_threadpool(in_unit, book, asked, request.path_params["room"])
        return Response(status_code=201)

    path = "/rooms/{room:int}/bookings"
    return Starlette(
        routes=[Route(path, read), Route(path, add, methods=["POST"])],
        middleware=[Middleware(ConditionalRequests)],
        exception_handlers=exception_handlers(etags=options.etags),  # type: ignore[arg-type]
    )


def litestar_app(sessions: sessionmaker[Session], options: Options) -> litestar.Litestar:
    @litestar.get("/rooms/{room:int}/bookings")
    async def read(
        room: FromPath[int], session: NamedDependency[Session], conditions: on_litestar.Conditions
    ) -> litestar.Response[Any]:
        tag, text = await asyncio.to_thread(show, session, conditions, room)
        if text is None:
            return on_litestar.not_modified(tag)
        return litestar.Response(text, headers={"ETag": tag})

    @litestar.post("/rooms/{room:int}/bookings")
    async def add(
        room: FromPath[int], session: NamedDependency[Session], conditions: on_litestar.Conditions
    ) -> None:
        await asyncio.to_thread(book, session, conditions, room)

    return litestar.Litestar(
        [read, add],
        plugins=[on_litestar.OptilockPlugin(etags=options.etags, policy=options.policy)],
        dependencies={"session": on_litestar.unit(sessions)},
    )


Serve = Callable[[Engine, Options], AbstractContextManager[int]]
SERVED: dict[str, Serve] = {
    "fastapi": lambda engine, options: asgi(fastapi_app(watched(engine), options)),
    "flask": lambda engine, options: wsgi(flask_app(watched(engine), options)),
    "starlette": lambda engine, options: asgi(starlette_app(watched(engine), options)),
    "litestar": lambda engine, options: asgi(litestar_app(watched(engine), options)),
}
in_all = pytest.mark.parametrize("serve", SERVED.values(), ids=SERVED)
in_one = pytest.mark.parametrize("serve", [SERVED["flask"]], ids=["flask"])
one_engine = pytest.mark.engines("sqlite-wal")


def watched(engine: Engine) -> sessionmaker[Session]:
    return watch(sessionmaker(engine))


@pytest.fixture
def rooms(engine: Engine) -> Iterator[Engine]:
    Base.metadata.create_all(engine)
    scopes.create(engine, checkfirst=True)
    with watched(engine)() as session, session.begin():
        session.add_all([Room(id=7), Room(id=8)])
        session.flush()
        session.add_all([Booking(id=1, room_id=7), Booking(id=2, room_id=8)])
    yield engine
    scopes.drop(engine)
    Base.metadata.drop_all(engine)


def get(port: int, room: int = 7, **fields: str) -> Answer:
    lines = [(name.replace("_", "-"), value) for name, value in fields.items()]
    return ask(port, "GET", f"/rooms/{room}/bookings", lines)


def post(port: int, room: int = 7, **fields: str) -> Answer:
    lines = [(name.replace("_", "-"), value) for name, value in fields.items()]
    return ask(port, "POST", f"/rooms/{room}/bookings", lines, {})


def stored(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(Booking)) or 0


@in_all
@one_engine
def test_an_unchanged_list_is_304_without_a_look_at_its_rows(serve: Serve, rooms: Engine) -> None:
    with serve(rooms, Options()) as port:
        first = get(port)
        assert (first.status, first.content) == (200, b"1")
        sent: list[str] = []

        def note(_c: Any, _u: Any, statement: str, *_: Any) -> None:
            sent.append(statement)

        event.listen(rooms, "before_cursor_execute", note)
        known = get(port, If_None_Match=first.headers["etag"])
        assert (known.status, known.headers["etag"]) == (304, first.headers["etag"])
        assert len(sent) == 1
        assert "FROM optilock_scopes" in sent[0]
        event.remove(rooms, "before_cursor_execute", note)

        assert post(port, 8, If_Match=get(port, 8).headers["etag"]).status == 201
        assert get(port, If_None_Match=first.headers["etag"]).status == 304
        assert post(port, If_Match=first.headers["etag"]).status == 201
        after = get(port, If_None_Match=first.headers["etag"])
        assert (after.status, after.content.count(b",")) == (200, 1)


@in_all
@one_engine
def test_a_post_stores_if_the_list_is_unchanged(serve: Serve, rooms: Engine) -> None:
    with serve(rooms, Options()) as port:
        tag = get(port).headers["etag"]
        assert post(port).status == 428
        assert post(port, If_Match=tag).status == 201
        late = post(port, If_Match=tag)
        assert late.status == 412
        assert late.problem["type"] == "urn:optilock:precondition-failed"
        now = get(port).headers["etag"]
        assert late.problem["etag"] == late.headers["etag"] == now != tag
        assert get(port, If_Match=tag).status == 412
    assert stored(rooms) == 3


@in_one
@one_engine
@pytest.mark.parametrize("options", [Options(), Options(SIGNED)], ids=["plain", "signed"])
def test_other_tags_do_not_fit_a_list(serve: Serve, rooms: Engine, options: Options) -> None:
    with Session(rooms) as session:
        row = options.etags.of(session.get_one(Booking, 1))
        others = [options.etags.of(session, one) for one in (EIGHT, ALL)]
        plain = etag_of(session, Booking.scope(room_id=7))
        null = options.etags.of(session, Booking.scope(room_id=None))
        tenant = ETags(tenant="acme").of(session, Booking.scope(room_id=7))
    digest, _, _ = options.etags.of_scope(Booking.scope(room_id=7)).tag("1-0").partition(".")
    forged = [f'{digest}.{other}"' for other in ("1", "01-0", "1-0-0", "-1-0", "9" * 20 + "-0")]
    with serve(rooms, options) as port:
        own = get(port).headers["etag"]
        assert (own == plain) == (options.etags is PLAIN)
        refused = [row, *others, null, tenant, *forged, f"W/{own}", '"x"']
        refused += [] if options.etags is PLAIN else [plain]
        for tag in refused:
            assert post(port, If_Match=tag).status == 412, tag
        assert post(port, If_Match=f"{row}, {own}").status == 201
    with UnitOfWork(watched(rooms)) as session:
        assert (stored(rooms), session.get_one(Booking, 1).hour) == (3, 0)


@in_one
@one_engine
def test_conditions_that_name_no_version(serve: Serve, rooms: Engine) -> None:
    with serve(rooms, Options()) as port:
        for malformed in ("x", '"', '"a" "b"', "*, *", ""):
            assert post(port, If_Match=malformed).status == 400, malformed
        assert post(port, If_None_Match="*").status == 412  # a list is always there
        assert post(port, If_Unmodified_Since="Thu, 01 Jan 2026 00:00:00 GMT").status == 428
        assert post(port, If_Match="*").status == 201
        assert get(port, If_None_Match="*").status == 304
        assert get(port, 9).status == 200  # no row of the scope, and no version yet
        tag = get(port, 9).headers["etag"]
        assert get(port, 9, If_None_Match=tag).status == 304
    assert stored(rooms) == 3
    with serve(rooms, Options(policy=Policy(allow_star=False))) as port:
        assert post(port, If_Match="*").status == 428
    with serve(rooms, Options(policy=Policy(require=None))) as port:
        tag = get(port).headers["etag"]
        assert post(port, If_None_Match=tag).status == 412
        assert post(port, If_Unmodified_Since="Thu, 01 Jan 2026 00:00:00 GMT").status == 201
        assert post(port, If_None_Match=tag).status == 201
        assert post(port).status == 201
    assert stored(rooms) == 6


@one_engine
def test_a_post_that_compares_nothing_stores_nothing(rooms: Engine) -> None:
    with asgi(fastapi_app(watched(rooms), Options())) as port:
        tag = get(port).headers["etag"]
        answer = ask(port, "POST", "/rooms/7/forgotten", [("If-Match", tag)], {})
    assert (answer.status, stored(rooms)) == (501, 2)


def race(port: int, rounds: int) -> None:
    """Eight clients that have seen the same list: one of them stores."""
    with ThreadPoolExecutor(8) as clients:
        for _ in range(rounds):
            tag = get(port).headers["etag"]
            answers = clients.map(lambda _: post(port, If_Match=tag), range(8))  # noqa: B023
            found = [one.status for one in answers]
            assert found.count(201) == 1, found
            assert set(found) <= {201, 412, 503}, found


@in_all
@one_engine
def test_one_of_eight_clients_adds_to_a_list(serve: Serve, rooms: Engine) -> None:
    with serve(rooms, Options()) as port:
        race(port, 2)
    assert stored(rooms) == 4


@pytest.mark.full
@pytest.mark.parametrize("serve", [SERVED["fastapi"], SERVED["flask"]], ids=["fastapi", "flask"])
@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_one_of_eight_clients_adds_to_a_list_in_each_of_many_rounds(
    serve: Serve, rooms: Engine, tries: Any
) -> None:
    rounds = tries(0, 30, 100)
    with serve(rooms, Options()) as port:
        race(port, rounds)
    assert stored(rooms) == 2 + rounds
