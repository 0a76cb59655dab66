"""Flask: the extension, its tags and rules, Flask-SQLAlchemy, and what no client has to do with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response, g, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import ConfigurationError, Versioned, apply, etag_of, watch
from optilock.errors import NotFound
from optilock.preconditions.entity_tags import ETags
from optilock.tokens import Unique
from optilock.web.conditions import Policy
from optilock.web.flask import Optilock


def application(**rules: Any) -> tuple[Flask, Optilock]:
    app = Flask(__name__)
    app.config["PROPAGATE_EXCEPTIONS"] = False
    return app, Optilock(app, **rules)


def test_an_extension_is_for_the_applications_that_it_was_given() -> None:
    app, _ = application()
    other = Optilock()

    @app.put("/")
    def put() -> str:
        return other.conditions().method

    with pytest.raises(ConfigurationError, match="views of an application"):
        other.conditions()
    assert app.test_client().put("/").status_code == 500
    second = Flask(__name__)
    other.init_app(second)
    second.put("/")(put)
    assert second.test_client().put("/").status_code == 428


def test_a_tenant_has_tags_of_its_own_and_a_view_has_rules_of_its_own() -> None:
    app, optilock = application(
        etags=lambda: ETags(tenant=g.tenant), policy=Policy(allow_star=False)
    )

    @app.before_request
    def tenant() -> None:
        g.tenant = request.headers["X-Tenant"]

    @app.put("/")
    def put() -> str:
        return optilock.conditions().etags.tenant

    @app.put("/free")
    def free() -> str:
        return optilock.conditions(policy=Policy(require=None)).etags.tenant

    client = app.test_client()
    star = {"X-Tenant": "acme", "If-Match": "*"}
    assert client.put("/", headers=star).status_code == 428
    assert client.put("/", headers={**star, "If-Match": '"a"'}).text == "acme"
    assert client.put("/free", headers={"X-Tenant": "acme"}).text == "acme"


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("secret"), OperationalError("SELECT secret", {}, OSError())],
    ids=["configuration", "database"],
)
def test_what_no_client_has_to_do_with_is_500_without_a_word(error: Exception) -> None:
    app, _ = application()

    @app.get("/")
    def get() -> str:
        raise error

    answer = app.test_client().get("/")
    assert (answer.status_code, "secret" in answer.text) == (500, False)


def test_flask_sqlalchemys_session_is_the_one_of_the_request(tmp_path: Path) -> None:
    class Base(DeclarativeBase):
        pass

    db = SQLAlchemy(model_class=Base)

    class Page(Versioned, db.Model):  # type: ignore[misc, name-defined]
        __tablename__ = "flask_pages"
        __version_token__ = Unique()
        __problem_fields__ = ("title",)
        id: Mapped[int] = mapped_column(primary_key=True)
        title: Mapped[str]

    app, optilock = application()
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'pages.db'}"
    db.init_app(app)
    watch(db.session)

    @app.get("/pages/<int:key>")
    def read(key: int) -> Response:
        asked, page = optilock.conditions(), db.session.get(Page, key)
        if page is None:
            raise NotFound(Page, (key,))
        tag = asked.tag_of(page)
        return Response(status=304 if asked.not_modified(tag) else 200, headers={"ETag": tag})

    @app.patch("/pages/<int:key>")
    def change(key: int) -> Response:
        asked = optilock.conditions()
        page = apply(db.session, Page, key, request.get_json(), expected=asked.expected)
        db.session.flush()
        tag = etag_of(page)
        db.session.commit()
        return Response(status=204, headers={"ETag": tag})

    with app.app_context():
        db.create_all()
        db.session.add(Page(id=1, title="Start"))
        db.session.commit()
    client = app.test_client()
    first = client.get("/pages/1").headers["ETag"]
    done = client.patch("/pages/1", json={"title": "Mine"}, headers={"If-Match": first})
    assert (done.status_code, done.headers["ETag"] != first) == (204, True)
    assert client.get("/pages/1").headers["ETag"] == done.headers["ETag"]
    late = client.patch("/pages/1", json={"title": "Late"}, headers={"If-Match": first})
    assert late.status_code == 412
    assert late.json is not None
    assert late.json["etag"] == late.headers["ETag"] == done.headers["ETag"]
    assert late.json["conflicts"]["title"]["database"] == "Mine"
    assert client.patch("/pages/1", json={}).status_code == 428
    gone = client.patch("/pages/9", json={}, headers={"If-Match": first})
    assert gone.status_code == 404
    with app.app_context():
        for engine in db.engines.values():
            engine.dispose()
