"""Six ways to write the same edit: read the page, think, write it back.

================================  ==========================================================
last writer wins                  plain SQLAlchemy, no version
optimistic, retry                 ``Versioned``; a conflict runs the unit again
optimistic, merge                 ``Versioned``; a conflict is merged in the same transaction,
                                  and only an edit that cannot be merged runs again
lease                             the editor holds a lease on the page, and no transaction while
                                  it pauses; an editor that finds it leased asks again
pessimistic                       ``lock(page)`` before the pause; SQLite has no row locks: there
                                  it locks the file
serializable, retry               no version and no lock of ours: the database refuses
================================  ==========================================================

The pause between reading and writing is inside the transaction (under a lease it needs none), and
an edit that has to run again pauses again: its author has to look at the page once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from sqlalchemy.orm import Session, sessionmaker

import optilock
from optilock import leases
from optilock.leases import LeaseHeld
from optilock.resolvers import add_delta, merge_set, merge_text, per_field
from optilock_apps.demo.edits import Edit, LeasedWikiPage, Page, PlainWikiPage, WikiPage, apply

Sessions = sessionmaker[Session]
Write = Callable[[Edit], None]

#: So many that no editor gives up: the demo shows the cost of strategies, not their failures.
_ATTEMPTS = 1000

#: Seconds, in which an editor has read, thought and written, also on a machine that is busy.
_LEASED_FOR = 60
_UNTIL_FREE = optilock.retrying(
    attempts=_ATTEMPTS,
    on=lambda error: isinstance(error, LeaseHeld) or optilock.is_transient(error),
    wait_max=0.1,
)

MERGE = per_field(body=merge_text, views=add_delta, tags=merge_set)


@dataclass(frozen=True)
class Strategy:
    """A name, the table it works on, and how it writes one edit."""

    name: str
    model: type[Page]
    writer: Callable[[Sessions], Write]


def last_writer_wins(sessions: Sessions) -> Write:
    def write(edit: Edit) -> None:
        with sessions() as session:
            page = session.get_one(PlainWikiPage, edit.page)
            _think_and_change(edit, page)
            session.commit()

    return write


def optimistic_retry(sessions: Sessions) -> Write:
    @optilock.unit_of_work(sessions, attempts=_ATTEMPTS, strategy="optimistic")
    def write(session: Session, edit: Edit) -> None:
        _think_and_change(edit, session.get_one(WikiPage, edit.page))

    return write


def optimistic_merge(sessions: Sessions) -> Write:
    @optilock.unit_of_work(sessions, attempts=_ATTEMPTS, on_conflict=MERGE, strategy="optimistic")
    def write(session: Session, edit: Edit) -> None:
        _think_and_change(edit, session.get_one(WikiPage, edit.page))

    return write


def lease(sessions: Sessions) -> Write:
    def write(edit: Edit) -> None:
        mine = uuid4()  # of all attempts: none of them waits for the lease of the one before
        for attempt in _UNTIL_FREE:
            with attempt:
                _under_lease(sessions, edit, mine)

    return write


def _under_lease(sessions: Sessions, edit: Edit, mine: UUID) -> None:
    with sessions.begin() as session:
        lease = leases.acquire(session, (LeasedWikiPage, edit.page), _LEASED_FOR, proposed=mine)
    with sessions() as session:
        page = session.get_one(LeasedWikiPage, edit.page)
    _think_and_change(edit, page)
    with optilock.unit_of_work(sessions, parts=[leases.Under(lease)]) as session:
        session.add(page)
        session.flush()
        leases.release(session, lease)


def pessimistic(sessions: Sessions) -> Write:
    @optilock.unit_of_work(sessions, attempts=_ATTEMPTS, strategy="optimistic")
    def write(session: Session, edit: Edit) -> None:
        page = session.get_one(PlainWikiPage, edit.page)
        optilock.lock(page)
        _think_and_change(edit, page)

    return write


def serializable_retry(sessions: Sessions) -> Write:
    @optilock.unit_of_work(sessions, attempts=_ATTEMPTS, isolation=optilock.Isolation.SERIALIZABLE)
    def write(session: Session, edit: Edit) -> None:
        _think_and_change(edit, session.get_one(PlainWikiPage, edit.page))

    return write


def _think_and_change(edit: Edit, page: Page) -> None:
    time.sleep(edit.pause)
    apply(edit, page)


LAST_WRITER_WINS = Strategy("last writer wins", PlainWikiPage, last_writer_wins)
STRATEGIES = (
    LAST_WRITER_WINS,
    Strategy("optimistic, retry", WikiPage, optimistic_retry),
    Strategy("optimistic, merge", WikiPage, optimistic_merge),
    Strategy("lease", LeasedWikiPage, lease),
    Strategy("pessimistic", PlainWikiPage, pessimistic),
    Strategy("serializable, retry", PlainWikiPage, serializable_retry),
)
