"""Edits: what one of them changes, the plan of all, and which are not in the stored pages.

An edit leaves its mark in the text, adds its tag and counts one view::

>>> from optilock_apps.demo.edits import Edit, Stored, compare, inserted
>>> edit = Edit(editor=1, number=7, page="with", place=0.0, pause=0.01, remark="Checked.")
>>> inserted("First paragraph.\\n\\nSecond.", edit)
'First paragraph.\\n[edit 1-7] Checked.\\n\\nSecond.'
>>> compare({"with": "text"}, [Stored("with", "text", views=0, tags=[])], [edit]).lost
1

It adds a line at the end of one paragraph. Two edits in different paragraphs can be merged. Two in
the same paragraph add different lines at the same place, and only their authors know which comes
first. The marks show a lost edit afterwards: each is unique, and none is a part of another.

An edit is lost when its mark is not in the text, or its tag not among the tags. A counter has no
marks: when fewer views are stored than edits were committed, that many edits are lost at least.
The larger of the two numbers counts, page by page.

The opposite is searched too: an edit that is stored twice, or stored after it failed for its
editor, and text of the original page that disappeared.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Protocol

from sqlalchemy import JSON, URL, Engine, String, Text, create_engine, make_url
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.errors import ConfigurationError
from optilock.leases import Leasable

_REMARKS = (
    "Checked against the grammar.",
    "An example would help here.",
    "See also: contextlib.",
    "This is true of generators too.",
    "Newcomers stumble over this one.",
)
_SHORTEST, _LONGEST = 0.004, 0.024


class Editable(Protocol):
    """A page as an edit needs it: both models have this shape."""

    body: str
    views: int
    tags: list[str]


@dataclass(frozen=True)
class Edit:
    """The plan of one edit, made before any editor starts: every strategy gets the same."""

    editor: int
    number: int
    page: str
    #: Where in the text, from 0 (the first paragraph) up to but not including 1.
    place: float
    #: Seconds between reading and writing.
    pause: float
    remark: str

    @property
    def mark(self) -> str:
        return f"[edit {self.editor}-{self.number}]"

    @property
    def tag(self) -> str:
        return f"edit-{self.editor}-{self.number}"


def apply(edit: Edit, page: Editable) -> None:
    """Change the three attributes of a page that has been read."""
    page.body = inserted(page.body, edit)
    page.views = page.views + 1
    page.tags = [*page.tags, edit.tag]


def inserted(body: str, edit: Edit) -> str:
    """The text with the edit's line at the end of its paragraph."""
    paragraphs = body.split("\n\n")
    chosen = int(edit.place * len(paragraphs))
    paragraphs[chosen] += f"\n{edit.mark} {edit.remark}"
    return "\n\n".join(paragraphs)


def plan(*, editors: int, edits: int, pages: Sequence[str], seed: int) -> list[list[Edit]]:
    """The edits of each editor; the same seed always gives the same plan."""
    chance = random.Random(seed)
    return [
        [_edit(chance, editor, number, pages) for number in range(1, edits + 1)]
        for editor in range(1, editors + 1)
    ]


def _edit(chance: random.Random, editor: int, number: int, pages: Sequence[str]) -> Edit:
    return Edit(
        editor=editor,
        number=number,
        page=chance.choice(pages),
        # Squared: the beginning of a page gets more edits than its end, so some of them clash.
        place=chance.random() ** 2,
        pause=chance.uniform(_SHORTEST, _LONGEST),
        remark=chance.choice(_REMARKS),
    )


_LINE_OF_AN_EDIT = re.compile(r"\n\[edit \d+-\d+\][^\n]*")


@dataclass(frozen=True)
class Stored:
    """A page as it is in the database after all editors have finished."""

    name: str
    body: str
    views: int
    tags: Sequence[str]


