"""The dependencies of the library, its extras and groups, audited without a network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ALL = list(chain(PROJECT["dependencies"], *EXTRAS.values(), *GROUPS.values()))

PERMISSIVE = re.compile(
    r"\b(MIT(-CMU)?|BSD|0BSD|Apache|ISC|Zlib|ZPL|Zope|PSF|Python Software Foundation|Kiwi)\b", re.I
)
#: Dependencies of extras alone: their licence asks something of those who change them.
WEAK_COPYLEFT = {
    "certifi": "MPL-2.0",
    "hypothesis": "MPL-2.0",
    "pathspec": "MPL-2.0",
    "psycopg": "LGPL-3.0",
    "psycopg-binary": "LGPL-3.0",
}
#: Their metadata name no licence; the files of the distribution do.
BY_FILE = {"axe-playwright-python": "MIT; axe-core in it is MPL-2.0", "peewee": "MIT"}
#: Only a part that is not imported is under another licence.
IN_PART = {"docutils": "public domain and BSD; GPL is its mode for Emacs"}
#: A test starts it as a program of its own, a server to be probed; nothing imports it.
STARTED_ALONE = {"radicale": "GPL-3.0-or-later"}


def installed(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return the installed distributions that these need, by name; others are left out."""
    found: dict[str, Distribution] = {}
    todo, done = [Requirement(one) for one in requirements], set()
    while todo:
        one = todo.pop()
        name, extras = canonicalize_name(one.name), one.extras or {""}
        if (name, *sorted(extras)) in done:
            continue
        done.add((name, *sorted(extras)))
        if name == "optilock":
            todo += [Requirement(text) for extra in one.extras for text in EXTRAS[extra]]
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for text in found[name].requires or ():
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(needed)
    return found


def licence(of: Distribution) -> str:
    """Return what the metadata say; the first line of a whole text is enough."""
    data = of.metadata
    classifiers = [one for one in data.get_all("Classifier", []) if one.startswith("License ::")]
    plain = (data.get("License") or "").strip().partition("\n")[0]
    return " ".join([data.get("License-Expression") or "", plain, *classifiers]).strip()


def test_the_library_itself_needs_permissive_licences_alone() -> None:
    needed = installed(PROJECT["dependencies"])
    assert {"sqlalchemy", "tenacity"} <= needed.keys()
    wrong = {name: licence(one) for name, one in needed.items() if not _is_permissive(one)}
    assert wrong == {}


def test_extras_need_permissive_licences_and_the_named_others() -> None:
    needed = installed(ALL)
    named = WEAK_COPYLEFT.keys() | BY_FILE.keys() | IN_PART.keys() | STARTED_ALONE.keys()
    wrong = {
        name: licence(one)
        for name, one in needed.items()
        if not _is_permissive(one) and name not in named
    }
    assert wrong == {}
    for name in WEAK_COPYLEFT.keys() & needed.keys():
        assert WEAK_COPYLEFT[name][:3] in licence(needed[name])


def test_nothing_imports_what_is_only_started() -> None:
    files = [
        path
        for root in ("optilock", "apps", "tests", "checks")
        for path in (ROOT / root).rglob("*.py")
    ]
    for name in STARTED_ALONE:
        imports = re.compile(rf"^\s*(import|from) {name}\b", re.M)
        assert [path for path in files if imports.search(path.read_text("utf-8"))] == []


def _is_permissive(one: Distribution) -> bool:
    text = licence(one)
    return bool(PERMISSIVE.search(text)) and not re.search(r"GPL|MPL|SSPL|BUSL|Commons", text)


@pytest.mark.parametrize("text", sorted({*ALL}))
def test_a_requirement_has_a_lower_bound_and_no_exact_version(text: str) -> None:
    """An exact version would keep security fixes of a dependency away from users."""
    one = Requirement(text)
    operators = {each.operator for each in one.specifier}
    assert operators <= {">=", "<"}
    assert ">=" in operators or one.name == "optilock" or one.extras


@pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="an sdist has no .ci")
def test_what_fits_together_is_checked() -> None:
    assert "python -m pip check" in (ROOT / ".ci" / "run").read_text()


def test_each_test_that_security_md_links_to_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    links = re.findall(r"\]\((tests/[\w/.]+)(?: \"(\w+)\")?\)", text)
    assert len(links) > 15
    for path, name in links:
        assert not name or f"def {name}(" in (ROOT / path).read_text(), (path, name)
        assert (ROOT / path).is_file()
