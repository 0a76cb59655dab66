"""Code lines of each feature, against the table of ``docs/contributing/sizes.md``.

::

    python -m checks.sizes            # the table, with what has changed
    python -m checks.sizes --write    # writes smaller figures into the page

A line of code is one that is not blank, and no part of a comment, a docstring, an import or
``__all__``. A file belongs to the first feature of the table with a pattern that it matches.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "optilock"
PAGE = ROOT / "docs" / "contributing" / "sizes.md"
_ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<patterns>`[^|]+`) \| (?P<lines>[\d,]+) \|$", re.M)


@dataclass(frozen=True)
class Feature:
    """A row of the table; ``lines``: the most code lines that its files may have."""

    name: str
    patterns: tuple[str, ...]
    lines: int

    def has(self, file: str) -> bool:
        return any(fnmatchcase(file, pattern) for pattern in self.patterns)


def features() -> list[Feature]:
    """Return the rows of the page."""
    return [
        Feature(
            row["name"].strip(),
            tuple(re.findall(r"`([^`]+)`", row["patterns"])),
            int(row["lines"].replace(",", "")),
        )
        for row in _ROW.finditer(PAGE.read_text(encoding="utf-8"))
    ]


def found() -> dict[str, int]:
    """Return the code lines of each feature, and of files that are of none under their names."""
    rows, lines = features(), {one.name: 0 for one in features()}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        name = next((one.name for one in rows if one.has(file)), file)
        lines[name] = lines.get(name, 0) + code_lines(path.read_text(encoding="utf-8"))
    return lines


def code_lines(source: str) -> int:
    """Return the number of lines of code in a module."""
    other = {number for first, last in _no_code(ast.parse(source)) for number in range(first, last)}
    return sum(
        1
        for number, line in enumerate(source.splitlines(), 1)
        if number not in other and line.strip() and not line.lstrip().startswith("#")
    )


def _no_code(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (_lines_of(one) for one in node.body if _is_text(one))
        elif isinstance(node, (ast.Import, ast.ImportFrom)) or _is_all(node):
            yield _lines_of(node)


def _lines_of(node: Any) -> tuple[int, int]:
    return node.lineno, node.end_lineno + 1


def _is_text(node: ast.stmt) -> bool:
    constant = node.value if isinstance(node, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def _is_all(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(ast.unparse(one) == "__all__" for one in targets)


def write() -> None:
    """Write smaller figures into the page."""
    now = found()

    def row(old: re.Match[str]) -> str:
        stated = int(old["lines"].replace(",", ""))
        lines = min(stated, now[old["name"].strip()])
        return f"| {old['name']} | {old['patterns']} | {lines:,} |"

    PAGE.write_text(_ROW.sub(row, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write smaller figures into the page")
    if parser.parse_args().write:
        write()
    now = found()
    stated = {one.name: one.lines for one in features()}
    for name, lines in sorted(now.items(), key=lambda one: -one[1]):
        change = lines - stated.get(name, 0)
        print(f"{lines:6,}  {name}{f'  ({change:+})' if change else ''}")
    print(f"{sum(now.values()):6,}  in all")


if __name__ == "__main__":
    main()
