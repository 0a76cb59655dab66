"""The site: Sphinx, MyST and furo, built by ``python -m docs`` without a network.

Pages are Markdown and run as tests; pages of the API are reStructuredText in
``reference/api/``.
"""

from __future__ import annotations

import functools
import pkgutil
import re
from importlib.metadata import version as version_of
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.intersphinx import InventoryAdapter, missing_reference

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/optilock/optilock/blob/main"

project = "optilock"
copyright = "optilock contributors"
release = version_of("optilock")
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_reredirects",
    "sphinx_llms_txt",
]
#: On the site, decisions/index.rst is the list of decisions.
exclude_patterns = ["inventories", "decisions/README.md"]
nitpicky = True
nitpick_ignore_regex = [
    (kind, name)
    for kind, name in re.findall(
        r"^(\S+) (\S+)$", (ROOT / "docs" / "nitpicks.txt").read_text("utf-8"), re.M
    )
]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
maximum_signature_line_length = 88

intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.inv"),
    "sqlalchemy": ("https://docs.sqlalchemy.org/en/20", "inventories/sqlalchemy.inv"),
}

#: Pages that have moved, as ``"old/page": "new/page.html"``; the target is relative to the old one.
redirects = {
    "admin": "how-to/web/admin.html",
    "aggregates": "how-to/models/aggregates.html",
    "benchmarks": "explanation/benchmarks.html",
    "benchmarks/earlier": "../contributing/benchmarks/earlier.html",
    "benchmarks/figures": "../contributing/benchmarks/figures.html",
    "benchmarks/method": "../contributing/benchmarks/method.html",
    "check": "how-to/operate/check.html",
    "client-versions": "how-to/web/client-versions.html",
    "compared-values": "how-to/models/compared-values.html",
    "conditions": "how-to/sessions/conditions.html",
    "conflicts": "how-to/conflicts/conflicts.html",
    "deletes": "how-to/models/deletes.html",
    "deployments": "how-to/operate/deployments.html",
    "design": "explanation/design.html",
    "detached-objects": "how-to/web/detached-objects.html",
    "entities": "how-to/web/entities.html",
    "errors": "reference/errors.html",
    "events": "how-to/operate/events.html",
    "exactly-once": "how-to/sessions/exactly-once.html",
    "expectations": "how-to/web/expectations.html",
    "explore": "how-to/test/explore.html",
    "faq": "reference/faq.html",
    "fewer-round-trips": "how-to/sessions/fewer-round-trips.html",
    "forms": "how-to/web/forms.html",
    "frameworks": "how-to/web/frameworks.html",
    "galera": "how-to/operate/galera.html",
    "glossary": "reference/glossary.html",
    "guarantees": "reference/guarantees.html",
    "hot-rows": "how-to/conflicts/hot-rows.html",
    "http-answers": "how-to/web/http-answers.html",
    "idempotent-requests": "how-to/web/idempotent-requests.html",
    "increments": "how-to/conflicts/increments.html",
    "isolation": "explanation/isolation.html",
    "leases": "how-to/long-work/leases.html",
    "listeners": "how-to/conflicts/listeners.html",
    "migrations": "how-to/operate/migrations.html",
    "models": "how-to/models/models.html",
    "not-protected": "reference/not-protected.html",
    "queue": "how-to/long-work/queue.html",
    "reference/asyncio": "api/asyncio.html",
    "reference/conflicts": "api/conflicts.html",
    "reference/databases": "api/databases.html",
    "reference/entities": "api/entities.html",
    "reference/events": "api/events.html",
    "reference/exactly-once": "api/exactly-once.html",
    "reference/index": "api/index.html",
    "reference/leases": "api/leases.html",
    "reference/migrations": "api/migrations.html",
    "reference/models": "api/models.html",
    "reference/preconditions": "api/preconditions.html",
    "reference/queues": "api/queues.html",
    "reference/sessions": "api/sessions.html",
    "reference/shares": "api/shares.html",
    "reference/statements": "api/statements.html",
    "reference/testing": "api/testing.html",
    "reference/units": "api/units.html",
    "reference/web": "api/web.html",
    "resolvers": "how-to/conflicts/resolvers.html",
    "retry": "how-to/sessions/retry.html",
    "rollout": "how-to/operate/rollout.html",
    "scenarios": "contributing/scenarios.html",
    "scopes": "how-to/models/scopes.html",
    "sessions": "how-to/sessions/sessions.html",
    "shares": "how-to/long-work/shares.html",
    "sqlalchemy-suite": "contributing/sqlalchemy-suite.html",
    "state": "contributing/state.html",
    "statements": "how-to/conflicts/statements.html",
    "strategies": "how-to/conflicts/strategies.html",
    "telemetry": "how-to/operate/telemetry.html",
    "testing": "how-to/test/testing.html",
    "tokens": "how-to/models/tokens.html",
    "transient-errors": "reference/transient-errors.html",
    "units": "how-to/sessions/units.html",
    "verify-reads": "how-to/web/verify-reads.html",
    "web": "tutorial/web.html",
    "wiki": "tutorial/wiki.html",
}

