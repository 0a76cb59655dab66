"""``optilock check --app``: the routes that write and compare no condition of the request."""

# No annotations from the future: the frameworks read those of local names.
import json
from pathlib import Path
from typing import Annotated, Any

import flask
import litestar
import pytest
from fastapi import APIRouter, Depends, FastAPI
from flask.views import MethodView
from litestar.di import NamedDependency
from litestar.params import FromPath, SkipValidation
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

import optilock as library
from optilock import ConfigurationError, Versioned, entities, expect, unit_of_work
from optilock.check import check_routes
from optilock.preconditions import overwrite
from optilock.unit import require_conditions
from optilock.web import fastapi as on_fastapi
from optilock.web import litestar as on_litestar
from optilock.web.conditions import unconditional
from optilock.web.flask import Optilock
from optilock.web.starlette import ConditionalRequests, conditions_of
from tests.support import in_process


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "checked_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]


SessionLocal = sessionmaker(create_engine("sqlite://"))
Db = Annotated[Session, on_fastapi.unit(SessionLocal)]


def edit(session: Session, key: int) -> None:
    session.get_one(Page, key).title = "new"


def compare(session: Session, key: int, expected: Any) -> None:
    page = session.get_one(Page, key)
    library.expect(page, expected)
    edit(session, key)


@unit_of_work(SessionLocal)
def demanding(session: Session, key: int) -> None:
    require_conditions(session)
    edit(session, key)


def found(app: Any) -> list[tuple[str, str, str]]:
    return sorted((one.severity.value, one.code, one.subject) for one in check_routes(app))


def unprotected(*routes: str) -> list[tuple[str, str, str]]:
    return sorted(
        ("note" if one.startswith("POST") else "error", "unprotected-route", one) for one in routes
    )


def test_a_removed_option_still_protects_a_route() -> None:
    with pytest.warns(DeprecationWarning, match="require_conditions"):

        @unit_of_work(SessionLocal, require_conditions=True)  # type: ignore[call-overload,untyped-decorator]
        def decorated(session: Session, key: int) -> None:
            edit(session, key)

    def block(key: int) -> None:
        with unit_of_work(SessionLocal, require_conditions=True) as session:  # type: ignore[call-overload]
            edit(session, key)

    app = FastAPI()
    on_fastapi.install(app)
    app.put("/decorated")(lambda key: decorated(key))
    app.put("/block")(block)
    assert found(app) == []


# -- FastAPI ---------------------------------------------------------------------------------------


def pages_of_fastapi() -> FastAPI:
    app, router = FastAPI(), APIRouter(prefix="/inner")
    on_fastapi.install(app)

    def loaded(key: int, session: Db, asked: on_fastapi.Conditions) -> Page:
        page = session.get_one(Page, key)
        expect(page, asked.expected)
        return page

    def forgets(key: int, asked: on_fastapi.Conditions) -> int:
        return key

    @app.get("/pages/{key}")
    def read(key: int, session: Db) -> None:
        edit(session, key)

    @app.put("/ignores/{key}")
    def ignores(key: int, session: Db) -> None:
        edit(session, key)

    @app.patch("/takes/{key}")
    def takes(key: int, session: Db, asked: on_fastapi.Conditions) -> None:
        edit(session, key)

    @app.delete("/uses/{key}")
    async def uses(key: int, session: Db, asked: on_fastapi.Conditions) -> None:
        entities.delete(session, Page, key, **asked.demands)

    @app.put("/calls/{key}")
    def calls(key: int, session: Db, tag: str) -> None:
        compare(session, key, tag)

    @app.put("/depends/{key}")
    def depends(page: Annotated[Page, Depends(loaded)]) -> None:
        page.title = "new"

    @app.put("/depends-in-vain/{key}")
    def depends_in_vain(key: Annotated[int, Depends(forgets)], session: Db) -> None:
        edit(session, key)

    @app.put("/listed/{key}", dependencies=[on_fastapi.conditions()])
    def listed(key: int, session: Db) -> None:
        edit(session, key)

    @app.put("/demands/{key}")
    def demands(
        key: int,
        session: Annotated[Session, on_fastapi.unit(SessionLocal, require_conditions=True)],
    ) -> None:
        edit(session, key)

    @app.put("/decorated/{key}")
    def decorated(key: int) -> None:
        demanding(key)

    @app.put("/overwrites/{key}")
    def overwrites(key: int, session: Db) -> None:
        overwrite(session.get_one(Page, key))

    @app.put("/meant")
    @unconditional
    def meant() -> None:
        pass

    @app.post("/pages")
    def create(session: Db) -> None:
        session.add(Page(title="new"))

    @router.put("/ignores")
    def ignores_inside(session: Db) -> None:
        edit(session, 1)

    app.include_router(router, prefix="/outer")
    inner = FastAPI()
    inner.add_api_route("/mounted", ignores_inside, methods=["DELETE", "PUT", "GET"])
    app.mount("/below", inner)
    return app


