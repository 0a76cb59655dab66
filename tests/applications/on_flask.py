"""The pages behind Flask."""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, abort, request
from sqlalchemy.orm import Session, sessionmaker

from optilock import UnitOfWork, verify
from optilock.web.flask import Optilock, not_modified
from tests.applications import pages
from tests.applications.pages import FREE, Page, Told


def answer(told: Told) -> Response:
    if told.status == 304:
        return not_modified(told.etag)
    headers = {} if told.etag is None else {"ETag": told.etag}
    title = "" if told.page is None else told.page["title"]
    return Response(title, status=told.status, headers=headers)


def application(sessions: sessionmaker[Session], **installed: Any) -> Flask:
    app = Flask(__name__)
    optilock = Optilock(**installed)

    @app.before_request
    def who() -> None:
        if request.headers.get("X-Who") == "nobody":
            abort(403)

    @app.get("/pages/<int:key>")
    def read(key: int) -> Response:
        asked = optilock.conditions()
        with UnitOfWork(sessions) as session:
            return answer(pages.read(session, asked, key))

    @app.route("/pages/<int:key>", methods=["PUT", "PATCH", "DELETE"])
    def write(key: int) -> Response:
        asked = optilock.conditions()
        values = {} if asked.method == "DELETE" else request.get_json()
        with UnitOfWork(sessions) as session:
            return answer(pages.write(session, asked, key, values))

    @app.put("/late/<int:key>")
    def late(key: int) -> Response:
        with UnitOfWork(sessions) as session:
            verify(session.get_one(Page, key))
            pages.another(sessions.kw["bind"], key)
            return Response("stored")

    @app.route("/<kind>/<int:key>", methods=["GET", "PUT", "PATCH", "DELETE", "POST", "TRACE"])
    def free(kind: str, key: int) -> Response:
        asked = optilock.conditions(policy=FREE)
        with UnitOfWork(sessions) as session:
            if request.method in ("GET", "TRACE"):
                return answer(pages.read(session, asked, key, own=kind == "own"))
            values = {"title": "Written"}
            return answer(pages.write(session, asked, key, values, free=True, own=kind == "own"))

    optilock.init_app(app)
    return app
