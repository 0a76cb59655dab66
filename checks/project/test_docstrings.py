"""What docstrings and comments of the library refer to is there."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import optilock

PACKAGE = Path(optilock.__file__).parent
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`~?([\w.]+)`")


def texts_of(tree: ast.Module, comments: str) -> Iterator[tuple[str, list[str]]]:
    """Each docstring with the classes around it; a comment may mean any class of the file."""
    classes = [one.name for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    yield comments, classes
    todo: list[tuple[ast.AST, list[str]]] = [(tree, [])]
    while todo:
        node, around = todo.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            around = [*around, node.name] if isinstance(node, ast.ClassDef) else around
            yield ast.get_docstring(node) or "", around
        todo += [(child, around) for child in ast.iter_child_nodes(node)]


def is_there(name: str, module: str, classes: list[str]) -> bool:
    package = module.rpartition(".")[0]
    places = [*(f"{module}.{one}." for one in classes), f"{module}.", f"{package}.", ""]
    return any(_found(place + name) for place in places)


def _found(path: str) -> bool:
    words = path.split(".")
    for end in range(len(words), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(words[:end]))
        except ImportError:
            continue
        return _has(found, words[end:])
    return False


def _has(owner: Any, names: list[str]) -> bool:
    for name in names:
        if not hasattr(owner, name):
            return name in getattr(owner, "__annotations__", {}) and name == names[-1]
        owner = getattr(owner, name)
    return True


def modules() -> Iterator[ModuleType]:
    for one in pkgutil.walk_packages([str(PACKAGE)], "optilock."):
        try:
            yield importlib.import_module(one.name)
        except ImportError as absent:  # of an extra
            if str(absent.name).startswith("optilock"):
                raise


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_name_that_a_docstring_refers_to_is_there() -> None:
    absent = set()
    for module in modules():
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        comments = "\n".join(line for line in source.splitlines() if line.strip().startswith("#"))
        for text, classes in texts_of(ast.parse(source), comments):
            for name in _ROLE.findall(text):
                if not is_there(name, module.__name__, classes):
                    absent.add((module.__name__, name))
    assert absent == set()
