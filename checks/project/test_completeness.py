"""Every scenario has a test that carries its id, or a reason in docs/contributing/scenarios.md.

The test is where its subject is: in ``tests/spec``, or in another folder of ``tests``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
DOCS = TESTS.parent / "docs" / "contributing" / "scenarios.md"
ID = r"\b(?:[A-Z]{2}-\d\d|trap \d+)\b"

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: Scenarios that wait for something.
OPEN = ""


def listed() -> list[str]:
    return re.findall(rf"^- \*\*({ID})\*\* ", (TESTS / "spec" / "scenarios.md").read_text(), re.M)


def docstrings() -> Iterator[str]:
    texts = (file.read_text() for file in TESTS.rglob("test_*.py"))
    for text in (text for text in texts if re.search(f'"""{ID}', text)):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
                yield ast.get_docstring(node) or ""


def covered() -> set[str]:
    """The ids at the head of a docstring: ``EF-03, EF-04: what it is about``."""
    heads = (re.match(rf"((?:{ID}(?:, )?)+)(?::|$)", text) for text in docstrings())
    return {one for head in heads if head for one in re.findall(ID, head[1])}


def left_out() -> set[str]:
    """The ids in the first column of the table of what does not apply."""
    _, _, section = DOCS.read_text().partition("\n## What does not apply\n")
    return {
        one
        for row in re.findall(r"^\|([^|]*)\|", section.partition("\n## ")[0], re.M)
        for one in re.findall(ID, row)
    }


def test_every_scenario_is_listed_once():
    assert len(listed()) == len(set(listed())) == 166 + 37


def test_every_scenario_is_tested_or_the_guide_says_why_not():
    assert set(listed()) - covered() - left_out() == set(re.findall(ID, OPEN))


def test_no_scenario_is_both_tested_and_said_not_to_apply():
    assert not covered() & left_out()


def test_tests_and_the_guide_name_only_scenarios_that_exist():
    named = {one for text in docstrings() for one in re.findall(ID, text)}
    named |= set(re.findall(ID, DOCS.read_text()))
    assert not named - set(listed())
