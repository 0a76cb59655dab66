"""Nothing is found at the applications of the documentation, and at the wiki."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from optilock_apps.wiki.app import wiki
from optilock_apps.wiki.pages import prepare
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlmodel import SQLModel

from optilock import watch
from tests.applications import on_litestar, pages
from tests.support import in_process
from tests.support.serving import asgi, wsgi
from tests.support.tutorial_programs import Program, program

__all__ = ["program"]

#: An application that demands a version takes no asterisk: 428.
ASTERISKS = ("If-Match: *", "If-None-Match: *")


def probe(port: int, path: str, *words: str) -> dict[str, str]:
    """The outcomes of all checks that are not safe; the value is back."""
    url = f"http://127.0.0.1:{port}{path}"
    ended = in_process.optilock(
        "probe", url, "--write", "--strict", "--json", *words, folder=Path()
    )
    report: dict[str, Any] = json.loads(ended.stdout)
    assert (ended.exit_code, report["verdict"]) == (0, "safe"), report
    assert report["findings"][-1]["found"].startswith("yes")
    return {one["check"]: one["found"] for one in report["findings"] if one["outcome"] != "safe"}


def database(folder: Path) -> Engine:
    return create_engine(f"sqlite:///{folder / 'pages.db'}", connect_args={"timeout": 30})


def test_the_fastapi_application_of_the_tutorial_is_safe(program: Program) -> None:
    with asgi(program("FastAPI", "app").app) as port:
        assert probe(port, "/api/pages/1") == {}


def test_the_sqlmodel_application_of_the_tutorial_is_safe(program: Program) -> None:
    SQLModel.metadata.clear()  # the page itself, run as a test, has the same table
    with asgi(program("SQLModel", "probed_heroes").heroes) as port:
        assert set(probe(port, "/heroes/1")) == {f"PATCH with {one}" for one in ASTERISKS}
    SQLModel.metadata.clear()


def test_the_flask_application_of_the_tutorial_is_safe(program: Program) -> None:
    module = program("Flask, with Flask-SQLAlchemy", "hello")
    with wsgi(module.flask_app) as port:
        assert set(probe(port, "/api/notes/1")) == {f"PUT with {one}" for one in ASTERISKS}
    with module.flask_app.app_context():
        module.db.engine.dispose()


def test_a_litestar_application_is_safe(tmp_path: Path) -> None:
    engine = database(tmp_path)
    pages.Base.metadata.create_all(engine)
    pages.fill(engine)
    engine.dispose()
    behind = create_async_engine(str(engine.url).replace("sqlite", "sqlite+aiosqlite"))
    app = on_litestar.application(watch(async_sessionmaker(behind)))
    app.on_shutdown.append(behind.dispose)
    with asgi(app) as port:
        assert probe(port, "/pages/1", "--new", f"http://127.0.0.1:{port}/pages/9") == {}


def test_the_wiki_is_safe(tmp_path: Path) -> None:
    engine = database(tmp_path)
    prepare(engine)
    with asgi(wiki(engine)) as port:
        assert probe(port, "/api/pages/with", "--new", f"http://127.0.0.1:{port}/api/pages/x") == {}
    engine.dispose()
