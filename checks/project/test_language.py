"""The words of the source: names that modules share, file names, docstrings and pages."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "optilock").rglob("*.py"), *(ROOT / "apps/optilock_apps").rglob("*.py")])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: The terms, and the page with the other words that modules share.
GLOSSARY = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("reference/glossary.md", "contributing/words.md")
)

#: Adjectives, prepositions, adverbs and participles that were names once: none says what it is.
NO_NAMES = frozenset(
    [
        "after",
        "afterwards",
        "again",
        "alike",
        "alone",
        "apart",
        "ask",
        "asked",
        "attached",
        "beside",
        "described",
        "detached",
        "each",
        "ended",
        "failed",
        "filled",
        "forgotten",
        "given",
        "gives",
        "gone",
        "held",
        "here",
        "judged",
        "kept",
        "known",
        "later",
        "left",
        "looks",
        "made",
        "mixed",
        "moment",
        "moved",
        "new",
        "on",
        "own",
        "plain",
        "ready",
        "same",
        "seen",
        "sent",
        "shared",
        "stand",
        "stands",
        "still",
        "stored",
        "strict",
        "taken",
        "together",
        "told",
        "under",
        "unguarded",
        "unmoved",
        "unread",
        "untouched",
        "wanted",
        "watched",
        "weak",
        "when",
        "where",
        "whose",
        "within",
        "written",
        "younger",
    ]
)
#: Words and forms of docs/english.md, and how often they may stand; a number may only fall.
AT_MOST: dict[str, dict[str, int]] = {
    "docstrings": {
        "nobody, somebody, whoever": 0,
        "who, whatever, what is": 0,
        "anew, as ever, its like, of which": 0,
        "told, tells": 0,
        "says": 0,
        "he, his": 0,
    },
    "pages": {
        "nobody, somebody, whoever": 4,
        "who, whatever, what is": 9,
        "anew, as ever, its like, of which": 2,
        "told, tells": 0,
        "says": 1,
        "he, his": 1,
    },
}
PATTERNS = {
    "nobody, somebody, whoever": r"\b(nobody|somebody|whoever)\b",
    "who, whatever, what is": r"\b(who|whatever|what is)\b",
    "anew, as ever, its like, of which": r"\b(anew|as ever|its like|of which)\b",
    "told, tells": r"\b(told|tells)\b",
    "says": r"\bsays\b",
    "he, his": r"\b(he|his|him)\b",
}


@dataclass(frozen=True)
class Source:
    path: Path
    #: The names of one word that it imports from other modules of optilock.
    names: tuple[str, ...]
    #: Each docstring, after the name of what it is about.
    docstrings: tuple[tuple[str, str], ...]


@functools.cache
def sources() -> tuple[Source, ...]:
    return tuple(
        Source(path, tuple(imported(tree)), tuple(documented(tree)))
        for path in SOURCES
        for tree in [ast.parse(path.read_text(encoding="utf-8"))]
    )


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("optilock"):
            yield from (one.name for one in node.names if re.fullmatch("[a-z]+", one.name))


def documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name and docstring of a module and of all that it defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text


#: Pages that keep all rules for sentences. A page that is rewritten joins them, and none leaves.
IN_PLAIN_ENGLISH = [
    *("README.md", "docs/install.md", "docs/tasks.md", "docs/reference/faq.md"),
    *("docs/tutorial/*.md", "docs/cookbook/*.md", "docs/coming-from/*.md"),
    *("docs/how-to/conflicts/hot-rows.md", "docs/how-to/conflicts/statements.md"),
    *("docs/how-to/models/aggregates.md", "docs/how-to/models/scopes.md"),
    *("docs/how-to/sessions/conditions.md", "docs/how-to/sessions/fewer-round-trips.md"),
]
#: The most words of a page, code and tables included.
MOST_WORDS = {
    "README.md": 720,
    "docs/index.md": 750,
    "docs/reference/faq.md": 1_000,
    "docs/tutorial/*.md": 1_300,
    "docs/cookbook/*.md": 330,
    "docs/coming-from/*.md": 660,
}
#: Words that these pages do not have at all.
NOT_PLAIN = r"\b(nobody|somebody|whoever|anew|told|as ever|its like|of which|simply|just|easily)\b"


# -- names -----------------------------------------------------------------------------------------


def shared_names() -> dict[str, str]:
    """Names of one word that a module imports from another one, with one of the importers."""
    found: dict[str, str] = {}
    for source in sources():
        for name in source.names:
            found.setdefault(name, source.path.relative_to(ROOT).as_posix())
    return found


def words(head: str) -> set[str]:
    """The words of a list, or of the first column of a table, below a headline of these pages."""
    text = re.split(r"\n##? ", GLOSSARY.split(f"\n## {head}\n")[1])[0]
    rows = re.findall(r"^\| \*?\*?([\w ,/-]+?)\*?\*? \|", text, re.M)
    lists = " ".join(re.findall(r"`(\w+)`", text))
    return set(lists.split()) | {word for row in rows for word in re.split(r"[ ,/]+", row)}


def test_a_name_that_modules_share_is_a_term_a_noun_or_a_verb() -> None:
    allowed = words("Terms") - NO_NAMES  # two words, such as "strict session", may have one
    allowed |= words("Verbs") | words("Nouns") | words("Public names")
    assert {n: at for n, at in shared_names().items() if n not in allowed} == {}


def test_the_lists_have_no_adjective_preposition_or_participle() -> None:
    assert (words("Verbs") | words("Nouns")) & NO_NAMES == set()


def test_the_lists_have_no_word_that_no_module_shares() -> None:
    """Else a name could come back that was replaced."""
    listed = words("Verbs") | words("Nouns") | words("Public names")
    assert listed <= set(shared_names())


def test_no_module_name_stands_twice_on_a_floor() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    twice = {}
    for floor in contracts["contracts"][0]["layers"]:
        names: Counter[str] = Counter()
        for room in floor.split(" : "):
            # Each database has a package with the same names: there a name says the subject.
            inside = (ROOT / "optilock" / room).glob("*.py")
            names.update(path.stem for path in inside if path.stem != "__init__")
        again = sorted(name for name, count in names.items() if count > 1)
        if again:
            twice[floor] = again
    assert twice == {}


# -- sentences -------------------------------------------------------------------------------------


def test_no_docstring_begins_with_a_question() -> None:
    questions = [
        (source.path.relative_to(ROOT).as_posix(), name)
        for source in sources()
        for name, text in source.docstrings
        if text.split("\n\n")[0].rstrip().endswith("?")
    ]
    assert questions == []


@functools.cache
def prose(kind: str) -> str:
    if kind == "docstrings":
        text = "\n".join(text for source in sources() for _, text in source.docstrings)
    else:
        text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    return re.sub(r"``?[^`]*``?", "X", text)


@pytest.mark.parametrize("kind", AT_MOST)
def test_words_that_hide_who_acts_only_become_fewer(kind: str) -> None:
    text = prose(kind)
    counts = {name: len(re.findall(p, text, re.I)) for name, p in PATTERNS.items()}
    more = {name: count for name, count in counts.items() if count > AT_MOST[kind][name]}
    assert more == {}, f"now: {counts}"


@pytest.mark.parametrize("kind", AT_MOST)
def test_the_limits_are_what_stands_there_today(kind: str) -> None:
    """So that a limit falls with the words: 3 % of air, for texts that are merged."""
    text = prose(kind)
    for name, pattern in PATTERNS.items():
        count = len(re.findall(pattern, text, re.I))
        assert AT_MOST[kind][name] <= count * 1.03 + 2, (name, count)


# -- pages that are rewritten ----------------------------------------------------------------------


def plain_pages() -> list[Path]:
    return sorted(path for pattern in IN_PLAIN_ENGLISH for path in ROOT.glob(pattern))


def paragraphs(page: Path) -> list[str]:
    """The running text and the list items of a page, without code, tables and headings."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text("utf-8"), flags=re.S | re.M)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks = re.split(r"\n\s*\n|\n(?=(?:\*|\d+\.) )", text)
    return [" ".join(one.split()) for one in blocks if one.strip() and one.strip()[0] not in "|#"]


