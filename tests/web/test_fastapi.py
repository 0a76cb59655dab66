"""FastAPI: who is asked first, one session a request, what OpenAPI says, and pages elsewhere."""

# No annotations from the future: FastAPI reads those of local names.
import asyncio
import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Form, HTTPException, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from optilock import ConfigurationError, entities, etag_of, expect, watch
from optilock.errors import CommitOutcomeUnknown
from optilock.preconditions.entity_tags import ETags
from optilock.web.conditions import Conditions as Asked
from optilock.web.conditions import Policy
from optilock.web.fastapi import ConditionalRoute, Conditions, conditions, install, unit
from tests.applications import on_fastapi, pages
from tests.applications.pages import Base, Page
from tests.support.serving import asgi, ask


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path_factory.mktemp('fastapi') / 'pages.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def sessions(engine: Engine) -> sessionmaker[Session]:
    return sessionmaker(engine)


# -- who is asked first ----------------------------------------------------------------------------


def nobody() -> None:
    raise HTTPException(401)


def whoever(level: str) -> FastAPI:
    """An application that knows nobody, and says so on this level."""
    here = [Depends(nobody)]
    app = FastAPI(dependencies=here if level == "application" else [])
    install(app)
    router = APIRouter(dependencies=here if level == "router" else [], route_class=ConditionalRoute)
    user = Annotated[None, Depends(nobody if level == "parameter" else lambda: None)]

    @router.put("/pages", dependencies=here if level == "route" else [])
    def put(_: user, asked: Conditions, page: Annotated[dict[str, Any], Body()]) -> None:
        raise AssertionError

    included = here if level == "inclusion" else []
    app.include_router(router, dependencies=included)
    return app


@pytest.mark.parametrize("level", ["application", "router", "inclusion", "route", "parameter"])
def test_who_it_is_comes_before_what_is_demanded_and_that_before_the_body(level: str) -> None:
    bodies = (b"{", b"\xff", b"[" * 100_000, [1], {"title": "x"})
    with asgi(whoever(level)) as port:
        for body in bodies:
            for lines in ([], [("If-Match", "x")], [("If-Match", '"x"')]):
                assert ask(port, "PUT", "/pages", lines, body).status == 401
    with asgi(whoever("nowhere")) as port:
        for body in bodies:
            assert ask(port, "PUT", "/pages", [], body).problem["status"] == 428
            assert ask(port, "PUT", "/pages", [("If-Match", "x")], body).problem["status"] == 400


def test_a_body_that_is_no_json_is_answered_as_fastapi_does() -> None:
    app, plain = whoever("nowhere"), FastAPI()

    @plain.put("/pages")
    def put(page: Annotated[dict[str, Any], Body()]) -> None: ...

    with asgi(app) as ours, asgi(plain) as theirs:
        for body in (b"{", b"\xff", b""):
            sent = [("If-Match", '"x"')]
            told = [ask(port, "PUT", "/pages", sent, body) for port in (ours, theirs)]
            assert told[0].status == told[1].status
            assert told[0].content == told[1].content


def test_forms_and_other_bodies_are_read_as_ever(engine: Engine) -> None:
    app = FastAPI()
    install(app)

    @app.put("/form")
    def put(asked: Conditions, title: Annotated[str, Form()]) -> str:
        return title

    lines = [("If-Match", '"x"'), ("Content-Type", "application/x-www-form-urlencoded")]
    with asgi(app) as port:
        lines.append(("Content-Length", "7"))
        assert ask(port, "PUT", "/form", lines, raw=b"title=a").content == b'"a"'


def test_an_application_that_was_not_installed_says_so() -> None:
    app = FastAPI()

    @app.put("/pages")
    def put(asked: Conditions) -> None: ...

    with pytest.raises(ConfigurationError, match="'/pages', which takes conditions: call"):
        install(app)
    with asgi(app) as port:
        assert ask(port, "PUT", "/pages").status == 500


