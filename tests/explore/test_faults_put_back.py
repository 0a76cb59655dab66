"""Two protections of optilock, each taken away by hand: what they keep from happening is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from checks.explore.pairs import GUARDED, LIKES
from checks.explore.rows import Guarded, Likes
from optilock import UnitOfWork, merge_fields, unit_of_work, watch
from optilock._watched.rows import entries
from optilock._watched.session.transaction import TransactionRecord
from optilock.testing import explore


def likes(sessions: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Two increments, one of them next to another column."""

    @unit_of_work(watch(sessions), attempts=4)
    def like(session: Session) -> None:
        session.get_one(Likes, 1).n += 1

    def like_and_note() -> None:
        with UnitOfWork(watch(sessions), on_conflict=merge_fields) as session:
            row = session.get_one(Likes, 1)
            row.n += 1
            row.note = 7

    return like, like_and_note


@pytest.mark.parametrize("protected", [True, False])
def test_an_increment_that_a_merge_loses_is_found(
    protected: bool, sessions: Any, put_back: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2: the difference is not added to what the other one has stored."""
    if not protected:
        monkeypatch.setattr(entries, "_added", lambda attempt: {})
    found = explore(*likes(sessions), sessions=sessions, reset=put_back(LIKES))
    assert found.complete
    assert {one.anomaly for one in found.failures} == (set() if protected else {"lost update"})
    assert all(one.steps <= 8 for one in found.failures[:1])


def undone_then_edited(sessions: Any) -> Callable[[], Any]:
    """Two savepoints are undone, and the object is edited as it was read first."""

    def undone_then_edited() -> int:
        with watch(sessions)() as session:
            row = session.get_one(Guarded, 1)
            seen = row.n
            session.begin_nested()
            row.n = 50
            session.begin_nested()
            row.note = Guarded.note + 1
            session.flush()
            session.rollback()
            row.n = 100
            session.commit()
        return seen

    return undone_then_edited


def other_edit(sessions: Any) -> Callable[[], Any]:
    def other_edit() -> None:
        with Session(
            sessions.kw["bind"].execution_options(isolation_level="AUTOCOMMIT")
        ) as session:
            moved = {"n": Guarded.n + 1, "version": Guarded.version + 1}
            session.execute(update(Guarded.__table__).where(Guarded.id == 1).values(moved))

    return other_edit


def innermost(self: TransactionRecord, point: Any) -> Any:
    """The version of the innermost savepoint counts, which was never stored."""
    before = dict(self.undone_before)
    undone = _take_back_to(self, point)
    self.undone_before.update(before)
    return undone


_take_back_to = TransactionRecord.take_back_to


@pytest.mark.parametrize("protected", [True, False])
def test_a_version_that_was_never_stored_is_found(
    protected: bool, sessions: Any, put_back: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A11: an edit overwrites what its author has not seen, or conflicts with no one."""
    if not protected:
        monkeypatch.setattr(TransactionRecord, "take_back_to", innermost)
    units = undone_then_edited(sessions), other_edit(sessions)
    found = explore(*units, sessions=sessions, reset=put_back(GUARDED))
    assert found.complete
    assert bool(found.failures) is not protected
    assert all(one.steps <= 8 for one in found.failures[:1])
