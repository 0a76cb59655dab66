"""``docs/explanation/design.md`` describes the source truly: layers, files, order of functions."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool

from checks.neighbours.comparison import differences
from optilock import Versioned, merge_fields, retrying, unit_of_work, watch

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "optilock"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGE = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
#: Of projects that use optilock, or of SQLAlchemy.
FOREIGN = {"env.py", "app.py", "hello.py", "heroes.py", "conflict.py", "shop.py"}
FOREIGN |= {"edit.py", "buy.py", "web.py", "test_shop.py"}

#: A file, and a function of it.
Step = tuple[str, str]


def section(head: str) -> str:
    return PAGE.split(f"\n## {head}\n")[1].split("\n## ")[0]


# -- layers and files -----------------------------------------------------------------------------


def test_the_layers_are_those_of_the_import_check() -> None:
    picture = section("The promise and the layers").split("```")[1].split("═══")[-1]
    drawn = [set(re.findall(r"^(\w+) ", layer, re.M)) for layer in picture.split("↓")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    assert drawn == [set(layer.split(" : ")) for layer in layers]


def test_no_module_is_imported_by_a_text_that_the_import_check_does_not_see() -> None:
    named = {
        (str(file.relative_to(PACKAGE)), call.args[0].value)
        for file in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] == "import_module"
        and isinstance(call.args[0], ast.Constant)
    }
    ours = {(file, name) for file, name in named if name.startswith((".", "optilock"))}
    assert ours == {("__init__.py", "optilock.events")}


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.stem if page.stem != "README" else page.parent.name
)
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    named = {name for name in re.findall(r"`([\w/.]+\.py)(?:::.*?)?`", text) if "/orm/" not in name}
    places = (ROOT, PACKAGE, ROOT / "apps")
    theirs = FOREIGN | {one.test.split("::")[0] for one in differences()}
    lost = {one for one in named - theirs if not any((place / one).is_file() for place in places)}
    assert lost == set()


def test_each_example_that_the_page_names_is_in_its_file() -> None:
    table = [row.split("|") for row in section("How to add something").splitlines() if "|" in row]
    examples = " ".join(row[4] for row in table[2:])
    found = re.findall(r"((?:`\w+`(?: and )?)+) (?:\([^)]*\) )?in `([\w/]+\.py)`", examples)
    assert len(found) >= len(table[2:])
    for names, path in found:
        place = PACKAGE if (PACKAGE / path).is_file() else ROOT
        source = (place / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(class |def )?{name}\b", source, re.M), (name, path)


# -- the ways --------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    body: Mapped[str]


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        rows = [{"id": number, "title": "", "body": ""} for number in range(1, 1_001)]
        connection.execute(insert(Page), rows)
    yield engine
    engine.dispose()


def way(head: str) -> list[Step]:
    """The files and functions of a table, in their order."""
    first = section(head).split("\n\n|", 1)[1].split("\n\n")[0]
    return re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| `(\w+)` \|", f"|{first}", re.M)


def called_by(work: Callable[[], object]) -> list[Step]:
    calls: list[Step] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            path = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
            calls.append((path, frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def assert_in_order(told: list[Step], calls: list[Step]) -> None:
    assert told
    following = iter(calls)
    for step in told:
        assert step in following, f"{step} is not called, or not there"


def move(engine: Engine, *ids: int) -> None:
    """Change these titles first, in another transaction."""
    with engine.begin() as connection:
        for one in ids:
            connection.exec_driver_sql(
                "UPDATE pages SET title = 'theirs', version = version + 1 WHERE id = ?", (one,)
            )


#: In a process of its own: classes that other tests have mapped, and units that other tests have
#: run, take further steps.
ONE_ROW = """
    import json
    from sqlalchemy.orm import sessionmaker
    from optilock import watch
    from checks.project.test_design import Base, Page, called_by, create_engine

    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with watch(sessionmaker(engine))() as session:
        session.add(Page(id=1, title="", body=""))
        session.commit()
        for title in ("read once", "planned once", "known from then on"):
            session.get_one(Page, 1).title = title
            calls = called_by(session.flush)
    print(json.dumps(calls))
"""


@pytest.fixture(scope="module")
def calls_of_one_row() -> list[Step]:
    command = [sys.executable, "-c", dedent(ONE_ROW)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(path, name) for path, name in json.loads(done.stdout)]


def test_the_way_of_one_row(calls_of_one_row: list[Step]) -> None:
    told = way("How one row is written")
    assert_in_order(told, calls_of_one_row)
    others = {path for path, _ in calls_of_one_row} - {path for path, _ in told}
    assert others <= {"_watched/guard/records.py"}


def test_the_way_of_one_row_changes_its_file_thirteen_times_at_most(
    calls_of_one_row: list[Step],
) -> None:
    """A reader who follows the row opens so many files, one after the other."""
    assert sum(before[0] != after[0] for before, after in pairwise(calls_of_one_row)) <= 13


def test_the_way_of_a_thousand_rows(engine: Engine) -> None:
    with watch(sessionmaker(engine), on_conflict=merge_fields)() as session:
        for page in session.query(Page).all():
            page.body = "ours"
        move(engine, *range(1, 11))
        calls = called_by(session.flush)
        assert session.get_one(Page, 10).title == "theirs"
    assert_in_order(way("How a batch with ten conflicts is written"), calls)


def test_the_way_of_a_retry(engine: Engine) -> None:
    others = [1]

    @unit_of_work(engine, retry=retrying(wait_initial=0))
    def rename(session: Session) -> None:
        session.get_one(Page, 1).title = "ours"
        while others:
            of_driver: Any = session.connection().connection.driver_connection  # which is not seen
            of_driver.execute(f"UPDATE pages SET version = version + 1 WHERE id = {others.pop()}")

    assert_in_order(way("How a unit is retried"), called_by(rename))
