"""The table of the pages, and the pages of a new wiki.

The version is a random value (:class:`~optilock.tokens.unique.Unique`): a page that was deleted and
made again never has a tag of before, and no tag can be guessed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, String, Text, inspect, text
from sqlalchemy.dialects.mysql import MEDIUMTEXT, VARCHAR
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.schema import CreateColumn

from optilock import Versioned, entities
from optilock.leases import Leasable, LeasePolicy
from optilock.tokens import Unique
from optilock_apps.demo.edits import CREDIT, hot_pages
from optilock_apps.wiki.texts import LONGEST_NAME

__all__ = ["FIRST_PAGES", "Base", "Page", "page_values", "prepare"]

#: Whose texts a new wiki begins with.
FIRST_PAGES = f"The first {CREDIT[0].lower()}{CREDIT[1:]}"

#: MariaDB would take "With" for "with", and end a text at 64 KB.
_NAME = String(LONGEST_NAME).with_variant(
    VARCHAR(LONGEST_NAME, collation="utf8mb4_bin"), "mysql", "mariadb"
)
_BODY = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")


class Base(DeclarativeBase):
    """The one table of the wiki."""


class Page(Leasable, Versioned, Base):
    """A page. Its name is its key, and stands in its address."""

    __tablename__ = "optilock_wiki_pages"
    __table_args__ = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}
    __version_token__ = Unique()
    #: A lease shows that a page is being edited, and stops no edit: ``optilock_apps.wiki.editing``.
    __lease_policy__ = LeasePolicy(shortest=1, longest=3600, endless=False, guards=())
    #: The stored value that a program gets in a conflict.
    __problem_fields__ = ("body",)
    #: A conflict shows them to people and to programs.
    __version_author__ = "changed_by"
    __version_time__ = "changed_at"

    name: Mapped[str] = mapped_column(_NAME, primary_key=True)
    body: Mapped[str] = mapped_column(_BODY)
    #: The signature of the last editor, if there is one.
    changed_by: Mapped[str | None] = mapped_column(String(LONGEST_NAME))
    #: The time of the last change, in UTC; NULL: the page has not changed since it was made.
    changed_at: Mapped[datetime | None]


def page_values(body: str, author: str | None = None) -> dict[str, Any]:
    """Return the values of a page that is written now."""
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    return {"body": body, "changed_by": author or None, "changed_at": now}


def prepare(engine: Engine, pages: int = 8) -> None:
    """Make the table with its first pages; if it is there, give it the columns that it lacks."""
    if inspect(engine).has_table(Page.__tablename__):
        _add_columns(engine)
        return
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        for name, body in hot_pages(pages).items():
            entities.insert(session, Page, name, {"body": body})


def _add_columns(engine: Engine) -> None:
    """Add the columns of leases to the table of an older wiki."""
    there = {column["name"] for column in inspect(engine).get_columns(Page.__tablename__)}
    with engine.begin() as connection:
        for column in Base.metadata.tables[Page.__tablename__].columns:
            if column.name not in there:
                words = CreateColumn(column).compile(dialect=engine.dialect)
                connection.execute(text(f"ALTER TABLE {Page.__tablename__} ADD COLUMN {words}"))
