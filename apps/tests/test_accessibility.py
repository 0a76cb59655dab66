"""axe-core finds nothing on the pages that people may copy, or get from optilock.

Each application is opened in a narrow dark window and a wide light one: a form, and what comes back
after a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from starlette.applications import Starlette

from apps.tests.programs import served_by, visitor, wiki_at
from apps.tests.recipes.served_pages import served_page
from apps.tests.recipes.test_form_recipes_in_chromium import htmx
from apps.tests.tutorial.pages import blocks, with_get_one
from apps.tests.tutorial.pages import files as write_files
from apps.tests.tutorial.test_tutorials_in_chromium import TUTORIALS
from apps.tests.tutorial.test_tutorials_in_chromium import served as served_tutorial
from apps.tests.wiki.windows import conflict
from optilock import Versioned, watch
from optilock.preconditions.entity_tags import ETags
from tests.support.chromium import Page, chromium
from tests.support.needed import needed
from tests.support.serving import asgi

pytestmark = [pytest.mark.full, with_get_one]


def axe() -> str:
    try:
        every = files("axe-playwright-python") or ()
    except PackageNotFoundError:
        needed("axe-core is not installed: python -m pip install --group browser")
    [found] = [one for one in every if one.name == "axe.min.js"]
    return Path(str(found.locate())).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


class Window:
    """A page of an application, and what axe has found on all that it has shown."""

    def __init__(self, page: Page, script: str, allowed: Collection[str]) -> None:
        self.page, self._script, self._allowed = page, script, allowed
        self.found: list[str] = []

    def look(self) -> None:
        """Let axe look at the page, and the page be no wider than the window."""
        self.page.evaluate(self._script)
        told = self.page.evaluate("axe.run()")
        title = self.page.title()
        assert len(told["passes"]) > 5  # it has run
        for one in told["violations"]:
            if one["id"] in self._allowed:
                continue
            self.found += [f"{title}: {one['id']}: {node['html']}" for node in one["nodes"]]
        if self.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            self.found.append(f"{title}: wider than the window")

    def open(self, path: str) -> None:
        self.page.goto(path)


#: Rules that the frame of an admin breaks on every page: optilock has no frame.
OF_THE_ADMIN = {
    *("region", "landmark-one-main", "heading-order", "empty-heading", "listitem"),
    "color-contrast",
}


@contextmanager
def windows(
    browser: Any, address: str, allowed: Collection[str] = ()
) -> Iterator[tuple[Window, Window]]:
    """Two people: one with a phone in the dark."""
    script = axe()
    with ExitStack() as opened:
        pair = []
        for scheme, width in (("dark", 320), ("light", 1000)):
            context = browser.new_context(
                base_url=address,
                color_scheme=scheme,
                viewport={"width": width, "height": 800},
                bypass_csp=True,
            )
            opened.callback(context.close)
            pair.append(Window(context.new_page(), script, allowed))
        yield pair[0], pair[1]
    assert [*pair[0].found, *pair[1].found] == []


Fill = Callable[[Page, str], None]


def clash(both: tuple[Window, Window], path: str, fill: Fill, button: str = "Save") -> None:
    """Two people edit the same: axe looks at the form, and at what comes back, in both windows."""
    for mine, other in (both, both[::-1]):
        for one in both:
            one.open(path)
        mine.look()
        for number, one in enumerate((other, mine)):
            fill(one.page, f"{number}{path[-1]}{other is both[0]:d}")
            with one.page.expect_navigation(wait_until="load"):
                one.page.get_by_role("button", name=button, exact=True).click()
        mine.look()
        assert mine.page.content()


def title(page: Page, text: str) -> None:
    page.fill("[name=title]", text)


def clash_by_script(both: tuple[Window, Window], path: str) -> None:
    """The same where a script sends the form, and shows the answer in the page."""
    for one in both:
        one.page.context.route(re.compile("^https:"), lambda route: route.fulfill(path=htmx()))
    for mine, other in (both, both[::-1]):
        for one in both:
            one.open(path)
        mine.look()
        for number, one in enumerate((other, mine)):
            title(one.page, f"{number}{path}{other is both[0]:d}")
            with one.page.expect_response(
                lambda one: one.status != 303 and one.request.resource_type in ("xhr", "fetch")
            ):
                one.page.get_by_role("button", name="Save", exact=True).click()
        mine.page.get_by_role("alert").filter(has_text="oth of you have changed").wait_for()
        mine.look()


def test_the_pages_of_the_tutorial(browser: Any, tmp_path: Path) -> None:
    pages = ["1-first-conflict.md", "2-settle-and-retry.md", "3-forms.md"]
    write_files(tmp_path, *pages)
    _python, *words = blocks(pages[2], "console")[1].removeprefix("$ ").split()
    with (
        served_by(*words, folder=tmp_path) as port,
        windows(browser, f"http://127.0.0.1:{port}") as both,
    ):
        clash(both, "/products/1", lambda page, text: page.fill("[name=notes]", text))


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_pages_of_a_web_application(browser: Any, tmp_path: Path, name: str) -> None:
    path = TUTORIALS[name][2]
    with served_tutorial(name, tmp_path) as address:
        root = address.removesuffix(path)
        with windows(browser, root) as both:
            clash(both, path, title)


def test_the_pages_of_the_wiki(browser: Any, tmp_path: Path) -> None:
    text = "Boil the water.\nWait three minutes.\n"
    with wiki_at(folder=tmp_path) as address:
        with visitor(address) as one:
            one.send(one.open("/new").form, name="tea", body=text)
        with windows(browser, address) as both:
            for path in ("/", "/new", "/pages/tea", "/pages/tea/edit", "/pages/tea/edit"):
                for one in both:
                    one.open(path)
                    one.look()
            for number, (ada, bob) in enumerate((both, both[::-1])):
                theirs, mine = (text.replace("three", f"{word}{number}") for word in ("2", "5"))
                conflict(ada.page, bob.page, "tea", mine=mine, theirs=theirs)
                ada.look()
                assert ada.page.title().startswith("Conflict")


def test_the_recipes_and_the_lines(browser: Any, tmp_path: Path) -> None:
    with (
        served_page("how-to/web/form-recipes.md", tmp_path) as program,
        windows(browser, program.address) as both,
    ):
        for name in program.FORMS:
            if name in ("htmx", "state"):
                clash_by_script(both, f"/{name}")
            else:
                clash(both, f"/{name}", title)
    (tmp_path / "lines").mkdir()
    with (
        served_page("how-to/web/form-lines.md", tmp_path / "lines") as program,
        windows(browser, program.address) as both,
    ):
        clash(both, "/", lambda page, text: page.fill("[name=customer]", text))


class Base(DeclarativeBase):
    pass


class Book(Versioned, Base):
    __tablename__ = "books_of_accessible_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    note: Mapped[str | None]


def test_what_optilock_adds_to_an_admin(browser: Any, tmp_path: Path) -> None:
    """The rest of these pages is the admin's own."""
    from optilock.web import sqladmin, starlette_admin

    class BookAdmin(sqladmin.ModelView, model=Book):
        column_list = ["id", "title"]

    engine = create_engine(f"sqlite:///{tmp_path}/admin.db")
    Base.metadata.create_all(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add(Book(id=1, title="Book"))
    app = Starlette()
    sqladmin.Admin(app, engine, etags=ETags(keys=["sixteen bytes or more"])).add_view(BookAdmin)
    from starlette_admin.contrib.sqla import Admin

    other = Admin(sessions, base_url="/other", secret_key="a secret of the tests, long enough")
    other.add_view(starlette_admin.ModelView(Book))
    other.mount_to(app)
    with asgi(app) as port, windows(browser, f"http://127.0.0.1:{port}", OF_THE_ADMIN) as both:
        clash(both, "/admin/book/edit/1", title)
        clash(both, "/other/book/edit?pk=1", title)
