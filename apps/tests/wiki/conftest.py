"""``client``: a wiki with one page, "tea", on a SQLite database in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from optilock_apps.wiki.pages import Page
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from starlette.testclient import TestClient

from apps.tests.wiki.browsing import Visitor
from apps.tests.wiki.wikis import wiki_on


@pytest.fixture
def memory() -> Iterator[Engine]:
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    yield engine
    engine.dispose()


@pytest.fixture
def client(memory: Engine) -> TestClient:
    return wiki_on(memory)


@pytest.fixture
def ada(client: TestClient) -> Visitor:
    return Visitor(client)


@pytest.fixture
def stored(memory: Engine) -> Callable[[str], str | None]:
    """What a page says."""

    def body_of(name: str) -> str | None:
        with Session(memory) as session:
            page = session.get(Page, name)
            return None if page is None else page.body

    return body_of
