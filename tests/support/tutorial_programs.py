"""The programs of docs/tutorial/web.md, as they are printed: a fixture."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import Engine

__all__ = ["Program", "program"]

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "web.md"

Program = Callable[[str, str], ModuleType]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Imports the program of a section, under the name of its file."""
    monkeypatch.chdir(tmp_path)
    made: list[ModuleType] = []

    def imported(title: str, name: str) -> ModuleType:
        section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1]
        path = tmp_path / f"{name}.py"
        path.write_text(section.split("```python\n")[1].split("```")[0], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        made.append(module)
        return module

    yield imported
    for module in made:
        for value in vars(module).values():
            if isinstance(value, Engine):
                value.dispose()
