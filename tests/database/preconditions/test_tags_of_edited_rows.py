"""The tag of a row that was edited and not flushed is that of before: it is never sent."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker

from optilock import ConfigurationError, etag_of, watch
from optilock.preconditions.entity_tags import ETags
from optilock.statements import touch
from optilock.testing import count_statements
from optilock.web.conditions import Conditions
from tests.support.models import Account, Page

WRITES = [("If-Match", "*")]
SIGNED = ETags(keys=["a secret of 16 bytes, or more"])


@pytest.fixture
def rows(store: Any) -> None:
    store(Account(id=1, owner="Ada", balance=1), Page(id=1, body="a", views=1))


@pytest.mark.parametrize("tag", [etag_of, SIGNED.of], ids=["etag_of", "signed"])
def test_an_edited_row_has_no_tag_before_the_flush(rows, watched, tag):
    """B5: its tag would be that of other values, and the client's next request would be stale."""
    session = watched()
    row = session.get_one(Account, 1)
    before = tag(row)
    row.owner = "Eve"
    with pytest.raises(ConfigurationError, match=r"flush\(\) first"):
        tag(row)
    session.flush()
    assert tag(row) != before


def test_a_touched_row_and_a_deleted_one_have_none(rows, watched):
    """B5: a touch moves the version with the next flush, and a delete ends it."""
    session = watched()
    row = session.get_one(Account, 1)
    touch(row)
    with pytest.raises(ConfigurationError, match="touched"):
        etag_of(row)
    session.flush()
    session.delete(row)
    with pytest.raises(ConfigurationError, match="to be deleted"):
        etag_of(row)


def test_what_moves_no_version_leaves_the_tag(rows, watched):
    """B5: a value assigned as it is, and a column that the version ignores."""
    session = watched()
    row, page = session.get_one(Account, 1), session.get_one(Page, 1)
    before = etag_of(row), etag_of(page)
    row.owner, page.views = "Ada", 7
    assert (etag_of(row), etag_of(page)) == before


def test_a_response_has_the_tag_of_the_values_in_it(rows, watched):
    """B5: ``tag_of`` of a request's conditions flushes, whatever the framework."""
    conditions = Conditions.of("PUT", WRITES)
    session = watched()
    row = session.get_one(Account, 1)
    row.owner = "Eve"
    sent = conditions.tag_of(row)
    session.commit()
    with watched() as again:
        assert etag_of(again.get_one(Account, 1)) == sent


@pytest.mark.anyio
async def test_an_async_session_has_to_be_flushed_before(async_engine, async_tables):
    """B5: nothing can be awaited in ``tag_of``: it refuses."""
    async_tables(Account)
    async with watch(async_sessionmaker(async_engine))() as session:
        session.add(Account(id=1, owner="Ada", balance=1))
        await session.flush()
        row = await session.get_one(Account, 1)
        row.owner = "Eve"
        conditions = Conditions.of("PUT", WRITES)
        with pytest.raises(ConfigurationError, match="flush"):
            conditions.tag_of(row)
        await session.flush()
        assert conditions.tag_of(row) == etag_of(row)


def test_a_read_writes_nothing_and_has_the_tag_of_what_was_read(rows, watched, engine):
    """B5: a route changes an object for its answer alone, and its session is closed."""
    session = watched()
    row = session.get_one(Account, 1)
    before = etag_of(row)
    row.owner = row.owner.upper()
    session.add(Page(id=1))  # unfinished
    with count_statements(engine) as sent:
        assert Conditions.of("GET", []).tag_of(row) == before
    assert sent.count == 0
    written = Conditions.of("PUT", WRITES)
    with session.no_autoflush, pytest.raises(ConfigurationError, match="flush"):
        written.tag_of(row)