#: What readers type into the search, by the page and heading that answers it. The search of Sphinx
#: omits numbers and words such as "for" from its texts, and finds them in entries of the index.
SEARCH_WORDS = {
    "compatibility#versions": ["python versions", "mysql", "sql server", "oracle", "cockroachdb"],
    "explanation/benchmarks": ["benchmark", "overhead", "performance"],
    "how-to/conflicts/hot-rows": ["hot rows"],
    "how-to/conflicts/resolvers": ["merge", "resolver"],
    "how-to/conflicts/strategies#lock-a-row": ["for update", "select for update"],
    "how-to/long-work/leases": ["lease"],
    "how-to/long-work/queue": ["job", "jobs", "background jobs"],
    "how-to/operate/deployments#pgbouncer-in-transaction-mode": ["pgbouncer"],
    "how-to/operate/migrations": ["alembic"],
    "how-to/operate/rollout": ["rollout", "roll-out"],
    "how-to/sessions/retry": ["retry"],
    "how-to/web/client-versions#put-the-etag-into-a-payload": ["graphql"],
    "how-to/web/expectations": ["etag", "if-match"],
    "how-to/web/form-libraries#react-or-another-front-end": ["react"],
    "how-to/web/form-libraries#show-it-with-wtforms-or-flask-wtf": ["flask-wtf", "wtforms"],
    "how-to/web/http-answers": ["400", "403", "404", "413", "422", "501", "503"],
    "how-to/web/idempotent-requests": ["idempotency-key"],
    "reference/faq#409-a-retry-would-overwrite-another-users-change": ["409"],
    "reference/faq#412-the-row-is-no-longer-in-the-version-that-was-demanded": ["412"],
    "reference/faq#428-a-write-by-key-without-if_match": ["428"],
    "reference/faq#a-test-with-one-thread-waits-and-then-fails": ["test hangs"],
    "reference/faq#an-edit-is-lost-and-there-is-no-conflict": ["lost update"],
    "reference/faq#database-is-locked": ["database is locked"],
    "reference/faq#expected-to-update-1-rows-0-were-matched": ["stale", "StaleDataError"],
    "reference/faq#it-is-too-slow": ["slow", "too slow"],
    "reference/not-protected": ["not protected"],
    "reference/transient-errors": [
        "1020",
        "1205",
        "1213",
        "40001",
        "40P01",
        "55P03",
        "deadlock",
        "could not serialize access",
        "could not serialize access due to concurrent update",
    ],
}

html_theme = "furo"
html_title = f"optilock {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}
html_show_sourcelink = False
html_baseurl = "https://optilock.readthedocs.io/en/stable/"

llms_txt_title = "optilock"
llms_txt_summary = "Optimistic concurrency for SQLAlchemy: no lost update."

HIDDEN = re.compile(
    r"^[ \t]*<!--- invisible-code-block.*?-->\n?|^[ \t]*<!-- skip.*?-->\n?", re.M | re.S
)


