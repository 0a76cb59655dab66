"""``session.merge()`` of values that come without the version of their row."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConcurrencyError, ConfigurationError, expect, watch
from optilock.errors import UnversionedMergeWarning
from optilock.preconditions import overwrite
from optilock.testing.counting import count_statements
from tests.support.models import Account, Page
from tests.support.repositories import attach_to_async_session, attach_to_session


@pytest.fixture(autouse=True)
def rows(store: Any) -> Any:
    """Two rows; each test hears the warning of a class anew."""
    store(Account(id=1, owner="Ada", balance=1), Page(id=1, body="a", views=1))
    yield
    for model in (Account, Page):
        vars(inspect(model)).pop("_optilock_merge_warned", None)


def merged(session: Session) -> None:
    session.merge(Account(id=1, owner="Bob"))


def copied_to_a_row_that_was_just_read(session: Session) -> None:
    """What ``update()`` and ``upsert()`` of advanced-alchemy do."""
    row = session.get_one(Account, 1)
    row.owner = "Bob"
    attach_to_session(session, row)


WAYS = pytest.mark.parametrize("write", [merged, copied_to_a_row_that_was_just_read])


def sessions(engine: Any, **options: Any) -> Any:
    return watch(sessionmaker(engine), **options)


@WAYS
def test_a_strict_session_refuses_values_without_a_version(engine, stored, write):
    """B2: they would be written over changes that their author has not seen."""
    with (
        pytest.raises(ConfigurationError, match="expect") as caught,
        sessions(engine, strict=True).begin() as session,
    ):
        write(session)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert stored(Account, 1)["owner"] == "Ada"


def test_a_refused_merge_is_taken_back(engine, stored):
    """B2: a commit after the error writes nothing of it."""
    with sessions(engine, strict=True)() as session:
        with pytest.raises(ConfigurationError, match=r"Account \(1,\) is stored"):
            merged(session)
        assert not session.dirty
        session.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("Ada", 1)


@WAYS
def test_another_session_warns_once_for_each_class(engine, stored, write):
    """B2: and writes as SQLAlchemy does."""
    made = sessions(engine)
    with (
        pytest.warns(UnversionedMergeWarning, match="strict session refuses") as heard,
        made.begin() as session,
    ):
        write(session)
    assert {Path(one.filename).name for one in heard} <= {Path(__file__).name, "<string>"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with made.begin() as session:
            session.merge(Account(id=1, owner="Cid"))
    assert stored(Account, 1)["owner"] == "Cid"
    with pytest.warns(UnversionedMergeWarning, match="Page"), made.begin() as session:
        session.merge(Page(id=1, body="b"))


def test_what_overwrites_nothing_is_merged(engine, stored):
    """B2: a new row, values that are stored already, columns that the version ignores."""
    with sessions(engine, strict=True).begin() as session:
        session.merge(Account(id=2, owner="new", balance=0))
        session.merge(Account(id=1, owner="Ada"))
        session.merge(Page(id=1, views=7))
        session.merge(session.get_one(Page, 1))
    assert (stored(Account, 2)["owner"], stored(Page, 1)["views"]) == ("new", 7)


@pytest.mark.parametrize("strict", [True, False])
def test_an_object_that_the_program_has_edited_itself_is_merged(engine, stored, strict):
    """B2: its version is that which the session holds, and the flush compares it."""
    with sessions(engine, strict=strict)() as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        row = session.get_one(Account, 1)
        row.owner = "Bob"
        assert session.merge(row) is row
        session.commit()
        row.owner = "Cid"
        with sessions(engine).begin() as other:
            other.get_one(Account, 1).owner = "theirs"
        with pytest.raises(ConcurrencyError):
            session.merge(row)  # it flushes first
            session.commit()
    assert stored(Account, 1)["owner"] == "theirs"


@pytest.mark.anyio
async def test_a_repository_of_an_async_session_is_known_as_well(async_engine, async_tables):
    """B2: an AsyncSession merges in a greenlet, whose stack does not have the caller."""
    async_tables(Account)
    async with watch(async_sessionmaker(async_engine), strict=True)() as session:
        session.add(Account(id=3, owner="Ada", balance=1))
        await session.flush()
        row = await session.get_one(Account, 3)
        row.owner = "Bob"
        with pytest.raises(ConfigurationError, match="edited Account"):
            await attach_to_async_session(session, row)
        assert await session.merge(row) is row


@pytest.mark.parametrize("says", [lambda row: expect(row, 1), overwrite], ids=["expect", "any"])
@WAYS
def test_a_row_of_which_the_program_says_the_version_is_merged(engine, stored, write, says):
    """B2: expect() compares it with what the author has seen, overwrite() says that any will do."""
    with sessions(engine, strict=True).begin() as session:
        row = session.get_one(Account, 1)
        says(row)
        write(session)
    assert stored(Account, 1)["owner"] == "Bob"


def test_what_was_said_in_an_earlier_transaction_does_not_count(engine):
    """B2: a promise ends with its transaction."""
    with sessions(engine, strict=True)() as session:
        overwrite(session.get_one(Account, 1))
        session.commit()
        with pytest.raises(ConfigurationError):
            merged(session)


def test_the_check_sends_nothing(engine):
    """B2: a merge of a payload costs what it cost before."""
    with (
        sessions(engine, strict=True)() as session,
        count_statements(engine) as sent,
        pytest.raises(ConfigurationError),
    ):
        merged(session)
    assert len(sent.statements) == 1
