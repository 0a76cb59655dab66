"""sqladmin: deletes that fail half-way, keys of every kind, and conflicts as late as COMMIT."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Column, Engine, ForeignKey, String, Table, create_engine, event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.orm import sessionmaker as make_sessions
from starlette.applications import Starlette
from starlette.testclient import TestClient
from wtforms import Form as WTForm
from wtforms import SelectMultipleField

from optilock import ConfigurationError, Versioned, watch
from optilock.preconditions import verify
from optilock.preconditions.entity_tags import ETags
from optilock.web.sqladmin import Admin, ModelView

TAGS = ETags(keys=["a secret of sixteen bytes or more"])
#: Keys that mean something in a URL, in HTML, in a script, and where sqladmin joins keys.
KEYS = ("a", "b", "a,b", "x/y", "50%", 'it\'s "q"', "q;r&s=t", "</script>")


class Base(DeclarativeBase):
    pass


class Doc(Versioned, Base):
    __tablename__ = "admin_docs"
    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    title: Mapped[str] = mapped_column(String(200), default="")


class Ref(Base):
    __tablename__ = "admin_refs"
    id: Mapped[int] = mapped_column(primary_key=True)
    doc: Mapped[str] = mapped_column(ForeignKey("admin_docs.id"))


LINKS = Table(
    "admin_links",
    Base.metadata,
    Column("post", ForeignKey("admin_posts.id"), primary_key=True),
    Column("doc", ForeignKey("admin_docs.id"), primary_key=True),
)


class Post(Versioned, Base):
    __tablename__ = "admin_posts"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(200), default="")
    docs: Mapped[list[Doc]] = relationship(secondary=LINKS)
    shown: Mapped[list[Doc]] = relationship(secondary=LINKS, viewonly=True)


class PostAdmin(ModelView, model=Post):
    save_as = True
    form_excluded_columns = ["docs"]


class DocAdmin(ModelView, model=Doc):
    column_list = ["id", "title"]
    hooks: dict[str, Callable[[], Any]] = {}

    async def on_model_change(
        self, data: dict[str, Any], model: Any, is_created: bool, request: Any
    ) -> None:
        self.hooks.get("change", lambda: None)()

    async def after_model_delete(self, model: Any, request: Any) -> None:
        self.hooks.get("deleted", lambda: None)()

    async def check_can_delete(self, request: Any, model: Any) -> bool:
        return bool(model.title != "locked")


@pytest.fixture(autouse=True)
def no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DocAdmin, "hooks", {})


@pytest.fixture(params=["threads", "asyncio"])
def client(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[TestClient]:
    path = tmp_path / "admin.db"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Doc(id=key, title=f"Doc {key}") for key in KEYS)
    behind: Any = create_engine(f"sqlite:///{path}")
    if request.param == "asyncio":
        behind = create_async_engine(f"sqlite+aiosqlite:///{path}")
    under = getattr(behind, "sync_engine", behind)
    event.listen(under, "connect", lambda one, _: one.execute("PRAGMA foreign_keys = ON"))
    app = Starlette()
    Admin(app, behind, etags=TAGS).add_view(DocAdmin)
    with TestClient(app) as client:
        client.engine = engine  # type: ignore[attr-defined]
        yield client
        if request.param == "asyncio":
            client.portal.call(behind.dispose)  # type: ignore[union-attr]
        else:
            behind.dispose()
    engine.dispose()


def write(client: TestClient, key: str, title: str | None) -> None:
    """Another session changes or deletes a row."""
    with Session(client.engine) as session, session.begin():  # type: ignore[attr-defined]
        if title is None:
            session.delete(session.get_one(Doc, key))
        else:
            session.get_one(Doc, key).title = title


def titles(client: TestClient) -> dict[str, str]:
    with Session(client.engine) as session:  # type: ignore[attr-defined]
        return {doc.id: doc.title for doc in session.query(Doc)}


# -- deletes ---------------------------------------------------------------------------------------


def tags_in(client: TestClient) -> dict[str, str]:
    page = client.get("/admin/doc/list").text
    found = re.search(r'<script id="optilock-tags" type="application/json">(.*?)</script>', page)
    assert found is not None
    tags: dict[str, str] = json.loads(found.group(1))
    return tags


def deleted(client: TestClient, tags: dict[str, str], *keys: str) -> Any:
    query = {"pk": keys, "tag": [tags[key] for key in keys]}
    return client.delete("/admin/doc/delete", params=query)


def lines_of(answer: Any) -> list[str]:
    """Return the sentences of the page about the rows that were kept."""
    assert "SQL:" not in answer.text
    page = answer.text.partition('id="conflict"')[2]
    items = re.findall("<li>(.*?)</li>", page, re.DOTALL)
    return [" ".join(html.unescape(re.sub("<[^>]+>", "", item)).split()) for item in items]


def test_a_delete_of_several_rows_names_each_one(client: TestClient) -> None:
    """B10: a row that failed, and those after it, were in no answer when another was kept."""
    tags = tags_in(client)
    write(client, "b", "new")
    write(client, "50%", None)
    with Session(client.engine) as session, session.begin():  # type: ignore[attr-defined]
        session.add(Ref(id=1, doc="x/y"))
    answer = deleted(client, tags, "a", "b", "50%", "x/y", "a,b", "q;r&s=t")
    assert answer.status_code == 409
    assert "Deleted: a." in answer.text
    assert "Not deleted: b, 50%, x/y, a,b, q;r&amp;s=t." in answer.text
    assert lines_of(answer) == [
        "Doc b: it has changed since this page was made.",
        "Doc 50%: it is not there any more.",
        "Doc x/y: it failed: FOREIGN KEY constraint failed",
        "Doc a,b: it was not tried, because of the failure before it.",
        "Doc q;r&s=t: it was not tried, because of the failure before it.",
    ]
    assert titles(client).keys() == {*KEYS} - {"a", "50%"}


def test_a_delete_that_the_database_refuses_shows_no_sql(client: TestClient) -> None:
    """B10: it was a redirect to the list, with the statement in its URL."""
    with Session(client.engine) as session, session.begin():  # type: ignore[attr-defined]
        session.add(Ref(id=1, doc="a"))
    answer = deleted(client, tags_in(client), "a")
    assert answer.status_code == 400
    assert lines_of(answer) == ["Doc a: it failed: FOREIGN KEY constraint failed"]


def test_a_step_after_a_delete_that_fails_does_not_take_it_back(client: TestClient) -> None:
    """B10: the row is deleted, and those after it were not tried."""

    def fail() -> None:
        raise LookupError("No such shelf.")

    DocAdmin.hooks["deleted"] = fail
    answer = deleted(client, tags_in(client), "a", "b")
    assert "Deleted: a." in answer.text
    assert "Not deleted: b." in answer.text
    assert lines_of(answer)[0] == "Doc a: it is deleted, and a later step failed: No such shelf."
    assert titles(client).keys() == {*KEYS} - {"a"}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.tenth
def test_a_key_of_any_characters_is_one_row(client: TestClient, key: str) -> None:
    """B10: the row "a,b" could not be deleted, and its permission was asked of "a" and "b"."""
    tags = tags_in(client)
    assert tags.keys() == {*KEYS}
    write(client, key, "locked")
    assert deleted(client, tags_in(client), key).status_code == 403
    write(client, key, "open")
    assert deleted(client, tags, key).status_code == 409
    answer = deleted(client, tags_in(client), key)
    assert (answer.status_code, answer.text) == (200, "http://testserver/admin/doc/list")
    assert titles(client).keys() == {*KEYS} - {key}


def test_keys_that_sqladmin_joins_have_no_tags_and_stay(client: TestClient) -> None:
    """B10: as of a page without the script."""
    tags = tags_in(client)
    query = {"pks": "a,b", "tag": [tags["a"], tags["b"]]}
    answer = client.delete("/admin/doc/delete", params=query)
    assert (answer.status_code, len(lines_of(answer))) == (428, 2)
    assert client.delete("/admin/doc/delete?pks=").status_code == 200
    assert titles(client).keys() == {*KEYS}


# -- conflicts while a form is saved ---------------------------------------------------------------


def seen_in(answer: Any) -> str:
    field = re.search(r'<input[^>]*name="optilock_seen"[^>]*>', answer.text)
    assert field is not None
    return html.unescape(field[0].partition('value="')[2].partition('"')[0])


def saved(client: TestClient, seen: str, title: str) -> Any:
    data = {"optilock_seen": seen, "title": title, "save": "Save and continue editing"}
    return client.post("/admin/doc/edit/a", data=data, follow_redirects=False)


def test_a_row_that_vanishes_during_a_conflict_shows_what_was_typed(client: TestClient) -> None:
    """B10: it was a form with "404" above it, which could not be saved."""
    seen = seen_in(client.get("/admin/doc/edit/a"))
    write(client, "a", "theirs")
    DocAdmin.hooks["change"] = lambda: write(client, "a", None)
    answer = saved(client, seen, "My long title")
    assert (answer.status_code, "My long title" in answer.text) == (409, True)
    assert "deleted it in the meantime" in answer.text
    assert saved(client, "", "My long title").status_code == 404


def test_a_promise_that_is_broken_at_commit_is_a_page_of_a_conflict(tmp_path: Any) -> None:
    """B10: a ConcurrencyError about another row was answered with 400, as a fault of the form."""
    engine = create_engine(f"sqlite:///{tmp_path}/promises.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Doc(id="a", title="A"), Doc(id="b", title="B")])
    sessions = watch(make_sessions(engine))
    others = ["theirs"]

    @event.listens_for(sessions, "before_flush")
    def promise(session: Session, *_: Any) -> None:
        verify(session.get_one(Doc, "b"))
        if others:
            with Session(engine) as theirs, theirs.begin():
                theirs.get_one(Doc, "b").title = others.pop()

    app = Starlette()
    Admin(app, session_maker=sessions, etags=TAGS).add_view(DocAdmin)
    with TestClient(app) as client:
        client.engine = engine  # type: ignore[attr-defined]
        answer = saved(client, seen_in(client.get("/admin/doc/edit/a")), "mine")
        assert answer.status_code == 409
        assert "something that this edit depends on" in answer.text
        assert titles(client) == {"a": "A", "b": "theirs"}
        assert 'value="mine"' in answer.text
        assert saved(client, seen_in(answer), "mine").status_code == 302
        assert titles(client)["a"] == "mine"
    engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
def serializable(
    request: pytest.FixtureRequest, engine: Engine
) -> Iterator[tuple[TestClient, list[str]]]:
    """An admin at SERIALIZABLE; each word in the list is a write that makes a COMMIT fail."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Doc(id="a", title="A"), Doc(id="b", title="B")])
    level: dict[str, Any] = {"isolation_level": "SERIALIZABLE"}
    if request.param == "asyncpg":
        url = engine.url.set(drivername="postgresql+asyncpg").difference_update_query(["x"])
        behind: Any = create_async_engine(url, **level)
        sessions: Any = async_sessionmaker(behind)
        made = sessions.kw["sync_session_class"] = watch(make_sessions(class_=Session)).class_
    else:
        behind = create_engine(engine.url, **level)
        sessions = watch(make_sessions(behind))
        made = sessions
    others: list[str] = []

    @event.listens_for(made, "before_flush")
    def read(session: Session, *_: Any) -> None:
        session.get_one(Doc, "b")

    @event.listens_for(made, "after_flush")
    def other(session: Session, _: Any) -> None:
        if others:
            title, strict = others.pop(), engine.execution_options(**level)
            with Session(strict) as theirs, theirs.begin():
                theirs.get_one(Doc, "a")
                theirs.query(Post).all()
                theirs.get_one(Doc, "b").title = title

    app = Starlette()
    admin = Admin(app, session_maker=sessions, etags=TAGS)
    admin.add_view(DocAdmin)
    admin.add_view(PostAdmin)
    with TestClient(app) as client:
        client.engine = engine  # type: ignore[attr-defined]
        yield client, others
        if request.param == "asyncpg":
            client.portal.call(behind.dispose)  # type: ignore[union-attr]
        else:
            behind.dispose()


