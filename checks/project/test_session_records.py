"""Each field of the records of a session, and of a flush, is written by one file.

The source is read: an assignment to an attribute that has the name of a field counts, unless it is
one of another object (:data:`OTHERS`). An object of a record has one of the names in :data:`NAMES`.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import optilock
from optilock._watched.guard.records import Flush
from optilock._watched.session.record import FlushRecord, SessionRecord, StatementRecord
from optilock._watched.session.transaction import TransactionRecord

PACKAGE = Path(optilock.__file__).parent
SESSION = (TransactionRecord, FlushRecord, StatementRecord, SessionRecord)
#: The variables, attributes and functions that give an object of these classes.
NAMES: dict[tuple[type, ...], set[str]] = {
    SESSION: {"known", "record", "session_record", "record_of", "SessionRecord"},
    (Flush,): {"flush", "running", "outer", "before"},
}
#: Variables and attributes with objects of other classes.
OTHERS = {
    "cls",
    "connection",
    "dead",
    "outcome",
    "request",
    "session",
    "features_in_use",
    "other",
    "unit",
}


def name_of(node: ast.expr) -> str:
    """The last name of ``a.b`` or ``b(...)``: b."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


def fields(cls: type) -> set[str]:
    """What is declared in the body of the class, or assigned to ``self`` in its methods."""
    tree = tree_of(file_of(cls))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls.__name__)
    declared = {n.target.id for n in body.body if isinstance(n, ast.AnnAssign)}
    declared |= {t.id for n in body.body if isinstance(n, ast.Assign) for t in n.targets}
    return declared | {name for name, owner, _ in writes(body) if owner == "self"}


def file_of(cls: type) -> Path:
    return PACKAGE.parent / Path(*cls.__module__.split(".")).with_suffix(".py")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def writes(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Attribute, object and line of each assignment to an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.attr, name_of(node.value), node.lineno


@functools.cache
def written() -> list[tuple[Path, list[tuple[str, str, int]]]]:
    return [(path, list(writes(tree_of(path)))) for path in PACKAGE.rglob("*.py")]


def writers(classes: tuple[type, ...], names: set[str]) -> dict[str, set[str]]:
    """Field -> the files that write it."""
    every = {field for cls in classes for field in fields(cls)}
    own = {file_of(cls) for cls in classes}
    found: dict[str, set[str]] = defaultdict(set)
    for path, places in written():
        for field, owner, line in places:
            if field in every and (owner in names or (owner == "self" and path in own)):
                found[field].add(path.relative_to(PACKAGE).as_posix())
            elif field in every and owner != "self":
                others = OTHERS.union(*(some for of, some in NAMES.items() if of != classes))
                assert owner in others, f"{path.name}:{line} writes {owner}.{field}: what is it?"
    return found


@pytest.mark.parametrize("classes", NAMES, ids=["session", "flush"])
def test_each_field_is_written_by_one_file(classes: tuple[type, ...]) -> None:
    found = writers(classes, NAMES[classes])
    assert len(found) > 20
    assert {field: files for field, files in found.items() if len(files) > 1} == {}


def test_a_session_has_one_record_of_three_parts() -> None:
    """Their fields do not overlap."""
    parts = [fields(cls) for cls in SESSION]
    assert all(map(len, parts))
    assert sum(map(len, parts)) == len(set().union(*parts))