def adapt_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Remove the blocks that only tests read, and link files outside of docs to the repository."""
    source[0] = HIDDEN.sub("", source[0]).replace("decisions/README.md", "decisions/index.rst")
    source[0] = with_search_words(page, source[0])
    if page == "index":
        source[0] = omit_missing_pages(source[0])

    def absolute(link: re.Match[str]) -> str:
        path = normpath(f"docs/{dirname(page)}/{link[2]}")
        return link[0] if path.startswith("docs/") else f"{link[1]}{SOURCE}/{path}"

    outside = r"(\]\(|^\[[^\]]+\]: )(\.\./[^)\s#\"]+)"
    source[0] = re.sub(outside, absolute, source[0], flags=re.M)


def with_search_words(page: str, text: str) -> str:
    """Put the main entries of the index before their headings; the first heading is the title."""
    for place, words in SEARCH_WORDS.items():
        name, _, anchor = place.partition("#")
        if name == page:
            entries = ", ".join(f"! {word}" for word in words)
            heading = next(
                one
                for one in re.finditer(r"^#+ (.*)$", text, re.M)
                if re.sub(r"[^\w -]", "", one[1].lower()).replace(" ", "-") == anchor or not anchor
            )
            start = heading.start()
            text = f"{text[:start]}```{{index}} {entries}\n```\n\n{text[start:]}"
    return text


def omit_missing_pages(text: str) -> str:
    """Remove the lines of the home page's trees that no page matches, such as ``cookbook/*``."""
    missing = {
        line
        for line in re.findall(r"^[a-z][a-z/*-]+$", text, re.M)
        if not any(Path(__file__).parent.glob(f"{line}.*"))
    }
    return "\n".join(line for line in text.split("\n") if line not in missing)


def strip_full_text(app: Sphinx, error: Exception | None) -> None:
    """Remove hidden blocks from ``llms-full.txt``, which is made from the sources of the pages."""
    full = Path(app.outdir, "llms-full.txt")
    if error is None and full.exists():
        full.write_text(HIDDEN.sub("", full.read_text(encoding="utf-8")), encoding="utf-8")


def same_objects(env: BuildEnvironment, target: str) -> list[str]:
    """Return the described names that are the object of ``target``, ours before those of others.

    A name without its module is one that only type checkers import: it has to be unique.
    """
    tail = target.rpartition(".")[2]
    ours = env.get_domain("py").data["objects"]
    others = InventoryAdapter(env).main_inventory
    known = [*ours, *(name for kind in others if kind.startswith("py:") for name in others[kind])]
    named = [name for name in dict.fromkeys(known) if name.rpartition(".")[2] == tail]
    wanted = load(target) if "." in target else None
    if wanted is not None:
        return [name for name in named if load(name) is wanted]
    found = {id(load(name)): name for name in named if name in ours or isinstance(load(name), type)}
    return list(found.values()) if len(found) == 1 else []


@functools.cache
def load(name: str) -> object:
    """Import a module, or an object of one; ``None`` if there is none."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return None


def resolve_elsewhere(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element
) -> Element | None:
    """Link an object that was named by the module of its definition to where it is described."""
    if node.get("refdomain") != "py" or node["reftarget"] == "":
        return None
    domain = env.get_domain("py")
    for name in same_objects(env, node["reftarget"]):
        other = node.copy()
        other["reftarget"], other["reftype"] = name, "obj"
        place = (env, node["refdoc"], app.builder, "obj", name, other, content)
        link = domain.resolve_xref(*place) or missing_reference(app, env, other, content)
        if link is not None:
            return link
    return None


def keep_colons(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Let napoleon take no words of an attribute's first line for its type."""
    if what in {"attribute", "data", "property"}:
        lines.insert(0, "\\")  # an escaped line end, of which nothing is left


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", adapt_page)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("missing-reference", resolve_elsewhere)
    app.connect("build-finished", strip_full_text, priority=900)
    return {"parallel_read_safe": True}
