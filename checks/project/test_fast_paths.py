"""Each fast path has a row in ``docs/contributing/fast_paths.md``, and the row is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, _databases, _parser

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/contributing/fast_paths.md").read_text(encoding="utf-8")
HEAD = ["fast path", "code", "spares", "command", "gain when last measured"]
ROWS = [
    cells
    for line in PAGE.splitlines()
    if line.startswith("| ")
    for cells in [[one.strip() for one in line.strip("|").split("|")]]
    if cells != HEAD
]


def test_each_path_stands_once() -> None:
    names = [name for name, *_ in ROWS]
    assert len(names) == len(set(names)) > 20
    assert {len(row) for row in ROWS} == {len(HEAD)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_code_is_there_and_its_program_measures_it(row: list[str]) -> None:
    _, code, spares, command, gain = row
    file, *names = re.findall(r"`([^`]+)`", code)
    source = (ROOT / "optilock" / file).read_text(encoding="utf-8")
    assert [name for name in names if not re.search(rf"\b{name}\b", source)] == []
    # argparse ends the test at an option, a database or a subject that is none
    asked = _parser().parse_args(shlex.split(command.strip("`")))
    assert asked.benchmark
    assert set(asked.benchmark) <= set(BENCHMARKS)
    for name in asked.benchmark:
        assert set(asked.database or ()) <= set(_databases(name))
    assert spares
    assert re.search(r"\d|tenth", gain) or gain.startswith("not measured")


def test_the_forms_of_each_database_have_a_row() -> None:
    forms = {
        path.relative_to(ROOT / "optilock") for path in ROOT.glob("optilock/dialects/*/rows.py")
    }
    assert {f"`{path.as_posix()}`" for path in forms} <= {code for _, code, *_ in ROWS}
