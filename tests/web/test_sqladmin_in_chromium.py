"""sqladmin in two windows of a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.applications import Starlette

from optilock import Versioned
from optilock.preconditions.entity_tags import ETags
from optilock.web.sqladmin import Admin, ModelView
from tests.support.chromium import chromium, window
from tests.support.serving import asgi

pytestmark = pytest.mark.full


class Base(DeclarativeBase):
    pass


class Book(Versioned, Base):
    __tablename__ = "admin_in_chromium"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    note: Mapped[str | None]


class Doc(Versioned, Base):
    __tablename__ = "admin_keys_in_chromium"
    id: Mapped[str] = mapped_column(primary_key=True)
    title: Mapped[str]


class DocAdmin(ModelView, model=Doc):
    column_list = ["id", "title"]


class BookAdmin(ModelView, model=Book):
    column_list = ["id", "title"]


def titles(engine: Any) -> dict[int, str]:
    with Session(engine) as session:
        return {book.id: book.title for book in session.query(Book)}


def delete(page: Any, *, several: bool = False) -> None:
    """Press Delete of the first row, or of all that are marked, and say yes."""
    if several:
        page.get_by_role("button", name="Actions").click()
        page.get_by_text("Delete selected items").click()
    else:
        page.locator("a[data-bs-target='#modal-delete'][data-pk]").first.click()
    confirm(page)


def confirm(page: Any) -> None:
    """Say yes. sqladmin names the address only after the dialog has faded in."""
    page.locator("#modal-delete-button:not([data-url=''])").click()


def test_two_people_edit_and_delete_the_same_rows(tmp_path: Path) -> None:
    """B10: the hidden tag of the form, and the script that names versions in a delete."""
    engine = create_engine(f"sqlite:///{tmp_path}/admin.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Book(id=n, title=f"Book {n}") for n in (1, 2, 3)])
    app = Starlette()
    Admin(app, engine, etags=ETags(keys=["sixteen bytes or more"])).add_view(BookAdmin)
    with asgi(app) as port, chromium() as browser:
        ada, bob = (window(browser, f"http://127.0.0.1:{port}") for _ in "ab")
        for page in (ada, bob):
            page.goto("/admin/book/edit/1")
        bob.get_by_label("Title").fill("Bob's")
        with bob.expect_navigation():
            bob.get_by_role("button", name="Save", exact=True).click()
        ada.get_by_label("Title").fill("Ada's")
        ada.get_by_label("Note").fill("hers")
        with ada.expect_navigation():
            ada.get_by_role("button", name="Save", exact=True).click()
        assert ada.locator("#conflict").is_visible()
        cells = ada.locator("#values tbody tr").first.locator("th, td").all_text_contents()
        assert cells == ["title", "Ada's", "Bob's", "Book 1"]
        assert ada.get_by_label("Title").input_value() == "Ada's"
        assert titles(engine)[1] == "Bob's"

        bob.goto("/admin/book/list")
        with ada.expect_navigation():
            ada.get_by_role("button", name="Save", exact=True).click()
        assert titles(engine)[1] == "Ada's"

        for box in bob.locator(".select-box").all():
            box.check()
        delete(bob, several=True)
        bob.locator("#conflict").wait_for(timeout=60_000)
        assert "Deleted: 2, 3." in bob.locator("#conflict").text_content()
        assert titles(engine) == {1: "Ada's"}
        bob.goto("/admin/book/details/1")
        delete(bob)
        bob.wait_for_url("**/admin/book/list*", timeout=60_000)
        assert titles(engine) == {}
    engine.dispose()


KEYS = ("a", "b", "c", "d", "a,b", "c,d", "x/y", "50%", 'it\'s "q"', "#?&=")


def test_a_key_of_any_characters_is_deleted_alone(tmp_path: Path) -> None:
    """B10: sqladmin joins keys with commas: "a,b" was "a" and "b"."""
    engine = create_engine(f"sqlite:///{tmp_path}/keys.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Doc(id=key, title=key) for key in KEYS)

    def left() -> set[str]:
        with Session(engine) as session:
            return {doc.id for doc in session.query(Doc)}

    app = Starlette()
    Admin(app, engine, etags=ETags(keys=["sixteen bytes or more"])).add_view(DocAdmin)
    with asgi(app) as port, chromium() as browser:
        page = window(browser, f"http://127.0.0.1:{port}")
        page.goto("/admin/doc/list")
        page.locator("a[data-bs-target='#modal-delete'][data-pk='a,b']").click()
        with page.expect_navigation():
            confirm(page)
        assert left() == {*KEYS} - {"a,b"}

        mine = {*KEYS} - {"a,b", "c", "d"}
        for row in page.locator("tbody tr").all():
            if row.locator("td").nth(2).inner_text() in mine - {"a", "b"}:
                row.locator(".select-box").check()
        with Session(engine) as session, session.begin():
            session.get_one(Doc, "50%").title = "theirs"
        delete(page, several=True)
        page.locator("#conflict").wait_for(timeout=60_000)
        assert "Not deleted: 50%." in page.locator("#conflict").text_content()
        assert left() == {"a", "b", "c", "d", "50%"}
    engine.dispose()
