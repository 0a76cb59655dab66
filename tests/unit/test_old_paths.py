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

import optilock.unit
from optilock import Entry, OptilockError
from optilock._old_paths import MODULES, NAMES

#: One object of each class, as release 0.1 pickled it.
PICKLED = json.loads((Path(__file__).parents[1] / "data" / "pickled_by_0_1.json").read_text())
#: Import paths in that documentation that are as they were.
STAYED = [
    "alembic:plugin",
    "asyncio:merge",
    "check:check",
    "check:check_routes",
    "dialects:Cause",
    "dialects:KnownByCodes",
    "dialects:register",
    "entities:Idempotency",
    "entities:Operation",
    "leases:Leasable",
    "leases:LeaseHeld",
    "leases:LeaseLost",
    "leases:LeasePolicy",
    "queue:AsyncQueue",
    "queue:Draft",
    "queue:MessageNotFound",
    "queue:Queue",
    "queue:ReceiptExpired",
    "rollout:abort",
    "rollout:dry_run",
    "rollout:roll_out",
    "tables.queue:message_tables",
    "testing:count_statements",
    "testing:interleave",
    "testing:wire",
    "tokens:Counter",
    "tokens:Token",
    "tokens:Unique",
    "tokens.timestamp:NextServerTime",
    "web.conditions:Conditions",
    "web.conditions:Policy",
    "web.fastapi:Conditions",
    "web.fastapi:conditions",
    "web.fastapi:install",
    "web.fastapi:not_modified",
    "web.fastapi:responses",
    "web.fastapi:unit",
    "web.flask:Optilock",
    "web.litestar:Conditions",
    "web.litestar:ETAG_HEADER",
    "web.litestar:OptilockPlugin",
    "web.litestar:responses",
    "web.litestar:unit",
    "web.problems:problem_of",
    "web.starlette:conditions_of",
    "web.starlette:exception_handlers",
]
#: Import paths, most of them in the documentation of release 0.1, whose modules have moved since.
DOCUMENTED = [
    ("optilock.conflicts", "merge_fields"),
    ("optilock.http.errors", "NotFound"),
    ("optilock.http.etags", "ETags"),
    ("optilock.http.preconditions", "evaluate"),
    ("optilock.http.preconditions", "required"),
    ("optilock.http.request", "compared"),
    ("optilock.renewal", "RenewedPart"),
    ("optilock.tables.leases", "leases"),
    ("optilock.tables.shares", "SET"),
    ("optilock.testing.round_trips", "Trips"),
    ("optilock.testing.servers", "postgresql"),
    ("optilock.web.cors", "ALLOW_HEADERS"),
    ("optilock.web.cors", "EXPOSE_HEADERS"),
    ("optilock.wiki.conflict", "Conflict"),
    ("optilock.wiki.pages", "Page"),
    ("optilock.wiki.pages", "prepare"),
]


@pytest.mark.parametrize(("module", "name"), DOCUMENTED)
def test_a_moved_module_says_where_its_name_is_now(module: str, name: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=rf"{module} has moved: write `from \S+ import \w+`"
    ) as caught:
        found = getattr(importlib.import_module(module), name)
    assert caught[0].filename == __file__
    home = str(caught[0].message).split("from ")[1].split(" import")[0]
    assert found in vars(importlib.import_module(home)).values()


@pytest.mark.parametrize("path", STAYED)
def test_other_documented_paths_are_as_they_were(path: str) -> None:
    module, name = path.split(":")
    assert hasattr(importlib.import_module(f"optilock.{module}"), name)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_left_the_top_level_says_where_it_is_now(name: str) -> None:
    told = rf"optilock\.{name} has moved: write `from {NAMES[name]} import {name}`"
    with pytest.warns(DeprecationWarning, match=told) as caught:
        exec(f"from optilock import {name}", names := {})
    assert {(one.category, one.filename) for one in caught} == {(DeprecationWarning, "<string>")}
    assert names[name] is getattr(importlib.import_module(NAMES[name]), name)


def test_a_name_that_was_replaced_says_the_new_one() -> None:
    told = r"RetriedUnitOptions has another name: write `from optilock\.unit import UnitOptions`"
    with pytest.warns(DeprecationWarning, match=told) as caught:
        found = optilock.unit.RetriedUnitOptions
    assert caught[0].filename == __file__
    assert found is optilock.unit.UnitOptions


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
    assert run.stdout.startswith("optilock.errors")