@pytest.mark.engines("postgresql")
def test_a_conflict_that_the_database_reports_at_commit_can_be_saved_again(
    serializable: tuple[TestClient, list[str]],
) -> None:
    """B10: 40001 at COMMIT was answered with 400, as a fault of the form."""
    client, others = serializable
    seen = seen_in(client.get("/admin/doc/edit/a"))
    others.append("theirs")
    answer = saved(client, seen, "mine")
    assert answer.status_code == 409
    assert "something that this edit depends on" in answer.text
    assert titles(client) == {"a": "A", "b": "theirs"}
    assert saved(client, seen_in(answer), "mine").status_code == 302
    tags = tags_in(client)
    others.append("theirs again")
    answer = deleted(client, tags, "a")
    assert answer.status_code == 409
    assert "has changed something that it depends on" in answer.text
    assert titles(client) == {"a": "mine", "b": "theirs again"}
    assert deleted(client, tags, "a").status_code == 200


@pytest.mark.engines("postgresql")
def test_a_new_row_that_conflicts_at_commit_is_409_too(
    serializable: tuple[TestClient, list[str]],
) -> None:
    """B10: of the form for a new row, and of "Save as new"."""
    client, others = serializable

    def new(path: str, button: str) -> tuple[int, bool]:
        data = {"title": "mine", "save": button}
        answer = client.post(f"/admin/post/{path}", data=data, follow_redirects=False)
        return answer.status_code, "at the same moment" in answer.text

    def posts() -> int:
        with Session(client.engine) as session:  # type: ignore[attr-defined]
            return session.query(Post).count()

    others.append("theirs")
    assert new("create", "Save") == (409, True)
    assert (new("create", "Save"), posts()) == ((302, False), 1)
    others.append("theirs again")
    with Session(client.engine) as session:  # type: ignore[attr-defined]
        key = session.query(Post).one().id
    assert (new(f"edit/{key}", "Save as new"), posts()) == ((409, True), 1)


