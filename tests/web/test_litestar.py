"""Litestar: who is asked first, errors in groups, sessions in threads, and what OpenAPI says."""

# No annotations from the future: Litestar reads those of local names.
import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from litestar import Litestar, Request, Response, Router, get, put
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency, Provide
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConfigurationError, entities, etag_of
from optilock.errors import ConcurrencyError
from optilock.preconditions.entity_tags import ETags
from optilock.web.conditions import Policy
from optilock.web.litestar import Conditions, OptilockPlugin, conditions, unit
from tests.applications import on_litestar, pages
from tests.applications.pages import Base, Page
from tests.support.serving import asgi, ask


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'pages.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def nobody(_: ASGIConnection[Any, Any, Any, Any], __: BaseRouteHandler) -> None:
    raise NotAuthorizedException


@put("/pages", sync_to_thread=False)
def refused(data: JSONBody[dict[str, Any]], conditions: Conditions) -> None:
    raise AssertionError


@pytest.mark.parametrize("level", ["application", "router", "nowhere"])
def test_who_it_is_comes_before_what_is_demanded_and_that_before_the_body(level: str) -> None:
    here = [nobody]
    router = Router("/", route_handlers=[refused], guards=here if level == "router" else [])
    guards = here if level == "application" else []
    with asgi(Litestar([router], plugins=[OptilockPlugin()], guards=guards)) as port:
        for body in (b"{", b"\xff", [1], {"title": "x"}):
            for lines, status in (([], 428), ([("If-Match", "x")], 400)):
                answer = ask(port, "PUT", "/pages", lines, body)
                assert answer.status == (status if level == "nowhere" else 401)


def test_what_the_application_asks_before_a_request_is_still_asked() -> None:
    def closed(request: Request[Any, Any, Any]) -> Response[str] | None:
        return Response("closed", status_code=503) if "x-closed" in request.headers else None

    app = Litestar([refused], plugins=[OptilockPlugin()], before_request=closed)
    with asgi(app) as port:
        assert ask(port, "PUT", "/pages", [("X-Closed", "1")], {}).status == 503
        assert ask(port, "PUT", "/pages", [], {}).status == 428


def test_bytes_that_are_no_text_are_the_clients_fault_only_in_the_request() -> None:
    @get("/own", sync_to_thread=False)
    def own() -> str:
        return b"\xff".decode()

    @put("/form")
    async def form(request: Request[Any, Any, Any]) -> None:
        await request.form()

    body = b'--b\r\nContent-Disposition: form-data; name="title"\r\n\r\n\xff\r\n--b--\r\n'
    kind = ("Content-Type", "multipart/form-data; boundary=b")
    lines = [kind, ("Content-Length", str(len(body)))]
    with asgi(Litestar([own, form], plugins=[OptilockPlugin()])) as port:
        assert ask(port, "GET", "/own", [], None).status == 500
        assert ask(port, "PUT", "/form", lines, raw=body).status == 400


def test_a_handler_may_have_rules_of_its_own(engine: Engine) -> None:
    sessions = sessionmaker(engine)
    free = conditions(etags=ETags(tenant="acme"), policy=Policy(require=None))

    @put("/pages/{key:int}", dependencies={"conditions": free}, sync_to_thread=True)
    def change(
        key: FromPath[int],
        data: JSONBody[dict[str, Any]],
        session: NamedDependency[Session],
        conditions: Conditions,
    ) -> Response[None]:
        stored = entities.merge(session, Page, key, data, **conditions.demands)
        return Response(None, headers={"ETag": stored.etag or ""})

    tag = etag_of(pages.fill(engine))
    app = Litestar([change], plugins=[OptilockPlugin()], dependencies={"session": unit(sessions)})
    with asgi(app) as port:
        assert ask(port, "PUT", "/pages/1", [("If-Match", tag)], {"title": "x"}).status == 412
        done = ask(port, "PUT", "/pages/1", [], {"title": "Free"})
        assert done.status == 200
        again = [("If-Match", done.headers["etag"])]
        assert ask(port, "PUT", "/pages/1", again, {"title": "Again"}).status == 200


def test_an_error_of_one_of_several_dependencies_is_an_answer() -> None:
    """Litestar ends them in a group, and so does what they raise."""

    async def fails() -> Any:
        yield 1
        raise ConcurrencyError

    async def goes() -> Any:
        yield 2

    @get("/")
    async def read(one: NamedDependency[int], two: NamedDependency[int]) -> str:
        return "stored"

    given = {"one": Provide(fails), "two": Provide(goes)}
    with asgi(Litestar([read], plugins=[OptilockPlugin()], dependencies=given)) as port:
        assert ask(port, "GET", "/").problem["type"] == "urn:optilock:conflict"


@pytest.mark.parametrize(
    "error", [ConfigurationError("secret"), ExceptionGroup("secret", [OSError(), OSError()])]
)
@pytest.mark.parametrize("debug", [False, True])
def test_what_no_client_has_to_do_with_is_litestars_500(error: Exception, debug: bool) -> None:
    @get("/")
    async def read() -> None:
        raise error

    with asgi(Litestar([read], plugins=[OptilockPlugin()], debug=debug)) as port:
        answer = ask(port, "GET", "/")
    assert answer.status == 500
    assert (b"secret" in answer.content) is debug


def test_openapi_shows_the_conditions_the_tag_and_the_answers(tmp_path: Any) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'pages.db'}")
    app = on_litestar.application(async_sessionmaker(engine))
    path = app.openapi_schema.to_schema()["paths"]["/pages/{key}"]
    for method, statuses in (
        ("get", {"200", "304", "400", "404", "412"}),
        ("put", {"200", "400", "404", "409", "412", "428"}),
    ):
        sent = {one["name"] for one in path[method]["parameters"] if one["in"] == "header"}
        assert sent == {"If-Match", "If-None-Match"}
        answers = path[method]["responses"]
        assert statuses <= set(answers)
        for status in statuses - {"200", "304"}:
            assert list(answers[status]["content"]) == ["application/problem+json"]
        assert "ETag" in answers["200"]["headers"]
    asyncio.run(engine.dispose())
