"""Write ``tests/MAP.md``: the test files of each source file, the closest first.

    python -m tests.map

Run it after a file was moved or renamed: ``tests/unit/test_map.py`` fails until then.
:mod:`tests.of` prints and runs those of one file. The map is computed from the text of both
trees, so that it needs no marker in any file:

* A test file that imports a name from a source file tests that file. Re-exports are followed to
  the file that defines the name.
* Two files are close if their names and the names of their functions and classes share words. A
  rare word counts more than a common one.
* A test file in a folder of the name of the source file's room is close to it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["MAP", "ROOT", "Map", "read"]

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "tests" / "MAP.md"
#: The number of test files in a row of the map.
_SHOWN = 4
#: What a common room adds to the closeness of two files.
_SAME_ROOM = 0.1

_DEFINED = re.compile(r"^(?:async def|def|class) (\w+)|^(\w+)(?:: [^=\n]+)? = ", re.MULTILINE)
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
_IMPORT = re.compile(r"^ *from (optilock[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_MODULE = re.compile(r"^ *import (optilock[\w.]*)", re.MULTILINE)
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_HEAD = """\
# Which tests protect a source file

`python -m tests.map` writes this page; do not edit it. The closest test file is first.
`python -m tests.of optilock/mapped.py` prints them for one file, and runs them with `--run`.

| source file | test files |
|---|---|
"""


@dataclass(frozen=True)
class _File:
    """A source file or a test file, by its path below the root."""

    path: str
    text: str

    @cached_property
    def names(self) -> list[str]:
        """The functions, classes and constants that it defines."""
        return [one or other for one, other in _DEFINED.findall(self.text)]

    @cached_property
    def imports(self) -> list[tuple[str, str]]:
        """The names that it imports from the library, each with the module; "" for a module."""
        found = [(module, "") for module in _MODULE.findall(self.text)]
        for module, names in _IMPORT.findall(self.text):
            for name in re.sub(r"#.*", "", names).strip("()").split(","):
                if name.strip():
                    found.append((module, name.split()[0]))
        return found

    @cached_property
    def is_code(self) -> bool:
        return any(name not in ("__all__", "__getattr__", "__dir__") for name in self.names)

    @cached_property
    def words(self) -> Counter[str]:
        """The words of its names; those of its path count more."""
        counted = Counter(_words(_TEST.findall(self.text) or self.names))
        for word in _words(self.path.split("/")[1:-1]):
            counted[word] += 2
        for word in _stem(self.path):
            counted[word] += 4
        return counted


class Map:
    """The test files of each source file."""

    def __init__(self, sources: Iterable[_File], tests: Iterable[_File]) -> None:
        self.sources = {file.path: file for file in sources}
        self.tests = {file.path: file for file in tests}
        self.by_module = {_module(path): path for path in self.sources}
        self.by_name: dict[str, set[str]] = defaultdict(set)
        for path, file in self.sources.items():
            for name in file.names:
                self.by_name[name].add(path)
        self.imported = {path: self.files_imported_by(file) for path, file in self.tests.items()}
        self.vectors = self.weighed({**self.sources, **self.tests})

    @property
    def code(self) -> list[str]:
        """The source files that define something."""
        return sorted(path for path, file in self.sources.items() if file.is_code)

    def closeness(self, source: str, test: str) -> float:
        """Return 0 if the test file has nothing to do with the source file, at most 3.1."""
        mine, other = self.vectors[source], self.vectors[test]
        shared = sum(weight * other.get(word, 0) for word, weight in mine.items())
        imported = self.imported[test]
        if source in imported:
            shared += 1 / math.sqrt(len(imported))
        if _rooms(source) & _rooms(test):
            shared += _SAME_ROOM
        stem, stems = _stem(source), _stem(test)
        return shared + len(stem & stems) / (len(stem | stems) or 1)

    def closest(self, source: str, count: int = _SHOWN) -> list[str]:
        """Return the test files of a source file, the closest first."""
        found = {test: self.closeness(source, test) for test in self.tests}
        ordered = sorted(found, key=lambda test: (-found[test], test))
        return [test for test in ordered[:count] if found[test] > 0]

    def page(self) -> str:
        lines = []
        for source in self.code:
            tests = [test.removeprefix("tests/") for test in self.closest(source)]
            lines.append(f"| {source} | {', '.join(tests)} |")
        return _HEAD + "\n".join(lines) + "\n"

    def files_imported_by(self, file: _File) -> set[str]:
        found = (self.defining(module, name) for module, name in file.imports)
        return {path for path in found if path is not None}

    def defining(self, module: str, name: str, depth: int = 5) -> str | None:
        """The source file that defines ``name``, which ``module`` has or re-exports."""
        if (path := self.by_module.get(f"{module}.{name}".rstrip("."))) is not None:
            return path
        path = self.by_module.get(module)
        if path is None or name in self.sources[path].names:
            return path
        for other, known in self.sources[path].imports:
            if known == name and depth:
                return self.defining(other, name, depth - 1)
        named = self.by_name.get(name, set())  # a package that loads its names when it is asked
        return next(iter(named)) if len(named) == 1 else path

    @staticmethod
    def weighed(files: Mapping[str, _File]) -> dict[str, dict[str, float]]:
        """Each file's words with their weights, of length 1: rare words weigh more."""
        common = Counter(word for file in files.values() for word in file.words)
        weighed = {}
        for path, file in files.items():
            vector = {
                word: (1 + math.log(count)) * math.log(len(files) / common[word])
                for word, count in file.words.items()
            }
            length = math.hypot(*vector.values()) or 1.0
            weighed[path] = {word: weight / length for word, weight in vector.items()}
        return weighed


def read(root: Path = ROOT) -> Map:
    """Read both trees."""
    tests = (file for file in _files(root, "tests") if Path(file.path).name.startswith("test_"))
    return Map(_files(root, "optilock"), tests)


def rows(page: str) -> dict[str, list[str]]:
    """Return the rows of a written map: the test files of each source file."""
    found = re.findall(r"^\| (optilock/\S+) \| (.*) \|$", page, re.MULTILINE)
    return {source: [f"tests/{test}" for test in tests.split(", ")] for source, tests in found}


def _files(root: Path, folder: str) -> Iterator[_File]:
    for path in sorted((root / folder).rglob("*.py")):
        yield _File(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _stem(path: str) -> set[str]:
    """The words of a file's name; of a package's, those of its folder."""
    stem = path.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]
    return {*_words([stem.removeprefix("test_")])}


def _rooms(path: str) -> set[str]:
    """The words of the folders in which a file lies, without its tree."""
    return {*_words(path.split("/")[1:-1])}


def _words(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for word in _WORD.findall(name):
            yield word.lower().removesuffix("s")


if __name__ == "__main__":
    MAP.write_text(read().page(), encoding="utf-8")
