"""POSTs with an Idempotency-Key in FastAPI, Flask and Litestar: done once, and answered again."""

# No annotations from the future: FastAPI reads those of local names.
import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Header
from fastapi import Request as FastAPIRequest
from fastapi.responses import JSONResponse
from flask import Flask, request
from flask import Response as FlaskResponse
from litestar import Litestar, Request, Response, post
from litestar.params import JSONBody
from sqlalchemy import Engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import ConfigurationError, unit_of_work
from optilock.errors import BadEntity, BadPrecondition
from optilock.exactly_once import Once
from optilock.tables.names import commit_tokens
from optilock.web.fastapi import install, once_of
from optilock.web.flask import Optilock
from optilock.web.keys import once_of as once_of_parts
from optilock.web.litestar import OptilockPlugin
from optilock.web.litestar import once_of as once_on_litestar
from tests.support.serving import Answer, asgi, ask, wsgi

KEY = '"8e03978e-40d5-43e6"'


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders_done_once"
    id: Mapped[int] = mapped_column(primary_key=True)
    of: Mapped[str]
    goods: Mapped[str]


class Shop:
    """What the applications have in common: the unit, and a door that holds it open."""

    def __init__(self, sessions: sessionmaker[Session], wait: float) -> None:
        self.wait = wait
        self.inside, self.door = threading.Event(), threading.Event()
        self.door.set()

        @unit_of_work(sessions, exactly_once=lambda once, *_: once)
        def place(
            session: Session, once: Once | None, user: str, order: dict[str, Any]
        ) -> dict[str, Any]:
            session.add(new := Order(of=user, goods=order["goods"]))
            session.flush()
            self.inside.set()
            assert self.door.wait(60)
            return {
                "status_code": 201,
                "headers": {"Location": f"/orders/{new.id}"},
                "content": {"id": new.id, "goods": new.goods},
            }

        self.place = place


def on_fastapi(shop: Shop) -> FastAPI:
    app = FastAPI()
    install(app)

    def user_of(x_user: Annotated[str, Header()] = "ada") -> str:
        return x_user

    @app.post("/orders")
    @app.post("/other")
    def order(
        body: dict[str, Any], request: FastAPIRequest, user: Annotated[str, Depends(user_of)]
    ) -> JSONResponse:
        once = once_of(request, principal=user, of=body, wait=shop.wait)
        return JSONResponse(**shop.place(once, user, body))

    return app


def on_flask(shop: Shop) -> Flask:
    app = Flask(__name__)
    optilock = Optilock(app)

    @app.post("/orders")
    @app.post("/other")
    def order() -> FlaskResponse:
        user, body = request.headers.get("X-User", "ada"), request.get_json()
        once = optilock.once(principal=user, of=body, wait=shop.wait)
        answer = shop.place(once, user, body)
        return FlaskResponse(
            json.dumps(answer["content"]),
            answer["status_code"],
            answer["headers"],
            content_type="application/json",
        )

    return app


def on_litestar(shop: Shop) -> Litestar:
    @post(["/orders", "/other"])
    async def order(
        data: JSONBody[dict[str, Any]], request: Request[Any, Any, Any]
    ) -> Response[Any]:
        user = request.headers.get("X-User", "ada")
        once = once_on_litestar(request, principal=user, of=data, wait=shop.wait)
        return Response(**await asyncio.to_thread(shop.place, once, user, data))

    return Litestar([order], plugins=[OptilockPlugin()])


Serve = Callable[[Shop], AbstractContextManager[int]]
SERVED: dict[str, Serve] = {
    "fastapi": lambda shop: asgi(on_fastapi(shop)),
    "flask": lambda shop: wsgi(on_flask(shop)),
    "litestar": lambda shop: asgi(on_litestar(shop)),
}


@pytest.fixture
def shop(engine: Engine) -> Iterator[Shop]:
    Base.metadata.create_all(engine)
    commit_tokens.create(engine)
    yield Shop(sessionmaker(engine), 0)
    Base.metadata.drop_all(engine)


@pytest.fixture(params=["fastapi", "flask", "litestar"])
def port(request: pytest.FixtureRequest, shop: Shop) -> Iterator[int]:
    with SERVED[request.param](shop) as port:
        yield port


def order(
    port: int, goods: Any = "tea", *, key: str = KEY, user: str = "ada", path: str = "/orders"
) -> Answer:
    lines = [("Idempotency-Key", key), ("X-User", user)]
    return ask(port, "POST", path, lines, {"goods": goods})


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(Order)) or 0


servers = pytest.mark.engines("sqlite-wal", "postgresql")


@servers
def test_a_post_that_is_sent_again_gets_the_stored_answer(port: int, engine: Engine) -> None:
    first, second = order(port), order(port)
    bare = order(port, key=KEY.strip('"'))
    assert first.status == second.status == bare.status == 201
    assert first.content == second.content == bare.content
    assert first.headers["location"] == second.headers["location"]
    assert json.loads(first.content)["goods"] == "tea"
    assert count(engine) == 1


@servers
def test_the_key_of_another_principal_is_another_request(port: int, engine: Engine) -> None:
    ada, bob = order(port), order(port, user="bob")
    assert (ada.status, bob.status) == (201, 201)
    assert ada.headers["location"] != bob.headers["location"]
    assert order(port, user="bob").content == bob.content
    assert count(engine) == 2


