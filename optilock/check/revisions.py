"""Revisions of Alembic that import the models as they are today.

A revision that changes data was written when the classes had fewer columns. On a fresh database it
runs again before later revisions add the columns that today's classes select, for example their
version. Then every query fails (``no such column``), and the database cannot be set up.

The files are parsed and never run. Imports through another module are not found.
"""

from __future__ import annotations

import ast
import configparser
import os
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import MetaData, Table
from sqlalchemy.orm import Mapper

from optilock._mapped import facts
from optilock.check.findings import Finding, warning
from optilock.errors import ConfigurationError

# -- imports --------------------------------------------------------------------------------------


def check_revisions(mappers: Iterable[Mapper[Any]], folders: Iterable[Path]) -> Iterator[Finding]:
    """Check all revisions below these folders."""
    live = _Live([mapper for mapper in mappers if facts(mapper).guarded])
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            yield from _of_file(path, folder, live)


def _of_file(path: Path, folder: Path, live: _Live) -> Iterator[Finding]:
    name = (Path(folder.name) / path.relative_to(folder)).as_posix()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:
        yield warning(
            "unreadable",
            name,
            f"The revision cannot be read ({type(error).__name__}), so its imports are unknown.",
            "Look at the file.",
        )
        return
    found = [(line, what) for line, what in _imports(tree) if live.has(*what)]
    if found:
        what = ", ".join(dict.fromkeys(_said(*what) for _, what in found))
        yield warning(
            "live-models",
            f"{name}:{found[0][0]}",
            f"The revision imports {what} as the program has it today. On a fresh database it runs"
            " before later revisions have added what the classes select, their version for example:"
            " every query of them fails (no such column).",
            "Write into the revision which columns it needs: pages = sa.table('pages',"
            " sa.column('id'), sa.column('title')); op.execute(pages.update().values(…)).",
        )


def _said(module: str, name: str | None) -> str:
    return module if name in (None, "*") else f"{module}.{name}"


#: A module, and a name in it if only that is imported.
_What = tuple[str, str | None]


def _imports(node: ast.AST) -> Iterator[tuple[int, _What]]:
    """Yield lines and their imports, anywhere in the file but under ``TYPE_CHECKING``."""
    yield from ((node.lineno, what) for what in _imported_by(node))  # type: ignore[attr-defined]
    parts = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        parts = iter(node.orelse)
    for part in parts:
        yield from _imports(part)


def _imported_by(node: ast.AST) -> Iterator[_What]:
    match node:
        case ast.Import(names=names):
            yield from ((one.name, None) for one in names)
        case ast.ImportFrom(module=module, names=names, level=0):
            yield from ((module or "", one.name) for one in names)
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if _is_import(func):
            yield name, None


def _is_import(called: ast.expr) -> bool:
    return ast.unparse(called).rpartition(".")[2] in ("import_module", "__import__")


class _Live:
    """Classes with a version, and the modules, tables and metadata that contain them."""

    def __init__(self, mappers: Collection[Mapper[Any]]) -> None:
        self.classes = {mapper.class_ for mapper in mappers}
        self.tables = {table for mapper in mappers for table in mapper.tables}
        self.metadata = {table.metadata for table in self.tables if isinstance(table, Table)}
        self.modules = {cls.__module__ for cls in self.classes}

    def has(self, module: str, name: str | None) -> bool:
        """Return whether an import contains one of them."""
        if name is None or name == "*":
            return self._holds(module)
        if self._holds(f"{module}.{name}"):
            return True
        there = sys.modules.get(module)  # getattr() could import more
        return there is not None and self._is_one(vars(there).get(name))

    def _holds(self, module: str) -> bool:
        """Return whether the module defines a class, or a package exports it."""
        there = sys.modules.get(module)
        return module in self.modules or (
            there is not None and any(map(self._is_one, list(vars(there).values())))
        )

    def _is_one(self, value: Any) -> bool:
        if isinstance(value, ModuleType):
            return value.__name__ in self.modules
        if isinstance(value, (MetaData, Table)):
            return value in self.metadata or value in self.tables
        return isinstance(value, type) and (value in self.classes or self._is_base(value))

    def _is_base(self, value: type[Any]) -> bool:
        """Return whether a class is a declarative base whose metadata has the tables."""
        metadata = getattr(value, "metadata", None)
        return isinstance(metadata, MetaData) and metadata in self.metadata


# -- where the revisions are ----------------------------------------------------------------------


def settings_here() -> Path | None:
    """Return Alembic's settings in the working directory, if they lead to revisions."""
    files = (Path(name) for name in ("alembic.ini", "pyproject.toml"))
    return next((file for file in files if _of_settings(file)), None)


def folders_of(alembic: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of revisions; ``alembic`` is a folder or a file of settings.

    Raises:
        ConfigurationError: there are none.
    """
    path = Path(alembic)
    found = _of_folder(path) if path.is_dir() else _of_settings(path)
    if not found:
        raise ConfigurationError(
            f"{str(path)!r} leads to no revisions of Alembic: name its alembic.ini, or the folder"
            " that has the revisions (migrations/versions)."
        )
    return found


def _of_folder(path: Path) -> list[Path]:
    return [path / "versions"] if (path / "versions").is_dir() else [path]


def _of_settings(file: Path) -> list[Path]:
    """Return the folders in Alembic's own settings; none where these cannot be read."""
    settings = _settings(file)
    script = settings.get("script_location")
    named = settings.get("version_locations") or []
    if isinstance(named, str):
        named = _split(
            named, settings.get("path_separator", settings.get("version_path_separator"))
        )
    if not named and isinstance(script, str):
        named = [f"{script}/versions"]
    found = (_folder(each, file.parent) for each in named)
    return [folder for folder in found if folder is not None]


def _settings(file: Path) -> dict[str, Any]:
    here = str(file.parent.resolve())
    try:
        if file.suffix == ".toml":
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
            own = settings.get("tool", {}).get("alembic", {})
            return {name: _with_here(value, here) for name, value in own.items()}
        parser = configparser.ConfigParser({"here": here})
        parser.read_string(file.read_text(encoding="utf-8"))
        return dict(parser["alembic"]) if "alembic" in parser else {}
    except (OSError, UnicodeError, configparser.Error, tomllib.TOMLDecodeError):
        return {}


def _with_here(value: Any, here: str) -> Any:
    if isinstance(value, list):
        return [_with_here(one, here) for one in value]
    return value.replace("%(here)s", here) if isinstance(value, str) else value


def _split(named: str, separator: str | None) -> list[str]:
    signs = {"os": os.pathsep, "space": " ", "newline": "\n", ":": ":", ";": ";"}
    pattern = re.escape(signs[separator]) if separator in signs else r", *| +"
    return [one.strip() for one in re.split(pattern, named) if one.strip()]


def _folder(named: str, beside: Path) -> Path | None:
    """Return the folder, relative to the working directory as in Alembic, or to the settings."""
    package, colon, within = named.partition(":")
    if colon and re.fullmatch(r"\w+(\.\w+)*", package) and within[:1] not in ("/", "\\"):
        spec = find_spec(package)
        roots = [Path(root) for root in (spec and spec.submodule_search_locations) or ()]
        tried = [root / within for root in roots]
    else:
        tried = [Path(named), beside / named]
    return next((path for path in tried if path.is_dir()), None)