@dataclass(frozen=True)
class Losses:
    """``lost`` edits, ``surplus`` ones (stored twice or unasked), names of ``damaged`` pages."""

    lost: int
    surplus: int
    damaged: tuple[str, ...]


def compare(
    originals: Mapping[str, str], stored: Iterable[Stored], committed: Iterable[Edit]
) -> Losses:
    """Hold the stored pages against the edits whose COMMIT had returned."""
    pages = {page.name: page for page in stored}
    edits = list(committed)
    here = {name: [edit for edit in edits if edit.page == name] for name in originals}
    return Losses(
        lost=sum(_lost(pages.get(name), here[name]) for name in originals),
        surplus=sum(_surplus(pages.get(name), here[name]) for name in originals),
        damaged=tuple(name for name in originals if _damaged(pages.get(name), originals[name])),
    )


def _lost(page: Stored | None, edits: Sequence[Edit]) -> int:
    if page is None:
        return len(edits)
    missing = [edit for edit in edits if edit.mark not in page.body or edit.tag not in page.tags]
    return max(len(missing), len(edits) - page.views)


def _surplus(page: Stored | None, edits: Sequence[Edit]) -> int:
    if page is None:
        return 0
    known = {edit.mark for edit in edits}
    marks = [line.strip().split("]")[0] + "]" for line in _LINE_OF_AN_EDIT.findall(page.body)]
    unasked = sum(1 for mark in marks if mark not in known)
    twice = len(marks) - len(set(marks))
    return max(unasked + twice, len(page.tags) - len(set(page.tags)), page.views - len(edits), 0)


def _damaged(page: Stored | None, original: str) -> bool:
    return page is None or _LINE_OF_AN_EDIT.sub("", page.body) != original


# -- pages, tables and database --------------------------------------------------------------------
# The pages are the reference topics of Python (``pydoc_data.topics``), generated from the Python
# documentation. Copyright (c) Python Software Foundation, PSF License Version 2. Each page is
# stored without a version, with one, and with a lease: a text, a counter and a set of tags, which
# are merged in three ways.
#
# The database is a temporary SQLite file or the one of ``--url``. A URL that cannot work is refused
# before an editor starts, in one sentence without the password.


CREDIT = (
    "Pages: pydoc_data.topics from the Python documentation,"
    " (c) Python Software Foundation, PSF License Version 2."
)

#: Well-known pages of a few thousand characters come first.
_FAVOURITES = ("with", "try", "class", "function", "import", "naming", "strings", "for")

#: How many pages there are (they differ a little between Python versions).
MOST = len(topics)


def hot_pages(count: int) -> dict[str, str]:
    """Name -> text of the first ``count`` pages, favourites first."""
    favourites = [name for name in _FAVOURITES if name in topics]
    others = sorted(set(topics) - set(favourites))
    return {name: topics[name] for name in (favourites + others)[:count]}


#: MariaDB's TEXT ends at 64 KB, and its default character set need not hold every page.
_LONG_TEXT = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
_CHARSET = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}


class Base(DeclarativeBase):
    """The tables of the demo, all named ``optilock_demo_…``."""


class Page(Base):
    """The common columns of all kinds of page."""

    __abstract__ = True

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    body: Mapped[str] = mapped_column(_LONG_TEXT)
    views: Mapped[int] = mapped_column(default=0)
    tags: Mapped[list[str]] = mapped_column(JSON, default=list)


class PlainWikiPage(Page):
    """A page without a version: the last write stays."""

    __tablename__ = "optilock_demo_plain_pages"
    __table_args__ = _CHARSET


class WikiPage(Versioned, Page):
    """The same page with the mixin; that is all the difference."""

    __tablename__ = "optilock_demo_pages"
    __table_args__ = _CHARSET


class LeasedWikiPage(Leasable, Versioned, Page):
    """The same page with a lease, which one editor can hold for a while."""

    __tablename__ = "optilock_demo_leased_pages"
    __table_args__ = _CHARSET


