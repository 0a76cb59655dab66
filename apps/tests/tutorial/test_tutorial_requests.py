"""The applications of docs/tutorial/web.md as they are printed, and requests of two clients."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import SQLModel

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "web.md"

Program = Callable[[str, str], ModuleType]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Imports the program of a section, under the name of its file."""
    monkeypatch.chdir(tmp_path)
    made: list[ModuleType] = []

    def imported(title: str, name: str) -> ModuleType:
        section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1]
        path = tmp_path / f"{name}.py"
        path.write_text(section.split("```python\n")[1].split("```")[0], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        made.append(module)
        return module

    yield imported
    for module in made:
        for value in vars(module).values():
            if isinstance(value, Engine):
                value.dispose()


def typed(html: str, area: str, **edits: str) -> dict[str, str]:
    """The fields that a browser sends from a form, with its line ends."""
    seen = html.split('name="seen" value="')[1].split('"')[0]
    title = unescape(html.split('name="title" value="')[1].split('"')[0])
    text = unescape(html.split(f'name="{area}">')[1].split("</textarea>")[0])
    fields = {"title": title, area: text, "seen": seen, **edits}
    return {name: text.replace("\n", "\r\n") for name, text in fields.items()}


def test_clients_of_the_fastapi_application_lose_no_edit(program: Program) -> None:
    app = program("FastAPI", "app").app
    with TestClient(app) as ada, TestClient(app) as bob:
        tag = ada.get("/api/pages/1").headers["ETag"]
        assert bob.get("/api/pages/1", headers={"If-None-Match": tag}).status_code == 304

        mine = {"title": "Home", "body": "Hello from Ada"}
        saved = ada.put("/api/pages/1", json=mine, headers={"If-Match": tag})
        assert saved.status_code == 204

        his = {"title": "Home", "body": "Bob"}
        late = bob.put("/api/pages/1", json=his, headers={"If-Match": tag})
        assert late.status_code == 412
        assert late.json()["conflicts"]["body"] == {"current": "Bob", "database": "Hello from Ada"}
        assert late.headers["ETag"] == saved.headers["ETag"]
        assert bob.put("/api/pages/1", json=mine).status_code == 428


def test_forms_of_the_fastapi_application_lose_no_edit(program: Program) -> None:
    app = program("FastAPI", "app").app
    with TestClient(app) as ada, TestClient(app) as bob:
        ada_form, bob_form = ada.get("/pages/1").text, bob.get("/pages/1").text
        ada.post("/pages/1", data=typed(ada_form, "body", title="Ada's", body="Hello\nfrom Ada"))
        conflict = bob.post("/pages/1", data=typed(bob_form, "body", title="Bob's"))
        assert ada.get("/api/pages/1").json() == {"title": "Ada's", "body": "Hello\nfrom Ada"}

        assert conflict.status_code == 409
        assert "It is stored as “Ada&#x27;s" in conflict.text
        assert 'value="Bob&#x27;s"' in conflict.text
        assert "Hello\nfrom Ada" in conflict.text
        bob.post("/pages/1", data=typed(conflict.text, "body", title="Both titles"))
        assert bob.get("/api/pages/1").json() == {"title": "Both titles", "body": "Hello\nfrom Ada"}

        ada_form, bob_form = ada.get("/pages/1").text, bob.get("/pages/1").text
        ada.post("/pages/1", data=typed(ada_form, "body", title="Ada's"))
        bob.post("/pages/1", data=typed(bob_form, "body", body="Bonjour\nfrom Ada"))
        assert bob.get("/api/pages/1").json() == {"title": "Ada's", "body": "Bonjour\nfrom Ada"}
        refused = bob.post("/pages/1", data=typed(bob_form, "body", seen="*"))
        assert refused.status_code == 400


def test_clients_of_the_flask_application_lose_no_edit(program: Program) -> None:
    module = program("Flask, with Flask-SQLAlchemy", "hello")
    ada, bob = module.flask_app.test_client(), module.flask_app.test_client()
    ada_form, bob_form = ada.get("/notes/1").text, bob.get("/notes/1").text
    saved = ada.post("/notes/1", data=typed(ada_form, "text", text="Milk\nBread"))
    assert saved.status_code == 302
    saved = bob.post("/notes/1", data=typed(bob_form, "text", title="Saturday"))
    assert saved.status_code == 302
    assert all(edit in ada.get("/notes/1").text for edit in ("Saturday", "Bread"))

    conflict = bob.post("/notes/1", data=typed(bob_form, "text", text="Milk\nEggs"))
    assert conflict.status_code == 409
    assert all(edit in conflict.text for edit in ("Bread", "Eggs", "Saturday"))
    unsettled = bob.post("/notes/1", data=typed(conflict.text, "text"))
    assert unsettled.status_code == 409
    assert "Eggs" in unsettled.text
    settled = typed(conflict.text, "text", text="Milk\nBread\nEggs")
    assert bob.post("/notes/1", data=settled).status_code == 302
    assert "Milk\nBread\nEggs" in ada.get("/notes/1").text

    assert ada.post("/notes/1", data={"text": "nothing seen"}).status_code == 428
    assert ada.post("/notes/1", data={"text": "?", "seen": "junk"}).status_code == 400
    with module.flask_app.app_context():
        fresh = {"If-Match": module.guard.etags.of(module.db.session.get(module.Note, 1))}
    stored = ada.put("/api/notes/1", json={"text": "Tea"}, headers=fresh)
    assert stored.status_code == 204
    assert stored.headers["ETag"] != fresh["If-Match"]
    assert ada.put("/api/notes/1", json={"text": "?"}, headers=fresh).status_code == 412
    fresh = {"If-Match": stored.headers["ETag"]}
    assert ada.put("/api/notes/9", json={"text": "?"}, headers=fresh).status_code == 404
    for wrong in ([], "?", {}, {"text": None}):
        assert ada.put("/api/notes/1", json=wrong, headers=fresh).status_code == 422
    with module.flask_app.app_context():
        module.db.engine.dispose()


def test_clients_of_the_sqlmodel_application_lose_no_edit(program: Program) -> None:
    SQLModel.metadata.clear()  # docs/tutorial/web.md, run as a page, has the same table
    heroes = program("SQLModel", "heroes").heroes
    with TestClient(heroes) as ada, TestClient(heroes) as bob:
        (item,) = ada.get("/heroes").json()
        named, shown = {"name": "Ada", "power": "numbers"}, {"If-Match": item["etag"]}
        first = ada.patch("/heroes/1", json=named, headers=shown)
        assert (first.status_code, first.json()["power"]) == (200, "numbers")

        late = bob.patch("/heroes/1", json={"name": "Eva"}, headers=shown)
        assert late.status_code == 412
        newest = {"If-Match": late.headers["ETag"]}
        repeated = bob.patch("/heroes/1", json={"name": "Eva"}, headers=newest)
        assert repeated.json() == {"name": "Eva", "power": "numbers"}
        assert bob.patch("/heroes/1", json={"name": "Eva"}).status_code == 428
        assert bob.get("/heroes/9").status_code == 404
    SQLModel.metadata.clear()
