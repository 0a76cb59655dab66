"""What was imported, or pickled, under an old path still loads, with a warning."""

from __future__ import annotations

import base64
import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from optilock import Entry, OptilockError
from optilock.moved import MODULES

#: One object of each class, as release 0.1 pickled it.
PICKLED = json.loads((Path(__file__).parents[1] / "data" / "pickled_by_0_1.json").read_text())
#: Import paths in the documentation of release 0.1 whose modules have moved since.
DOCUMENTED = [
    ("optilock.conflicts", "merge_fields"),
    ("optilock.http.errors", "NotFound"),
    ("optilock.http.etags", "ETags"),
    ("optilock.http.preconditions", "evaluate"),
    ("optilock.http.preconditions", "required"),
    ("optilock.http.request", "compared"),
    ("optilock.testing.servers", "postgresql"),
    ("optilock.wiki.conflict", "Conflict"),
    ("optilock.wiki.pages", "Page"),
    ("optilock.wiki.pages", "prepare"),
]


@pytest.mark.parametrize(("module", "name"), DOCUMENTED, ids=".".join)
def test_a_moved_module_says_where_its_name_is_now(module: str, name: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=rf"{module} has moved: write `from \S+ import {name}`"
    ) as caught:
        found = getattr(importlib.import_module(module), name)
    assert caught[0].filename == __file__
    home = str(caught[0].message).split("from ")[1].split(" import")[0]
    assert getattr(importlib.import_module(home), name) is found


def test_a_moved_module_has_no_other_names() -> None:
    module = importlib.import_module("optilock.http.etags")
    with pytest.raises(AttributeError, match=r"'optilock\.http\.etags' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("name", MODULES)
def test_each_moved_module_leads_to_modules_that_exist(name: str) -> None:
    assert all(importlib.import_module(home) for home in MODULES[name])


@pytest.mark.filterwarnings("ignore:optilock.* has moved:DeprecationWarning")
@pytest.mark.parametrize("name", PICKLED)
def test_what_an_older_release_pickled_still_loads(name: str) -> None:
    loaded = pickle.loads(base64.b64decode(PICKLED[name]))
    assert type(loaded).__name__ == name
    if isinstance(loaded, Entry):
        assert loaded.conflicting == {"title"}
        assert loaded.database is not None
        assert loaded.database["title"] == "c"
    if isinstance(loaded, OptilockError):
        assert str(loaded)


def test_a_pickle_loads_in_a_process_that_has_not_imported_optilock() -> None:
    program = (
        "import base64, pickle, sys\n"
        "print(type(pickle.loads(base64.b64decode(sys.argv[1]))).__module__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, PICKLED["NotFound"]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "optilock.errors\n"