_BACKENDS = ("postgresql", "sqlite", "mysql", "mariadb")
_EXAMPLES = "postgresql+psycopg://user@host/name, mysql+pymysql://user@host/name, sqlite:///file"
#: Seconds. Longer than the whole demo takes, so that no editor gives up on a lock.
_WAIT_FOR_LOCK = 60


@contextmanager
def database_url(asked: str | None) -> Iterator[str]:
    """A URL that answers; without one, that of a SQLite file which is removed afterwards."""
    if asked is not None:
        yield checked_url(asked)
        return
    with tempfile.TemporaryDirectory(prefix="optilock-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'wiki.db'}"
        _set_write_ahead_log(url)
        yield url


def open_engine(url: str) -> Engine:
    """An engine with one connection, as one editor needs it.

    READ COMMITTED is what last writer wins and the optimistic strategies are about; a server
    whose own default is stricter would otherwise refuse some of the writes.
    """
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 1}
    if make_url(url).get_backend_name() == "sqlite":
        return create_engine(url, connect_args={"timeout": _WAIT_FOR_LOCK}, **options)
    return create_engine(url, isolation_level="READ COMMITTED", **options)


def checked_url(asked: str) -> str:
    """The URL again, when a connection can be opened; else :exc:`ConfigurationError`."""
    url = _parsed(asked)
    shown = url.render_as_string(hide_password=True)
    try:
        engine = open_engine(asked)
        with engine.connect():
            pass
    except NoSuchModuleError:
        raise ConfigurationError(
            f"SQLAlchemy knows no driver {url.drivername!r}: write one of {_EXAMPLES}."
        ) from None
    except ImportError as missing:
        raise ConfigurationError(
            f"The driver of {shown} is not installed ({missing.name}): name one that is, such as"
            ' postgresql+psycopg:// or mysql+pymysql:// (pip install "optilock[demo]" has both).'
        ) from None
    except (SQLAlchemyError, UnicodeError, OSError) as error:
        raise ConfigurationError(f"Cannot connect to {shown}: {reason(error, url)}") from None
    engine.dispose()
    return asked


def _parsed(asked: str) -> URL:
    try:
        url = make_url(asked)
    except (ArgumentError, ValueError):
        # The text is not repeated: a URL that cannot be read may still hold a password.
        raise ConfigurationError(
            f"The --url given is not a database URL: write one of {_EXAMPLES}."
        ) from None
    if url.get_backend_name() not in _BACKENDS:
        raise ConfigurationError(
            f"The demo does not know {url.get_backend_name()!r}: write one of {_EXAMPLES}."
        )
    _refuse_async(url)
    _refuse_memory(url)
    return url


def _refuse_async(url: URL) -> None:
    try:
        asynchronous = url.get_dialect().is_async
    except (ImportError, NoSuchModuleError):
        return
    if asynchronous:
        raise ConfigurationError(
            f"The editors of the demo are not async and cannot use {url.drivername!r}:"
            f" write one of {_EXAMPLES}."
        )


def _refuse_memory(url: URL) -> None:
    if url.get_backend_name() != "sqlite":
        return
    if url.database in (None, "", ":memory:") or "mode=memory" in str(url):
        raise ConfigurationError(
            "Several processes cannot share a SQLite database in memory: name a file"
            " (sqlite:///wiki.db), or leave --url away."
        )


def reason(error: Exception, url: URL) -> str:
    """The driver's first line, without the password if the driver repeats it."""
    cause = getattr(error, "orig", None) or error
    text = str(cause.args[-1] if cause.args else cause)
    if url.password:
        text = text.replace(str(url.password), "***")
    return " ".join(text.strip().split("\n")[0].split())


def _set_write_ahead_log(url: str) -> None:
    """Readers and the one writer of a SQLite file do not wait for each other in this mode."""
    engine = open_engine(url)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    engine.dispose()
