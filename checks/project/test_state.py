"""All state that is kept outside of our own objects is listed in docs/contributing/state.md."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import optilock

PACKAGE = Path(optilock.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PAGE = PACKAGE.parent / "docs" / "contributing" / "state.md"
#: Tools of people: what they keep is gone with their command.
TOOLS = {"__init__", "alembic", "check", "cli", "_old_paths", "pytest_plugin", "testing"}
OURS = re.compile(r"_?optilock[._][\w.]*")
WEAK = {"WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "OfTables"}
REGISTRIES = {*WEAK, "ContextVar", "local", "set", "Switch"}
CACHES = {"cache", "lru_cache"}
LISTEN = {"event.listen", "event.listens_for", "sa.event.listen", "sa.event.listens_for"}
#: Variables that hold objects of SQLAlchemy's.
FOREIGN = {"cls", "connection", "engine", "mapper", "session", "state", "table"}
#: Where ``cls`` or ``state`` is ours.
OWN_CLASSES = {"unit.parts", "unit.retries"}


@pytest.fixture(scope="module", autouse=True)
def forgotten_at_the_end() -> Iterator[None]:
    """The trees of all modules are large."""
    yield
    modules.cache_clear()


@functools.cache
def modules() -> list[tuple[str, ast.Module]]:
    found = ((path.relative_to(PACKAGE).with_suffix("").parts, path) for path in FILES)
    return [(".".join(n), ast.parse(path.read_text())) for n, path in found if n[0] not in TOOLS]


def name_of(node: ast.expr | None) -> str:
    """The last name of ``a.b[c](d)``: b."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "attr", getattr(node, "id", ""))


def keys() -> Iterator[str]:
    """Strings that begin with our name: keys, attributes, and names in SQL."""
    for _, tree in modules():
        for node in ast.walk(tree):
            value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and OURS.fullmatch(value):
                yield value


def registries() -> Iterator[str]:
    """Of a module: weak collections, those that it changes, its only object of a class."""
    for module, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                empty = isinstance(node.value, ast.Dict | ast.List) and not ast.dump(
                    node.value
                ).count("Constant")
                made = name_of(node.value) if isinstance(node.value, ast.Call) else ""
                name = name_of(target)
                own = name.islower() and made.startswith("_") and made[1:2].isupper()
                if made in REGISTRIES or own or (empty and name.islower() and name != "__all__"):
                    yield f"{module}.{name}"
            elif isinstance(node, ast.FunctionDef) and not CACHES.isdisjoint(
                map(name_of, node.decorator_list)
            ):
                yield f"{module}.{node.name}"


def swaps() -> Iterator[str]:
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and target.attr == "__class__":
                        yield module


def constants() -> dict[str, object]:
    """Constants that hold the names of SQLAlchemy's attributes: ``FLUSHING = "_flushing"``."""
    return {
        name_of(node.targets[0]): getattr(node.value, "value", None)
        for module, tree in modules()
        if module.startswith("_undocumented.")
        for node in tree.body
        if isinstance(node, ast.Assign)
    }


def covers() -> Iterator[str]:
    """Names of SQLAlchemy's that get a value of ours, on its own objects."""
    known = constants()
    for module, tree in modules():
        for node in ast.walk(tree):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            name: object = None
            if isinstance(node, ast.Call) and name_of(node) == "setattr":
                given = node.args[1]
                constant = isinstance(given, ast.Constant)
                name = given.value if constant else known.get(name_of(given))
            elif isinstance(target, ast.Subscript) and name_of(target) == "__dict__":
                name = getattr(target.slice, "value", None)
            elif isinstance(target, ast.Attribute) and name_of(target.value) in FOREIGN:
                name = target.attr
            if isinstance(name, str) and not OURS.fullmatch(name) and module not in OWN_CLASSES:
                yield name


def listeners() -> Iterator[str]:
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in LISTEN:
                yield module


def listed(head: str) -> set[str]:
    """The names in the first column of the table below a line of the page."""
    rows = PAGE.read_text().split(f"**{head}**")[1].split("\n\n")[1].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


@pytest.mark.parametrize(
    ("head", "find"),
    [
        ("Covered attributes", covers),
        ("Collections of a module", registries),
        ("Classes that are changed", swaps),
        ("Listeners", listeners),
    ],
)
def test_the_page_lists_what_the_source_keeps(head: str, find: Any) -> None:
    assert listed(head) == set(find())


def test_the_page_lists_every_key_and_every_name_in_sql() -> None:
    listed_names = [listed(f"Names in {where}") for where in ("SQL", "telemetry")]
    assert listed("Keys and attributes").union(*listed_names) == set(keys())