def long_sentences(page: Path, limit: int) -> list[str]:
    found = (re.split(r"(?<=[.:?!])\**\s+(?=[A-Z`*(])", one) for one in paragraphs(page))
    return [sentence for each in found for sentence in each if len(sentence.split()) > limit]


@pytest.mark.parametrize("page", plain_pages(), ids=lambda page: page.stem)
def test_a_page_in_plain_english_keeps_the_rules_for_sentences(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert long_sentences(page, 25) == []
    assert re.findall(NOT_PLAIN, " ".join(paragraphs(page)), re.I) == []
    assert [one for one in paragraphs(page) if ";" in re.sub(r"`[^`]*`", "", one)] == []
    assert not re.search(r"^#.*(\bI want\b|\?$)", re.sub("```.*?```", "", text, flags=re.S), re.M)
    assert len(paragraphs(page)[0].split()) <= 45
    prose = re.sub("```.*?```", "", re.sub(r"\]\([^)]*\)", "]", text), flags=re.S)
    rows = re.findall(r"^\|.*\|$", prose, re.M)
    cells = [cell for row in rows for cell in row.strip("|").split("|")]
    assert [cell for cell in cells if len(cell.split()) > 15] == []


@pytest.mark.parametrize("pattern", MOST_WORDS)
def test_a_page_is_no_longer_than_it_may_be(pattern: str) -> None:
    counts = {path.name: len(path.read_text("utf-8").split()) for path in ROOT.glob(pattern)}
    assert counts
    assert {name: n for name, n in counts.items() if n > MOST_WORDS[pattern]} == {}


def test_the_headings_of_the_faq_are_messages_that_the_library_raises() -> None:
    """Or they are in plain words, and the message is the first line below them."""
    page = (ROOT / "docs/reference/faq.md").read_text(encoding="utf-8").split("\n## Symptoms\n")[0]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    joined = re.sub(r'"\s*f?"', "", sources)  # literals of several lines
    of_sqlalchemy_and_sqlite = {"expected to update 1 row(s); 0 were matched", "database is locked"}
    entries = page.split("\n### ")[1:]
    messages = [re.search(r"\A(?:.*\n\nMessage: )?`(.*?)`", entry) for entry in entries]
    assert [entry for entry, message in zip(entries, messages, strict=True) if not message] == []
    shown = {message[1] for message in messages if message} - of_sqlalchemy_and_sqlite
    assert [message for message in shown if message not in joined] == []


#: Words of a page for users, code and tables included: more are two pages.
LONGEST = 1_700
#: All pages for users together.
LONGEST_TOGETHER = 51_500
#: Pages for contributors, and the generated ones.
NOT_READ_THROUGH = {"guarantees.md", "not-protected.md", "design.md"}
FOR_USERS = [
    page
    for page in PAGES
    if page.name not in NOT_READ_THROUGH and not {"contributing", "decisions"} & {*page.parts}
]


def words_of(page: Path) -> int:
    """Words of a page without its marks, hidden examples and folded set-ups."""
    omitted = r"<!--.*?-->|<details>.*?</details>"
    text = re.sub(omitted, "", page.read_text(encoding="utf-8"), flags=re.S)
    return len(re.findall(r"\S*\w\S*", text))


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_for_users_can_be_read_in_ten_minutes(page: Path) -> None:
    assert words_of(page) <= LONGEST


def test_all_pages_for_users_together_have_a_limit() -> None:
    assert sum(map(words_of, FOR_USERS)) <= LONGEST_TOGETHER


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_heading_says_what_the_reader_does(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    assert re.findall(r"^#+ I want.*", text, flags=re.M) == []
