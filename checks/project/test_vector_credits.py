"""Each recorded answer in ``tests/vectors`` says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "tests" / "vectors").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_vector_names_its_sources(path):
    found = json.loads(path.read_text())
    assert found["meta"]["what"]
    nameless = [one["id"] for one in found["vectors"] if not one.get("source")]
    assert nameless == []
