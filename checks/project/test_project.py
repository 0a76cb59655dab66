"""What the project promises beside its code: commands, licence, changelog, containers."""

from __future__ import annotations

import ast
import pkgutil
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    path.parent.relative_to(ROOT / "optilock").as_posix()
    for path in (ROOT / "optilock").rglob("*/__init__.py")
)
DOCS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if path.name != "state.md"  # where keys have names such as those of modules
)
TOML = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOWNCRIER = TOML["project"], TOML["tool"]["towncrier"]
COMMANDS = (
    'python -m pip install -e ".[demo]" && optilock demo',
    'python -m pip install -e ".[test]" && python -m pytest',
)
of_the_repository = pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="an sdist has no .ci")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def names_in(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", each, maxsplit=1)[0] for each in requirements}


def test_the_readme_on_an_index_has_no_hidden_blocks_and_no_relative_links() -> None:
    hook = TOML["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = text_of("README.md")
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    assert "<!--" not in text
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", text) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_tells_the_two_commands(command: str) -> None:
    assert command in text_of("README.md")


@pytest.mark.parametrize("page", ["README.md", *DOCS])
def test_each_link_leads_to_a_file_and_a_heading(page: str) -> None:
    prose = re.sub("```.*?```", "", text_of(page), flags=re.S)
    for name, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", prose):
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), name
        if anchor:
            text = re.sub("```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
            headings = re.findall(r"^#+ (.*)$", text, re.M)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in headings}
            assert anchor in slugs, (name, anchor)


@of_the_repository
def test_ci_runs_the_readmes_test_command_and_every_other_check() -> None:
    script = text_of(".ci/run")
    assert COMMANDS[1] in script
    for check in ("--full", "ruff check", "ruff format --check", "mypy --strict", "sqlalchemy<2.1"):
        assert check in script
    for check in ("python -m docs", "twine check --strict", "check-wheel-contents", "pyroma"):
        assert check in script
    assert "python -m pytest checks/project" in script


@of_the_repository
def test_ci_runs_the_readmes_test_command_before_it_installs_a_database() -> None:
    parts = ("on_a_bare_machine bash", "CI=true", "installations >")
    places = [text_of(".ci/run").index(part) for part in parts]
    assert places == sorted(places)


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by that."""
    folders = ("tests", "apps/tests", "checks")
    names = [path.name for folder in folders for path in (ROOT / folder).rglob("test_*.py")]
    assert sorted(names) == sorted({*names})


@of_the_repository
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_ci_is_a_script_that_bash_can_read() -> None:
    script = ROOT / ".ci" / "run"
    assert subprocess.run(["bash", "-n", script], capture_output=True).stderr == b""
    assert text_of(".ci/run").startswith("#!/usr/bin/env bash\n")


def test_this_version_has_its_place_in_the_changelog() -> None:
    assert re.search(rf"^## {re.escape(PROJECT['version'])}\b", text_of("CHANGELOG.md"), re.M)


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in text_of("CITATION.cff")


def test_entries_of_the_next_release_are_short_and_of_a_known_type() -> None:
    types = {one["directory"] for one in TOWNCRIER["type"]}
    for path in (ROOT / "changelog.d").glob("*.md"):
        if path.name != "README.md":
            assert path.name.split(".")[-2] in types, path.name
            assert len(path.read_text(encoding="utf-8").split()) <= 40, path.name
    listed = text_of("changelog.d/README.md").partition("types are")[2]
    assert types <= set(re.findall(r"`(\w+)`", listed))


def test_the_licence_is_permissive_and_comes_along() -> None:
    assert PROJECT["license"] == "MIT"
    assert PROJECT["license-files"] == ["LICENSE"]
    assert text_of("LICENSE").startswith("MIT License")


def test_no_requirement_would_put_the_project_under_another_licence() -> None:
    """GPL packages that do what some of ours do; the list of them is in no tool."""
    extras = [*PROJECT["optional-dependencies"].values(), *TOML["dependency-groups"].values()]
    asked = names_in([each for extra in (PROJECT["dependencies"], *extras) for each in extra])
    assert not asked & {"merge3", "patiencediff", "pygit2", "json-merger", "mysqlclient"}


def test_only_two_libraries_are_needed_by_the_library_itself() -> None:
    assert names_in(PROJECT["dependencies"]) == {"sqlalchemy", "tenacity"}


def test_type_checkers_are_told_that_the_package_is_typed() -> None:
    assert resources.files("optilock").joinpath("py.typed").is_file()


def test_containers_are_reached_from_this_machine_only_and_at_the_urls_that_are_told() -> None:
    compose = text_of("docker-compose.yml")
    ports = re.findall(r'- "(\S+):(\d+):(\d+)"', compose)
    assert len(ports) == 2
    for address, outside, _ in ports:
        assert address == "127.0.0.1"
        assert re.search(rf"_URL=\S+@127\.0\.0\.1:{outside}/", compose)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_head_of_a_package_names_each_of_its_files_and_nothing_else(package: str) -> None:
    folder = ROOT / "optilock" / package
    head = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    files = {path.stem for path in folder.glob("[a-z]*") if path.suffix in ("", ".py")}
    assert {name for name in files if not re.search(rf"\b{name}\b", head)} == set()
    here = rf":mod:`~?(?:optilock\.{package.replace('/', '.')}\.)?(\w+)`"
    assert set(re.findall(here, head)) <= files | {"optilock"}


def large_packages() -> list[str]:
    """Return the packages of more than eight files; ``design.md`` lists those of ``optilock``."""
    return [one for one in PACKAGES if len([*(ROOT / "optilock" / one).glob("*.py")]) > 8]


@pytest.mark.parametrize("package", large_packages())
def test_the_head_of_a_large_package_has_a_table_of_its_files(package: str) -> None:
    folder = ROOT / "optilock" / package
    head = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    tables = re.split(r"^=+ +=+$", head, flags=re.M)[1::2]
    assert tables
    names = [name for table in tables for name in re.findall(r"^\w+", table, re.M)]
    assert len(names) == len(set(names))
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files <= set(names) <= files | {path.name for path in folder.iterdir() if path.is_dir()}


def test_each_reference_in_a_docstring_leads_somewhere() -> None:
    lost = []
    for path in (ROOT / "optilock").rglob("*.py"):
        source = re.sub(r"\n\s*(#:?)?\s*", "", path.read_text(encoding="utf-8"))
        named = re.findall(r":(?:mod|class|func|meth|attr|data):`~?(optilock[\w.]*)`", source)
        lost += [(path.stem, name) for name in named if not leads_somewhere(name)]
    assert lost == []


@pytest.mark.parametrize("page", ["README.md", *DOCS])
def test_f_a_page_installs_from_a_checkout_and_denies_nothing_that_is_there(page: str) -> None:
    """No index has optilock; scenarios.md said that it has no HTTP layer."""
    text = text_of(page)
    assert not re.search(r"pip install [\"']?optilock", text)
    assert "no HTTP layer" not in text


def test_f_the_readme_names_the_release_that_its_examples_need() -> None:
    """The README promised 2.0.20, which has no ``get_one``."""
    readme = text_of("README.md")
    assert any(one.startswith("sqlalchemy>=2.0.20") for one in PROJECT["dependencies"])
    assert "get_one" not in readme or "`get_one`, which came with 2.0.22" in readme


def test_f_the_page_says_what_require_none_does_behind_a_cache() -> None:
    """A POST from a page that a cache has kept overwrites what came since."""
    text = " ".join(text_of("docs/how-to/web/frameworks.md").split())
    section = text.partition("## Accept writes without a condition")[2].partition("## ")[0]
    for word in ("require=None", "Behind a caching proxy", "Cache-Control: no-cache"):
        assert word in section


@pytest.mark.parametrize("page", ["README.md", *DOCS])
def test_each_module_that_a_page_names_is_there(page: str) -> None:
    text = text_of(page)
    telemetry = (ROOT / "optilock/telemetry/opentelemetry.py").read_text(encoding="utf-8")
    no_modules = {"optilock.no_bump", *re.findall(r'"(optilock\.[\w.]+)"', telemetry)}
    for name in set(re.findall(r"`(optilock(?:\.\w+)+)", text)) - no_modules:
        assert leads_somewhere(name), name
    for name in re.findall(r"`(optilock/[\w/.]+)`", text):
        assert (ROOT / name).exists(), name


def blocks(text: str) -> Iterator[tuple[bool, str]]:
    """The Python blocks of a page in their order, and whether readers see each of them."""
    pattern = r"^<!--- invisible-code-block: python\n(.*?)^-->|^```python\n(.*?)^```$"
    for hidden, shown in re.findall(pattern, text, re.M | re.S):
        yield bool(shown), shown or hidden


def names_bound_and_used(code: str) -> tuple[set[str], set[str]]:
    bound: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return bound, used


#: README.md and the home page show parts of a program, and lead to whole ones.
@pytest.mark.parametrize("page", [page for page in DOCS if page != "docs/index.md"])
def test_no_program_that_a_page_shows_needs_a_hidden_name(page: str) -> None:
    """A pasted program raised NameError: a set-up is folded, in ``<details>``, and not hidden."""
    shown: set[str] = set()
    hidden: set[str] = set()
    missing: set[str] = set()
    for visible, code in blocks(text_of(page)):
        bound, used = names_bound_and_used(code)
        if visible:
            shown |= bound
            missing |= used & hidden - shown
        else:
            assert shown or code.count("\n") <= 3, "a hidden set-up"
            hidden |= bound
    assert missing == set()


def leads_somewhere(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", [page for page in DOCS if "decisions" not in page])
def test_every_page_opens_with_a_sentence_about_what_the_reader_gets(page: str) -> None:
    opening = text_of(page).split("\n\n")[1]
    assert not opening.startswith(("```", "#", "|", "$"))


@pytest.mark.parametrize(
    ("page", "begins", "ends"),
    [
        ("README.md", "\n## What is protected\n", "\n* "),
        (
            "docs/how-to/sessions/sessions.md",
            "# Guard the sessions that you have\n",
            "\n## Options",
        ),
    ],
)
def test_a_page_distinguishes_what_a_session_covers_and_what_an_etag_covers(
    page: str, begins: str, ends: str
) -> None:
    section = " ".join(text_of(page).partition(begins)[2].partition(ends)[0].split())
    assert re.search(r"protects one transaction, from its read to its COMMIT", section)
    assert re.search(
        r"two requests .*`etag_of`.*\[`expect` and `apply`\]\(\S*expectations", section
    )


def test_each_program_of_checks_has_a_row_in_the_table() -> None:
    programs = {path.parent.name for path in (ROOT / "checks").glob("*/__main__.py")}
    for path in (ROOT / "checks").glob("*.py"):
        if "\nif __name__ ==" in path.read_text(encoding="utf-8"):
            programs.add(path.stem)
    table = text_of("docs/contributing/tests.md").partition("| `python -m checks.`")[2]
    rows = re.findall(r"^\| `(\w+)[^`]*` \| .+ \| \d+ \| (?:CI|by hand) \|$", table, re.M)
    assert sorted(rows) == sorted(programs)
