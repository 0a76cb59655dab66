"""Two people edit a row in starlette-admin: nothing is overwritten unseen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool, StaticPool
from starlette.applications import Starlette
from starlette.testclient import TestClient

from optilock import Versioned, watch

pytest.importorskip("starlette_admin")
from starlette_admin.contrib.sqla import Admin

from optilock.web.starlette_admin import ModelView


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages_of_starlette_admin"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    body: Mapped[str]


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[TestClient]:
    engine = sa.create_engine(
        f"sqlite:///{tmp_path}/admin.db",
        poolclass=StaticPool,
        connect_args={"check_same_thread": False},
    )
    Base.metadata.create_all(engine)
    sessions: Any = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add(Page(id=1, title="title", body="body"))
    if request.param == "async":
        of_async = create_async_engine(
            f"sqlite+aiosqlite:///{tmp_path}/admin.db", poolclass=NullPool
        )
        sessions = watch(async_sessionmaker(of_async, expire_on_commit=False))
    app = Starlette()
    admin = Admin(sessions, secret_key="a secret of the tests, long enough")
    admin.add_view(ModelView(Page))
    admin.mount_to(app)
    with TestClient(app, raise_server_exceptions=False) as made:
        yield made
    engine.dispose()


def fields(page: str) -> dict[str, str]:
    found = re.findall(r'name="(\w+)"[^>]*?value="(.*?)"', page, re.S)
    return {name: unescape(value) for name, value in found}


def edit(client: TestClient, sent: dict[str, str]) -> Any:
    return client.post("/admin/page/edit?pk=1", data=sent, follow_redirects=False)


def test_a_second_editor_sees_what_was_stored_before_it_is_replaced(client: TestClient) -> None:
    shown = fields(client.get("/admin/page/edit?pk=1").text)
    assert "version" not in shown
    assert edit(client, shown | {"title": "Ada's"}).status_code == 303
    late = edit(client, shown | {"body": "Bob's"})
    assert late.status_code == 422
    assert "it is stored as “Ada&#39;s”" in late.text
    again = fields(late.text)
    assert (again["title"], again["body"]) == ("title", "Bob's")
    now = fields(client.get("/admin/page/edit?pk=1").text)
    assert (now["title"], now["body"]) == ("Ada's", "body")
    assert edit(client, again | {"title": "Ada's"}).status_code == 303
    now = fields(client.get("/admin/page/edit?pk=1").text)
    assert (now["title"], now["body"]) == ("Ada's", "Bob's")


def test_a_form_without_a_version_is_refused(client: TestClient) -> None:
    shown = fields(client.get("/admin/page/edit?pk=1").text)
    for tag, status in (("", 428), ("junk", 400), ("*", 428)):
        assert edit(client, shown | {"title": "?", "optilock_tag": tag}).status_code == status
    assert fields(client.get("/admin/page/edit?pk=1").text)["title"] == "title"
