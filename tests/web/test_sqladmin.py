"""sqladmin, with its real app: two people edit and delete the same rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
import sqladmin
from sqlalchemy import Engine, ForeignKey, String, Text, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from starlette.applications import Starlette
from starlette.testclient import TestClient
from wtforms import Form as WTForm
from wtforms import StringField

from optilock import ConfigurationError, Versioned
from optilock.preconditions.entity_tags import ETags
from optilock.resolvers import merge_text, per_field
from optilock.web.sqladmin import Admin, ModelView

TAGS = ETags(keys=["a secret of sixteen bytes or more"])


class Base(DeclarativeBase):
    pass


class Shelf(Versioned, Base):
    __tablename__ = "admin_shelves"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    books: Mapped[list[Book]] = relationship(back_populates="shelf")

    def __str__(self) -> str:
        return self.name


class Book(Versioned, Base):
    __tablename__ = "admin_books"
    __version_author__ = "updated_by"
    __version_time__ = "updated_at"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))
    note: Mapped[str | None] = mapped_column(String(50))
    body: Mapped[str] = mapped_column(Text, default="")
    lent: Mapped[bool] = mapped_column(default=False)
    printed: Mapped[datetime | None]
    updated_by: Mapped[str | None] = mapped_column(String(50))
    updated_at: Mapped[datetime] = mapped_column(
        default=lambda: datetime.now(UTC).replace(tzinfo=None),
        onupdate=lambda: datetime.now(UTC).replace(tzinfo=None),
    )
    shelf_id: Mapped[int | None] = mapped_column(ForeignKey("admin_shelves.id"))
    shelf: Mapped[Shelf | None] = relationship(back_populates="books")


class Form(HTMLParser):
    """The fields of a page's form, as a browser would send them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.name = self.area = ""
        self.feed(html.partition('method="POST"')[2].partition("</form>")[0])

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        name, kind = given.get("name", self.name), given.get("type")
        if tag == "option" and "selected" in given:
            self.fields[name] = given["value"]
        elif tag == "select":
            self.name = name
        elif tag == "textarea":
            self.area, self.fields[name] = name, ""
        elif tag == "input" and kind != "submit" and (kind != "checkbox" or "checked" in given):
            self.fields[name] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            text = self.fields[self.area].replace("\r\n", "\n")
            self.fields[self.area], self.area = text.removeprefix("\n"), ""

    def handle_data(self, data: str) -> None:
        if self.area:
            self.fields[self.area] += data


class BookAdmin(ModelView, model=Book):
    column_list = "__all__"
    on_conflict = per_field(body=merge_text)

    async def on_model_change(
        self, data: dict[str, Any], model: Any, is_created: bool, request: Any
    ) -> None:
        data["updated_by"] = request.headers.get("user")


class ShelfAdmin(ModelView, model=Shelf):
    pass


PRINTED = datetime(2026, 5, 1, 12, 30, 15, 123456)


@pytest.fixture(params=["threads", "asyncio"])
def client(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[TestClient]:
    """An admin over two books on two shelves, with sessions of both kinds."""
    path = tmp_path / "admin.db"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Shelf(id=1, name="Left"), Shelf(id=2, name="Right")])
        session.add(Book(id=1, title="Tea", body="a\nb\nc\n", printed=PRINTED, shelf_id=1))
        session.add_all([Book(id=2, title="Milk"), Book(id=3, title="Sugar")])
    behind: Any = create_engine(f"sqlite:///{path}")
    if request.param == "asyncio":
        behind = create_async_engine(f"sqlite+aiosqlite:///{path}")
    app = Starlette()
    admin = Admin(app, behind, etags=TAGS)
    admin.add_view(BookAdmin)
    admin.add_view(ShelfAdmin)
    with TestClient(app) as client:
        client.engine = engine  # type: ignore[attr-defined]
        yield client
        if request.param == "asyncio":
            client.portal.call(behind.dispose)  # type: ignore[union-attr]
        else:
            behind.dispose()
    engine.dispose()