def test_routes_of_fastapi() -> None:
    """A10: with routers, mounted applications, and what dependencies compare."""
    assert found(pages_of_fastapi) == unprotected(
        "PUT /ignores/{key}",
        "PATCH /takes/{key}",
        "PUT /depends-in-vain/{key}",
        "PUT /listed/{key}",
        "POST /pages",
        "PUT /outer/inner/ignores",
        "PUT /below/mounted",
        "DELETE /below/mounted",
    )
    told = {one.subject: one.message for one in check_routes(pages_of_fastapi())}
    assert "never uses them" in told["PATCH /takes/{key}"]
    assert "last writer wins" in told["PUT /ignores/{key}"]


# -- the others ------------------------------------------------------------------------------------


def test_routes_of_starlette() -> None:
    """A10: functions, and classes with a method for each."""

    async def ignores(request: Request) -> Response:
        return PlainTextResponse("ok")

    def asks(request: Request) -> Response:
        compare(SessionLocal(), 1, conditions_of(request).expected)
        return PlainTextResponse("ok")

    class Pages(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("ok")

        async def put(self, request: Request) -> Response:
            return asks(request)

        async def delete(self, request: Request) -> Response:
            return PlainTextResponse("ok")

    routes = [
        Route("/ignores", ignores, methods=["PUT", "GET"]),
        Route("/asks", asks, methods=["PUT"]),
        Route("/class", Pages),
        Mount("/below", routes=[Route("/ignores", ignores, methods=["PATCH"])]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(ConditionalRequests)])
    assert found(app) == unprotected("PUT /ignores", "DELETE /class", "PATCH /below/ignores")


Db_ = NamedDependency[SkipValidation[Any]]


def test_routes_of_litestar() -> None:
    """A10: the parameter, and what it is used for."""

    @litestar.put("/ignores/{key:int}", sync_to_thread=False)
    def ignores(key: FromPath[int], session: Db_) -> None:
        edit(session, key)

    @litestar.patch("/takes/{key:int}")
    async def takes(key: FromPath[int], session: Db_, conditions: on_litestar.Conditions) -> None:
        await session.run_sync(edit, key)

    @litestar.delete("/uses/{key:int}", sync_to_thread=False)
    def uses(key: FromPath[int], session: Db_, conditions: on_litestar.Conditions) -> None:
        entities.delete(session, Page, key, **conditions.demands)

    @litestar.put("/demands", dependencies={"session": DEMANDING}, sync_to_thread=False)
    def demands(session: Db_) -> None:
        edit(session, 1)

    app = litestar.Litestar(
        [ignores, takes, uses, demands],
        plugins=[on_litestar.OptilockPlugin()],
        dependencies={"session": on_litestar.unit(SessionLocal)},
    )
    assert found(app) == unprotected("PUT /ignores/{key:int}", "PATCH /takes/{key:int}")


DEMANDING = on_litestar.unit(SessionLocal, require_conditions=True)
extension = Optilock()


def test_routes_of_flask() -> None:
    """A10: functions, classes, and the extension."""
    app = flask.Flask(__name__)
    extension.init_app(app)

    @app.put("/ignores/<int:key>")
    def ignores(key: int) -> str:
        return "ok"

    @app.route("/asks", methods=["PUT", "GET"])
    def asks() -> str:
        compare(SessionLocal(), 1, extension.conditions().expected)
        return "ok"

    class Pages(MethodView):
        def put(self) -> str:
            return asks()

        def delete(self) -> str:
            return "ok"

    app.add_url_rule("/class", view_func=Pages.as_view("pages"))
    assert found(app) == unprotected("PUT /ignores/<int:key>", "DELETE /class")


@pytest.mark.parametrize(
    "app",
    [FastAPI(), Starlette(), litestar.Litestar([]), flask.Flask("x")],
    ids=lambda app: type(app).__name__,
)
def test_an_application_that_enforces_nothing_is_named(app: Any) -> None:
    """A10: there a stale tag is 200."""
    name = type(app).__name__
    assert found(app) == [("warning", "conditions-not-enforced", name)]


@pytest.mark.parametrize("app", [None, FastAPI, lambda: 7, lambda one: one, Base])
def test_what_is_no_application_is_refused(app: Any) -> None:
    """A10."""
    with pytest.raises(ConfigurationError, match="FastAPI, Starlette, Litestar and Flask"):
        list(check_routes(app))


# -- the command -----------------------------------------------------------------------------------

WEB = """
from fastapi import FastAPI
from optilock.web.fastapi import Conditions, install
app = FastAPI()
install(app)
@app.{method}("/pages/{{key}}")
def write(key: int, asked: Conditions):
    {body}
"""


@pytest.mark.parametrize(
    ("method", "body", "code", "says"),
    [
        ("put", "pass", 1, "unprotected-route"),
        ("put", "asked.demands", 0, "every route that writes compares a condition"),
        ("post", "pass", 0, "unprotected-route"),
    ],
)
def test_the_command_looks_at_routes_alone(
    tmp_path: Path, method: str, body: str, code: int, says: str
) -> None:
    """A10: without models no database is needed; the exit code is that of the command."""
    (tmp_path / "web.py").write_text(WEB.format(method=method, body=body))
    done = in_process.optilock("check", "--app", "web:app", folder=tmp_path)
    assert done.exit_code == code, done.output
    assert says in done.output
    as_json = in_process.optilock("check", "--app", "web:app", "--json", folder=tmp_path)
    subjects = [one["subject"] for one in json.loads(as_json.output)]
    assert subjects == ([f"{method.upper()} /pages/{{key}}"] if body == "pass" else [])


def test_the_command_looks_at_routes_beside_models(tmp_path: Path) -> None:
    """A10."""
    (tmp_path / "web.py").write_text(WEB.format(method="put", body="pass"))
    (tmp_path / "shop.py").write_text(
        "from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column\n"
        "class Base(DeclarativeBase): pass\n"
        "class Page(Base):\n"
        "    __tablename__ = 'pages'\n"
        "    id: Mapped[int] = mapped_column(primary_key=True)\n"
    )
    words = ("check", "shop", "--url", "sqlite://", "--app", "web:app", "--json")
    done = in_process.optilock(*words, folder=tmp_path)
    assert {one["code"] for one in json.loads(done.output)} == {
        "unprotected-route", "no-version", "no-table",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Name MODELS"),
        (("--app", "nowhere:app"), "cannot be imported"),
        (("--app", "web:install"), "routes are known of"),
        (("--app", "web:nothing"), "nothing called"),
    ],
)
def test_what_names_no_application_is_exit_code_2(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    """A10."""
    (tmp_path / "web.py").write_text(WEB.format(method="put", body="pass"))
    done = in_process.optilock("check", *words, folder=tmp_path)
    assert (done.exit_code, says in done.stderr) == (2, True), done.output