def test_conditions_that_a_test_replaces_are_not_asked() -> None:
    app = FastAPI()
    install(app)
    asks = conditions()

    @app.put("/pages")
    def put(asked: Annotated[Asked, asks], page: Annotated[Any, Body()] = None) -> str:
        return asked.method

    replaced = Asked.of("PUT", [("If-Match", "*")])
    app.dependency_overrides[asks.dependency] = lambda: replaced
    with asgi(app) as port:
        assert ask(port, "PUT", "/pages").status == 200
        assert ask(port, "PUT", "/pages", [], b"{").status == 422


def test_a_dependency_that_reads_a_broken_body_itself_is_answered_as_fastapi_does() -> None:
    app = FastAPI()
    install(app)

    async def signed(request: Request) -> Any:
        assert await request.body()
        return await request.json()

    @app.put("/pages", dependencies=[Depends(signed)])
    def put(asked: Conditions, page: Annotated[Any, Body()] = None) -> None: ...

    with asgi(app) as port:
        assert ask(port, "PUT", "/pages", [], b"{").status == 422
        assert ask(port, "PUT", "/pages", [], {}).status == 428


# -- one session a request -------------------------------------------------------------------------


def test_what_a_function_raises_is_rolled_back(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    app = FastAPI()
    install(app)

    @app.put("/pages/{key}")
    def put(key: int, session: Annotated[Session, unit(sessions)], asked: Conditions) -> None:
        entities.merge(session, Page, key, {"title": "Lost"}, **asked.demands)
        raise HTTPException(418)

    tag = etag_of(pages.fill(engine))
    before = pages.stored(engine)
    with asgi(app) as port:
        assert ask(port, "PUT", "/pages/1", [("If-Match", tag)]).status == 418
    assert pages.stored(engine) == before


def test_a_unit_takes_no_session_that_belongs_to_a_thread(sessions: sessionmaker[Session]) -> None:
    with pytest.raises(ConfigurationError, match=r"unit\(\) got scoped_session"):
        unit(scoped_session(sessions))
    of_tasks = async_scoped_session(async_sessionmaker(), scopefunc=asyncio.current_task)
    with pytest.raises(ConfigurationError, match=r"unit\(\) got async_scoped_session"):
        unit(of_tasks)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attempts": 3}, "attempts"),
        ({"exactly_once": lambda: "key"}, "no arguments"),
        ({"pipelined": "yes"}, "pipelined"),
        ({"on_conflct": None}, "on_conflct"),
    ],
)
def test_an_option_that_cannot_work_is_refused_at_the_start(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        unit(sessionmaker(create_engine("sqlite://")), **options)


def test_an_old_option_warns_once_at_the_line_of_the_application() -> None:
    with pytest.warns(DeprecationWarning, match="short=") as caught:
        depends = unit(sessionmaker(create_engine("sqlite://")), short=True)
    assert [one.filename for one in caught] == [__file__]
    assert depends is not None


class Deadlock(Exception):
    """As psycopg has it."""

    sqlstate = "40P01"


Deadlock.__module__ = "psycopg.errors"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (OperationalError("UPDATE pages SET secret", {}, Deadlock()), 503, "try-again"),
        (CommitOutcomeUnknown("COMMIT of page 7 was lost"), 500, "outcome-unknown"),
    ],
)
def test_what_the_database_has_to_say_is_an_answer(error: Any, status: int, kind: str) -> None:
    app, calls = FastAPI(), []
    install(app)

    @app.put("/pages")
    def put(page: Annotated[dict[str, Any], Body()]) -> None:
        calls.append(page)
        raise error

    with asgi(app) as port:
        answer = ask(port, "PUT", "/pages", [], {"title": "x"})
    assert (answer.status, answer.problem["type"]) == (status, f"urn:optilock:{kind}")
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
    assert len(calls) == 1  # nothing runs it again
    assert b"secret" not in answer.content


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("of the program"), OperationalError("SELECT secret", {}, OSError())],
)
def test_what_no_client_has_to_do_with_is_500_without_a_word(error: Exception) -> None:
    app = FastAPI()
    install(app)

    @app.get("/pages")
    def get() -> None:
        raise error

    with asgi(app) as port:
        answer = ask(port, "GET", "/pages")
    assert (answer.status, answer.content) == (500, b"Internal Server Error")