def opened(client: TestClient, pk: int = 1) -> Form:
    answer = client.get(f"/admin/book/edit/{pk}")
    assert answer.status_code == 200
    return form_in(answer)


def form_in(answer: Any) -> Form:
    return Form(answer.text)


def sent(client: TestClient, form: Form, user: str = "", pk: int = 1, **edits: str) -> Any:
    fields = {**form.fields, **edits, "save": "Save"}
    fields = {name: text.replace("\n", "\r\n") for name, text in fields.items()}
    where = f"/admin/book/edit/{pk}"
    return client.post(where, data=fields, headers={"user": user}, follow_redirects=False)


def stored(client: TestClient, pk: int = 1) -> Book | None:
    with Session(client.engine) as session:  # type: ignore[attr-defined]
        return session.get(Book, pk)


def test_the_version_is_in_no_page_and_the_tag_is_in_the_form(client: TestClient) -> None:
    """B10: sqladmin's own form has a field for the version, and cannot be saved."""
    for path in ("book/list", "book/details/1", "book/edit/1", "book/create", "book/export/csv"):
        answer = client.get(f"/admin/{path}")
        assert answer.status_code == 200, path
        assert ">version<" not in answer.text, path
        assert 'name="version"' not in answer.text, path
    fields = opened(client).fields
    assert fields["optilock_seen"]
    assert fields.keys() == {"optilock_seen", "title", "note", "body", "printed", "shelf"}
    made = client.post("/admin/book/create", data={"title": "New", "body": "x", "save": "Save"})
    assert made.status_code == 200
    assert stored(client, 4).title == "New"  # type: ignore[union-attr]


def test_edits_of_different_fields_are_merged(client: TestClient) -> None:
    """B10: a second save wrote every field back that the first one had changed."""
    ada, bob = opened(client), opened(client)
    assert sent(client, ada, "Ada", title="Green tea", body="A\nb\nc\n").status_code == 302
    answer = sent(client, bob, "Bob", shelf="2", lent="y", body="a\nb\nC\n")
    assert answer.status_code == 302
    book = stored(client)
    assert book is not None
    assert (book.title, book.shelf_id, book.lent, book.body) == ("Green tea", 2, True, "A\nb\nC\n")
    assert book.updated_by == "Bob"
    assert book.printed == PRINTED  # the field shows no microseconds


def test_a_conflict_shows_three_values_and_who_was_first(client: TestClient) -> None:
    """B10: 409, from which the person can go on; nothing was saved."""
    ada, bob = opened(client), opened(client)
    sent(client, ada, "Ada <3", title="Hers", note="new", shelf="2")
    answer = sent(client, bob, "Bob", title="His", shelf="__None")
    assert answer.status_code == 409
    assert "changed by Ada &lt;3, just now" in answer.text
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", answer.text.split('id="values"')[1])
    assert {tuple(cells[at : at + 4]) for at in (4, 8)} == {
        ("title", "His", "Hers", "Tea"),
        ("shelf_id", "", "2", "1"),
    }
    again = form_in(answer)
    assert (again.fields["title"], again.fields["note"]) == ("His", "new")
    assert again.fields["shelf"] == "__None"
    assert stored(client).title == "Hers"  # type: ignore[union-attr]

    sent(client, opened(client), "Ada", title="Once more")  # and another one comes between
    third = sent(client, again, "Bob")
    assert third.status_code == 409
    assert sent(client, form_in(third), "Bob").status_code == 302
    book = stored(client)
    assert book is not None
    assert (book.title, book.note, book.shelf_id) == ("His", "new", None)


def test_a_text_that_both_changed_is_left_open(client: TestClient) -> None:
    """B10: the policy of a field makes the form again, and marks are not saved."""
    ada, bob = opened(client), opened(client)
    sent(client, ada, body="A\nb\nc\n")
    answer = sent(client, bob, body="B\nb\nc\n")
    assert answer.status_code == 409
    again = form_in(answer)
    assert "&lt;&lt;&lt;" in answer.text
    assert sent(client, again).status_code == 409
    assert stored(client).body == "A\nb\nc\n"  # type: ignore[union-attr]
    assert sent(client, again, body="AB\nb\nc\n").status_code == 302