# -- many-to-many ----------------------------------------------------------------------------------


def test_a_many_to_many_relationship_is_refused_unless_it_is_left_out(tmp_path: Any) -> None:
    """B10: the form was without it, and nothing said so."""
    admin = Admin(Starlette(), create_engine("sqlite://"), etags=TAGS)

    class Silent(ModelView, model=Post):
        pass

    with pytest.raises(ConfigurationError, match=r"form_excluded_columns = \['docs'\]"):
        admin.add_view(Silent)

    class Named(ModelView, model=Post):
        form_columns = ["docs"]

    with pytest.raises(ConfigurationError, match="form_columns names docs"):
        admin.add_view(Named)

    admin.add_view(PostAdmin)


def test_a_form_of_the_program_does_not_write_links_either(tmp_path: Any) -> None:
    """B10: no version guards them."""

    class OwnForm(WTForm):
        docs = SelectMultipleField(choices=[("a", "A"), ("b", "B")])

    class Own(ModelView, model=Post):
        form = OwnForm

    engine = create_engine(f"sqlite:///{tmp_path}/links.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        docs = [Doc(id=key) for key in "ab"]
        session.add_all([*docs, Post(id=1, docs=docs)])
    app = Starlette()
    Admin(app, engine, etags=TAGS).add_view(Own)
    with TestClient(app) as client:
        data = {"optilock_seen": seen_in(client.get("/admin/post/edit/1")), "docs": "a"}
        answer = client.post("/admin/post/edit/1", data=data | {"save": "Save"})
        assert (answer.status_code, "docs of the form is no column" in answer.text) == (400, True)
    with Session(engine) as session:
        assert len(session.get_one(Post, 1).docs) == 2
    engine.dispose()