# -- rules of an application and of a route --------------------------------------------------------


def test_a_tenant_has_tags_of_its_own(engine: Engine, sessions: sessionmaker[Session]) -> None:
    def of_tenant(request: Any) -> ETags:
        return ETags(keys=["k" * 32], tenant=request.headers["x-tenant"])

    with asgi(on_fastapi.application(sessions, etags=of_tenant)) as port:
        pages.fill(engine)
        tag = ask(port, "GET", "/pages/1", [("X-Tenant", "acme")]).headers["etag"]
        for tenant, status in (("other", 412), ("acme", 200), ("acme", 412)):
            lines = [("X-Tenant", tenant), ("If-Match", tag)]
            answer = ask(port, "PUT", "/pages/1", lines, {"title": tenant})
            assert answer.status == status
            if status == 412:
                read = ask(port, "GET", "/pages/1", [("X-Tenant", tenant)])
                assert answer.problem["etag"] == read.headers["etag"]


def test_a_policy_counts_for_every_route_but_those_that_say_otherwise(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    pages.fill(engine)
    policy = Policy(allow_star=False)
    with asgi(on_fastapi.application(sessions, policy=policy)) as port:
        for path, status in (("/pages/1", 428), ("/free/1", 200)):
            answer = ask(port, "PUT", path, [("If-Match", "*")], {"title": "x"})
            assert answer.status == status


# -- OpenAPI, and pages elsewhere ------------------------------------------------------------------


def test_openapi_shows_the_conditions_the_tag_and_the_answers(
    sessions: sessionmaker[Session],
) -> None:
    path = on_fastapi.application(sessions).openapi()["paths"]["/pages/{key}"]
    for method, statuses in (
        ("get", {"200", "304", "400", "404", "412"}),
        ("put", {"200", "400", "404", "409", "412", "428"}),
        ("delete", {"204", "400", "404", "409", "412", "428"}),
    ):
        shown = path[method]
        sent = {one["name"] for one in shown["parameters"] if one["in"] == "header"}
        assert {"If-Match", "If-None-Match"} <= sent
        assert statuses <= set(shown["responses"])
        for status in statuses - {"200", "204", "304"}:
            assert list(shown["responses"][status]["content"]) == ["application/problem+json"]
    assert "ETag" in path["get"]["responses"]["200"]["headers"]
    assert "ETag" in path["put"]["responses"]["412"]["headers"]


def test_a_page_of_another_origin_may_send_a_condition_and_read_the_tag(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    pages.fill(engine)
    origin = ("Origin", "https://editor.example")
    with asgi(on_fastapi.application(sessions)) as port:
        asked = [
            origin,
            ("Access-Control-Request-Method", "PUT"),
            ("Access-Control-Request-Headers", "if-match, idempotency-key, content-type"),
        ]
        allowed = ask(port, "OPTIONS", "/pages/1", asked)
        assert allowed.status == 200
        assert "If-Match" in allowed.headers["access-control-allow-headers"]
        for lines, status in (([], 428), ([("If-Match", '"x"')], 412), ([("If-Match", "*")], 200)):
            answer = ask(port, "PUT", "/pages/1", [origin, *lines], {"title": "x"})
            assert answer.status == status
            assert answer.headers["access-control-expose-headers"] == "ETag, Retry-After"


def test_a_response_of_the_function_carries_its_own_headers(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    app = FastAPI()
    install(app)

    @app.put("/pages/{key}")
    def put(
        key: int,
        session: Annotated[Session, unit(sessions)],
        asked: Conditions,
        response: Response,
    ) -> dict[str, str]:
        stored = entities.merge(session, Page, key, {"title": "New"}, **asked.demands)
        response.headers["ETag"] = stored.etag or ""
        return {"etag": stored.etag or ""}

    tag = etag_of(pages.fill(engine))
    with asgi(app) as port:
        answer = ask(port, "PUT", "/pages/1", [("If-Match", tag)])
    assert answer.headers["etag"] != tag
    assert answer.headers["etag"].encode()[1:-1] in answer.content


# -- values that no dependency of ours has looked at -----------------------------------------------


class Sent(BaseModel):
    title: str | None = None
    number: float | None = Field(default=None, allow_inf_nan=False)


@pytest.fixture
def plain_routes(engine: Engine) -> FastAPI:
    """Routes with ``get``, ``get_one`` and assignments, as applications have them."""
    app = FastAPI()
    install(app)
    db = unit(watch(sessionmaker(engine)))

    @app.get("/get/{key}")
    def get(key: int, session: Any = db) -> bool:
        return session.get(Page, key) is not None

    @app.get("/get_one/{key}")
    def get_one(key: int, session: Any = db) -> bool:
        return session.get_one(Page, key) is not None

    @app.get("/one")
    def one(session: Any = db) -> Any:
        return session.scalars(select(Page).where(Page.id == 7777)).one()

    @app.patch("/pages/{key}")
    def patch(key: int, sent: Sent, conditions: Conditions, session: Any = db) -> None:
        page = session.get_one(Page, key)
        expect(page, conditions.expected)
        for name, value in sent.model_dump(exclude_unset=True).items():
            setattr(page, name, value)

    @app.patch("/entities/{key}")
    def merge(key: int, sent: Sent, conditions: Conditions, session: Any = db) -> None:
        entities.merge(session, Page, key, {"title": sent.title}, **conditions.demands)

    return app


def test_what_a_client_sends_is_no_500(
    plain_routes: FastAPI, engine: Engine, sessions: sessionmaker[Session]
) -> None:
    """F: NaN, half of a character, numbers out of range, a key without a row, NULL."""
    tag = etag_of(pages.fill(engine))
    known = [("If-Match", tag)]
    with asgi(plain_routes) as port:
        for path in ("/get_one/7777", f"/get_one/{10**30}", f"/pages/{10**30}"):
            method = "PATCH" if "pages" in path else "GET"
            answer = ask(port, method, path, known, {"title": "?"})
            assert (path, answer.status) == (path, 404)
            assert answer.problem["type"] == "urn:optilock:not-found"
        assert ask(port, "GET", f"/get/{10**30}").status in (200, 404)
        for body, status in (
            (b'{"number": NaN}', 422),
            (b'{"number": -Infinity}', 422),
            (b'{"number": "\\ud800"}', 422),
            (b'{"title": ["\\ud800", NaN]}', 422),
            (b'{"title": null}', 400),
        ):
            answer = ask(port, "PATCH", "/pages/1", known, body)
            assert (body, answer.status) == (body, status)
            assert json.loads(answer.content)["detail"]
        assert ask(port, "GET", "/one").status == 500  # a query of the program's
        with sessions() as session:
            assert etag_of(session.get(Page, 1)) == tag  # nothing was written


def test_a_patch_of_a_stored_row_fails_if_none_match(plain_routes: FastAPI, engine: Engine) -> None:
    """F: PATCH changes what is there, and "*" says that nothing is."""
    pages.fill(engine)
    with asgi(plain_routes) as port:
        lines = [("If-None-Match", "*")]
        answer = ask(port, "PATCH", "/entities/1", lines, {"title": "?"})
        assert (answer.status, answer.problem["type"]) == (412, "urn:optilock:precondition-failed")