def test_a_form_without_its_tag_or_with_that_of_another_row_is_refused(client: TestClient) -> None:
    """B10: 428 and 400, and nothing is written."""
    form = opened(client)
    other = opened(client, 2).fields["optilock_seen"]
    assert sent(client, form, title="x", optilock_seen=other).status_code == 400
    assert sent(client, form, title="x", optilock_seen="").status_code == 428
    form.fields.pop("optilock_seen")
    assert sent(client, form, title="x").status_code == 428
    assert stored(client).title == "Tea"  # type: ignore[union-attr]


def test_save_as_new_takes_no_tag_into_the_new_row(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B10: the copy is a row of its own, and the one that was read stays."""
    monkeypatch.setattr(BookAdmin, "save_as", True)
    data = {**opened(client).fields, "title": "Copy", "save": "Save as new"}
    assert client.post("/admin/book/edit/1", data=data).status_code == 200
    assert (stored(client).title, stored(client, 4).title) == ("Tea", "Copy")  # type: ignore[union-attr]


def test_a_form_for_a_row_that_is_gone_shows_what_was_typed(client: TestClient) -> None:
    """B10: 409 for who had seen the row, 404 for anybody else."""
    form = opened(client)
    with Session(client.engine) as session, session.begin():  # type: ignore[attr-defined]
        session.delete(session.get(Book, 1))
    answer = sent(client, form, title="My long title")
    assert (answer.status_code, "My long title" in answer.text) == (409, True)
    form.fields.pop("optilock_seen")
    assert sent(client, form).status_code == 404


def tags_in(client: TestClient, path: str) -> dict[str, str]:
    html = client.get(f"/admin/book/{path}").text
    found = re.search(r'<script id="optilock-tags" type="application/json">(.*?)</script>', html)
    assert found is not None
    tags: dict[str, str] = json.loads(found.group(1))
    return tags


def deleted(client: TestClient, *pks: str, tags: dict[str, str] | None) -> Any:
    query: dict[str, Any] = {"pk": pks}
    if tags is not None:
        query["tag"] = [tags[pk] for pk in pks]
    return client.delete("/admin/book/delete", params=query)


def test_a_view_that_edits_no_rows_answers_a_form_as_sqladmin_does(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B10: 403, and not the page of a row that is gone."""
    form = opened(client)
    monkeypatch.setattr(BookAdmin, "can_edit", False)
    assert sent(client, form, title="x").status_code == 403
    assert stored(client).title == "Tea"  # type: ignore[union-attr]


def test_deletes_are_conditional_one_row_or_several(client: TestClient) -> None:
    """B10: a row that has changed since its page was made stays, and the answer says so."""
    tags = tags_in(client, "list")
    assert tags.keys() == {"1", "2", "3"}
    sent(client, opened(client, 2), "Ada", 2, title="Oat milk")
    answer = deleted(client, "1", "2", "3", tags=tags)
    assert answer.status_code == 409
    assert "Deleted: 1, 3." in answer.text
    assert "changed by Ada, just now" in answer.text
    assert (stored(client, 1), stored(client, 3)) == (None, None)
    assert stored(client, 2) is not None
    assert deleted(client, "2", tags=tags_in(client, "details/2")).status_code == 200
    assert stored(client, 2) is None


def test_a_delete_without_a_tag_or_with_that_of_another_row_is_refused(client: TestClient) -> None:
    """B10: 428 and 400."""
    tags = tags_in(client, "list")
    assert deleted(client, "1", tags=None).status_code == 428
    assert deleted(client, "1", tags={"1": ""}).status_code == 428
    assert deleted(client, "1", tags={"1": tags["2"]}).status_code == 400
    assert deleted(client, "1", tags={"1": "no tag"}).status_code == 400
    assert deleted(client, "one", tags={"one": tags["1"]}).status_code == 404
    assert deleted(client, str(10**30), tags=None).status_code == 404
    assert stored(client, 1) is not None


def test_a_write_between_the_look_and_the_update_is_a_conflict_too(
    client: TestClient, request: pytest.FixtureRequest
) -> None:
    """B10: the condition is in the WHERE."""
    form, engine = opened(client), client.engine  # type: ignore[attr-defined]
    done: list[int] = []

    @event.listens_for(Engine, "before_cursor_execute")
    def other(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE admin_books") and conn.engine is not engine and not done:
            done.append(1)
            with Session(engine) as session, session.begin():
                session.get_one(Book, 1).title = "Theirs"

    request.addfinalizer(lambda: event.remove(Engine, "before_cursor_execute", other))
    assert sent(client, form, title="Mine").status_code == 409
    assert stored(client).title == "Theirs"  # type: ignore[union-attr]


def test_views_that_would_lose_edits_are_refused() -> None:
    """B10: sqladmin's own view of a class with a version; ours of one without; to-many fields."""
    app, engine = Starlette(), create_engine("sqlite://")
    admin = Admin(app, engine, etags=TAGS)

    class Plain(sqladmin.ModelView, model=Book):
        pass

    with pytest.raises(ConfigurationError, match="or its forms lose edits"):
        admin.add_view(Plain)

    class Many(ModelView, model=Shelf):
        form_columns = ["name", "books"]

    with pytest.raises(ConfigurationError, match="form_columns names books"):
        admin.add_view(Many)
    with pytest.raises(ConfigurationError, match="needs etags="):
        Admin(Starlette(), engine, etags=ETags())
    with TestClient(app) as client:
        assert client.get("/admin/").status_code == 200


def test_a_field_that_is_no_column_is_refused_and_a_hook_may_take_it_out(tmp_path: Any) -> None:
    """B10: what no version guards is not written; a reload brings no old text beside a new tag."""
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Shelf(id=1, name="Left"))

    class OwnForm(WTForm):
        name = StringField()
        again = StringField()

    class Own(ModelView, model=Shelf):
        form = OwnForm

        async def on_model_change(
            self, data: dict[str, Any], model: Any, is_created: bool, request: Any
        ) -> None:
            if data["again"] == data["name"]:
                del data["again"]

    app = Starlette()
    Admin(app, engine, etags=TAGS).add_view(Own)
    with TestClient(app) as client:
        page = client.get("/admin/shelf/edit/1")
        assert 'method="POST" autocomplete="off"' in page.text
        data = {**form_in(page).fields, "name": "x", "save": "Save"}
        statuses = [
            client.post("/admin/shelf/edit/1", data={**data, "again": again}).status_code
            for again in ("y", "x")
        ]
    assert statuses == [400, 200]
    with Session(engine) as session:
        assert session.get_one(Shelf, 1).name == "x"
    engine.dispose()


def test_in_an_admin_of_sqladmin_nothing_is_written(tmp_path: Any) -> None:
    """B10: its answer to a conflict would be that all is saved."""
    engine = create_engine(f"sqlite:///{tmp_path}/plain.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Shelf(id=1, name="Left"))

    class Ours(ModelView, model=Shelf):
        etags = TAGS
        list_template = "sqladmin/list.html"
        edit_template = "sqladmin/edit.html"

    app = Starlette()
    sqladmin.Admin(app, engine).add_view(Ours)
    with TestClient(app) as client:
        form = form_in(client.get("/admin/shelf/edit/1"))
        data = {**form.fields, "name": "x", "save": "Save"}
        answer = client.post("/admin/shelf/edit/1", data=data, follow_redirects=False)
        assert answer.status_code == 400
        client.delete("/admin/shelf/delete?pks=1")
    with Session(engine) as session:
        assert session.get_one(Shelf, 1).name == "Left"
    engine.dispose()
