"""A wiki with one page, for tests."""

from __future__ import annotations

from typing import Any

from optilock_apps.wiki.app import wiki
from optilock_apps.wiki.pages import Base, Page, prepare
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from optilock import entities
from optilock.resolvers.open_text import MARKS

__all__ = ["TEA", "both", "wiki_on"]

TEA = "Boil the water.\nPut in the leaves.\nWait three minutes."


def both(yours: str, theirs: str) -> str:
    """A place of the box that both have changed."""
    before, between, after = (f"{mark}\n" for mark in MARKS)
    return f"{before}{yours}\n{between}{theirs}\n{after}"


def wiki_on(engine: Engine, **options: Any) -> TestClient:
    """A client of a wiki whose one page is "tea"."""
    Base.metadata.drop_all(engine)
    prepare(engine, pages=0)
    with Session(engine) as session, session.begin():
        entities.insert(session, Page, "tea", {"body": TEA})
    return TestClient(wiki(engine, **options), base_url="http://127.0.0.1:8000")
