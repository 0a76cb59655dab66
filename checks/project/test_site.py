"""The site builds without a warning, describes each public name, and finds what readers look for.

``OPTILOCK_SITE`` names a site that ``python -m docs`` has built; otherwise the test builds one.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

import pytest

import optilock
from tests.support.needed import needed

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference" / "api").glob("*.rst"))
#: Modules whose public names the reference describes.
MODULES = sorted(
    {
        name
        for page in PAGES
        for name in re.findall(r"(?:automodule|currentmodule):: (\S+)", page.read_text("utf-8"))
    }
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("sphinx") is None:
        needed("the extra docs is not installed")
    built = os.environ.get("OPTILOCK_SITE")
    if built:
        return ROOT / built
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "docs", str(target)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.full
@pytest.mark.timeout(600)
def test_each_public_name_is_described(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    kinds = ("class", "data", "exception", "function", "module")
    names = {name for kind in kinds for name in inventory.data.get(f"py:{kind}", ())}
    objects = {id(pkgutil.resolve_name(name)) for name in names}
    missing = []
    for module in map(importlib.import_module, MODULES):
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            elsewhere = id(value) in objects and not isinstance(value, str | float)
            if f"{module.__name__}.{name}" not in names and not elsewhere:
                missing.append(f"{module.__name__}.{name}")
    assert missing == []


#: What a reader types into the search, and the page that has to come first.
SEARCHES = {
    "1020": "reference/transient-errors",
    "1213": "reference/transient-errors",
    "40001": "reference/transient-errors",
    "404": "how-to/web/http-answers",
    "409": "reference/faq",
    "40P01": "reference/transient-errors",
    "412": "reference/faq",
    "422": "how-to/web/http-answers",
    "428": "reference/faq",
    "Alembic": "how-to/operate/migrations",
    "CockroachDB": "compatibility",
    "ETag": "how-to/web/expectations",
    "FOR UPDATE": "how-to/conflicts/strategies",
    "Flask-WTF": "how-to/web/form-libraries",
    "GraphQL": "how-to/web/client-versions",
    "Idempotency-Key": "how-to/web/idempotent-requests",
    "If-Match": "how-to/web/expectations",
    "MySQL": "compatibility",
    "Oracle": "compatibility",
    "PgBouncer": "how-to/operate/deployments",
    "React": "how-to/web/form-libraries",
    "SQL Server": "compatibility",
    "StaleDataError": "reference/faq",
    "background job": "how-to/long-work/queue",
    "benchmark": "explanation/benchmarks",
    "could not serialize access": "reference/transient-errors",
    "database is locked": "reference/faq",
    "deadlock": "reference/transient-errors",
    "expected to update 1 row(s); 0 were matched": "reference/faq",
    "hot row": "how-to/conflicts/hot-rows",
    "job": "how-to/long-work/queue",
    "lease": "how-to/long-work/leases",
    "lost update": "reference/faq",
    "merge": "how-to/conflicts/resolvers",
    "not protected": "reference/not-protected",
    "performance": "explanation/benchmarks",
    "python version": "compatibility",
    "retry": "how-to/sessions/retry",
    "rollout": "how-to/operate/rollout",
    "stale": "reference/faq",
    "test hangs": "reference/faq",
    "too slow": "reference/faq",
}


def first_results(index: dict[str, Any], typed: str) -> set[str]:
    """Return the pages that the search shows first, because of a main entry of the index.

    Sphinx splits an entry at its semicolon. A message with one is found by the heading that it is.

    ``searchtools.js`` takes an entry if at least half of it is typed, and counts 100 for all of it.
    No other result counts 50: a title has at most 16, and an object 26.
    """
    scores: dict[str, int] = {}
    for entry, places in index["indexentries"].items():
        if typed in entry and len(typed) >= len(entry) / 2:
            for page, _anchor, main in places:
                if main:
                    name = index["docnames"][page]
                    score = round(100 * len(typed) / len(entry))
                    scores[name] = max(score, scores.get(name, 0))
    if not scores:
        headings = {title.lower(): places for title, places in index["alltitles"].items()}
        return {index["docnames"][page] for page, _anchor in headings.get(typed, ())}
    return {name for name, score in scores.items() if score == max(scores.values())}


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", SEARCHES)
def test_the_search_shows_the_page_with_the_answer_first(site: Path, words: str) -> None:
    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    assert first_results(index, words.lower()) == {SEARCHES[words]}


def test_each_search_word_has_one_heading() -> None:
    config = (ROOT / "docs" / "conf.py").read_text("utf-8")
    table = ast.literal_eval(re.search(r"^SEARCH_WORDS = (\{.*?^\})", config, re.M | re.S)[1])
    words = [word for place in table.values() for word in place]
    assert sorted(words) == sorted({*words})
    for place in table:
        name, _, anchor = place.partition("#")
        text = re.sub("```.*?```", "", (ROOT / f"docs/{name}.md").read_text("utf-8"), flags=re.S)
        heads = [head.lower() for head in re.findall(r"^#+ (.*)$", text, re.M)]
        slugs = [re.sub(r"[^\w -]", "", head).replace(" ", "-") for head in heads]
        assert slugs.count(anchor or slugs[0]) == 1, place


def test_the_home_page_names_pages_as_the_sidebar_does() -> None:
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    rows = re.findall(r"\| \[(.+?)\]\((.+?)\.md\) \|$", text, re.M)
    sidebar = re.findall(r"^(.+) <(\S+)>$", text, re.M)
    assert rows
    assert [row for row in rows if row not in sidebar] == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_pages_have_no_hidden_blocks_and_no_copies_of_files(site: Path) -> None:
    full = (site / "llms-full.txt").read_text("utf-8")
    assert "# Units of work" in full
    assert "invisible-code-block" not in full
    assert "<!-- skip" not in full
    assert "[Units of work]" in (site / "llms.txt").read_text("utf-8")
    assert "invisible-code-block" not in (site / "how-to/sessions/units.html").read_text("utf-8")
    assert not (site / "_downloads").exists()  # files outside of docs are links to the repository


def redirects() -> list[tuple[str, str]]:
    config = (ROOT / "docs" / "conf.py").read_text("utf-8")
    table = config.partition("\nredirects")[2].partition("\n}")[0]
    return re.findall(r'"([^"]+)": "([^"]+)"', table)


def test_each_page_that_has_moved_has_a_page_to_lead_to_and_replaces_none() -> None:
    docs = ROOT / "docs"
    pages = {
        path.relative_to(docs).with_suffix("").as_posix()
        for suffix in ("md", "rst")
        for path in docs.rglob(f"*.{suffix}")
    }
    targets = {old: normpath(join(dirname(old), new.partition("#")[0])) for old, new in redirects()}
    assert "units" in targets  # the table was found
    assert {new for new in targets.values() if new.removesuffix(".html") not in pages} == set()
    assert set(targets) & pages == set()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_page_that_has_moved_leads_to_its_new_place(site: Path) -> None:
    for old, new in redirects():
        assert new in (site / f"{old}.html").read_text("utf-8")
        assert (site / f"{old}.html").parent.joinpath(new.partition("#")[0]).exists(), old


def test_the_reference_describes_the_modules_that_the_package_names() -> None:
    named = set(re.findall(r":mod:`(optilock\.\w+)`", optilock.__doc__ or ""))
    assert named <= set(MODULES)


def test_the_list_of_names_without_a_link_only_shrinks() -> None:
    lines = (ROOT / "docs" / "nitpicks.txt").read_text("utf-8").splitlines()
    assert len([line for line in lines if line and line[0] != "#"]) <= 35
