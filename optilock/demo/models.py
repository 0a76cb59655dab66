"""The wiki page, twice: as most programs have it, and with the mixin.

Both have a text, a counter and a set of tags; each wants to be merged in another way.
"""

from __future__ import annotations

from sqlalchemy import JSON, String, Text
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned

__all__ = ["Base", "Page", "PlainWikiPage", "WikiPage"]

#: MariaDB's TEXT ends at 64 KB, and its default character set need not hold every page.
_LONG_TEXT = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
_CHARSET = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}


class Base(DeclarativeBase):
    """The tables of the demo, all named ``optilock_demo_…``."""


class Page(Base):
    """What the two kinds of page have in common."""

    __abstract__ = True

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    body: Mapped[str] = mapped_column(_LONG_TEXT)
    views: Mapped[int] = mapped_column(default=0)
    tags: Mapped[list[str]] = mapped_column(JSON, default=list)


class PlainWikiPage(Page):
    """A page without a version: what is written last stays."""

    __tablename__ = "optilock_demo_plain_pages"
    __table_args__ = _CHARSET


class WikiPage(Versioned, Page):
    """The same page with the mixin; that is all the difference."""

    __tablename__ = "optilock_demo_pages"
    __table_args__ = _CHARSET