@servers
def test_the_key_of_another_request_is_refused(port: int, engine: Engine) -> None:
    """Another body, path or query, and nothing of the first one's answer."""
    first = order(port)
    for other in (
        order(port, "gold"),
        order(port, path="/other"),
        order(port, path="/orders?for=bob"),
    ):
        assert (other.status, other.problem["type"]) == (422, "urn:optilock:key-reused")
        assert KEY.strip('"') not in other.content.decode()
    assert order(port).content == first.content
    assert count(engine) == 1


@servers
def test_a_key_in_use_is_answered_at_once(port: int, shop: Shop, engine: Engine) -> None:
    shop.door.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(order, port)
        assert shop.inside.wait(60)
        busy = order(port)
        shop.door.set()
        done = first.result()
    assert (busy.status, busy.problem["type"]) == (409, "urn:optilock:key-in-use")
    assert (busy.headers["retry-after"], done.status) == ("1", 201)
    assert order(port).content == done.content
    assert count(engine) == 1


@servers
@pytest.mark.parametrize("wait", [0, 60])
def test_eight_clients_with_one_key_get_one_answer(shop: Shop, engine: Engine, wait: float) -> None:
    """With ``wait=0`` they send it again after a 409, and with some seconds none gets one."""
    shop.wait = wait
    conflicts = []

    def client(_: int) -> tuple[int, bytes]:
        while (answer := order(port)).status == 409:
            conflicts.append(answer)
        return answer.status, answer.content

    with SERVED["fastapi"](shop) as port, ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(client, range(8)))
    assert [status for status, _ in answers] == [201]
    assert count(engine) == 1
    assert wait == 0 or conflicts == []


@pytest.mark.engines("sqlite-wal")
def test_a_key_that_is_missing_or_cannot_be_read_is_a_problem_document(
    port: int, engine: Engine
) -> None:
    wrong: list[list[str | bytes]] = [
        [], [""], ['"open'], ["two words"], ['"a", "b"'], [KEY, KEY], ["x" * 256], [b"caf\xe9"],
    ]  # fmt: skip
    for values in wrong:
        lines = [("Idempotency-Key", value) for value in values]
        answer = ask(port, "POST", "/orders", lines, {"goods": "tea"})
        assert (answer.status, answer.problem["type"]) == (400, "urn:optilock:bad-precondition")
        assert "Idempotency-Key" in answer.problem["detail"]
    assert order(port, key="x" * 255).status == 201
    assert count(engine) == 1


@pytest.mark.engines("sqlite-wal")
def test_a_request_that_failed_is_not_remembered(shop: Shop, engine: Engine) -> None:
    once = once_of_parts("POST", "/orders", KEY, principal="ada", of=b"{}")
    with pytest.raises(KeyError):
        shop.place(once, "ada", {})
    assert shop.place(once, "ada", {"goods": "tea"})["status_code"] == 201
    assert count(engine) == 1


@pytest.mark.parametrize("async_database", ["postgresql-asyncpg"], indirect=True)
def test_an_async_route_gives_its_stored_answer(async_engine: AsyncEngine) -> None:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with async_engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
            await connection.run_sync(commit_tokens.create)
        yield
        await async_engine.dispose()

    app = FastAPI(lifespan=lifespan)
    install(app)

    @unit_of_work(async_sessionmaker(async_engine), exactly_once=lambda once, goods: once)
    async def place(session: AsyncSession, once: Once | None, goods: str) -> dict[str, Any]:
        session.add(new := Order(of="ada", goods=goods))
        await session.flush()
        return {"status_code": 201, "content": {"id": new.id}}

    @app.post("/orders")
    async def post_order(body: dict[str, Any], request: FastAPIRequest) -> JSONResponse:
        once = once_of(request, principal="ada", of=body, required=False)
        return JSONResponse(**await place(once, body["goods"]))

    with asgi(app) as port:
        first, second = order(port), order(port)
        free = [ask(port, "POST", "/orders", (), {"goods": "tea"}) for _ in range(2)]
        assert order(port, "gold").problem["type"] == "urn:optilock:key-reused"
    assert [answer.status for answer in (first, second, *free)] == [201] * 4
    assert first.content == second.content
    assert len({answer.content for answer in (first, *free)}) == 3


# -- the key ---------------------------------------------------------------------------------------


def key(header: str | None = KEY, **rules: Any) -> Once | None:
    given = {"method": "POST", "path": "/orders", "principal": "ada", "of": {"a": 1}, **rules}
    return once_of_parts(header=header, **given)


def test_the_key_is_bound_to_its_principal_and_to_the_request() -> None:
    one = key()
    assert one is not None
    assert (one.key, one.wait) == (("ada", "8e03978e-40d5-43e6"), 0)
    assert key(of={"a": 1}) == one
    others: list[dict[str, Any]] = [
        {"method": "PUT"}, {"path": "/"}, {"of": {"a": True}}, {"of": {}}, {"of": b""},
        {"principal": "bob"},
    ]  # fmt: skip
    assert len({one, *(key(**other) for other in others)}) == 7


def test_a_request_without_a_key_is_refused_where_one_is_required() -> None:
    with pytest.raises(BadPrecondition, match="no Idempotency-Key") as refused:
        key(None)
    assert refused.value.status == 400
    assert key(None, required=False) is None


def test_what_cannot_be_compared_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadEntity, match="nested too deeply"):
        key(of=deep)
    with pytest.raises(ConfigurationError, match="cannot fingerprint"):
        key(of=object())
    with pytest.raises(ConfigurationError, match="principal of a key"):
        key(principal="")
    with pytest.raises(ConfigurationError, match="wait="):
        key(wait=-1)


def test_a_flask_view_of_another_application_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"once\(\) of Optilock is for views"):
        Optilock().once(principal="ada", of=b"")
