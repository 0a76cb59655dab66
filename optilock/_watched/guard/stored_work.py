"""The work that an attempt of a retry has stored before it failed.

::

    @retry
    def transfer():
        with unit_of_work(SessionLocal) as session:    # stored
            session.get_one(Account, 1).balance -= 10
        with unit_of_work(SessionLocal) as session:    # a conflict: a next attempt takes twice
            session.get_one(Account, 2).balance += 10

The COMMIT of a watched session itself notes what it has stored, with the attempt of its context: in
every form of unit, thread or task. Messages that commit by themselves are noted by their queue.
Such an attempt is not run again. These pass:

* a unit with a key (``exactly_once=key``), whose work is stored once;
* a transaction that has only read;
* a transaction that began inside of the one that failed, and wrote the rows on which that one has
  conflicted: it is the other writer of the conflict, as in a test.

Leases and share modes are not work. Sessions that are not watched, statements of the driver's own
cursor, and an INSERT in a CTE of a SELECT are not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy.orm import Mapper

from optilock._mapped import Place, facts, place_of
from optilock._watched.guard.running_attempts import RunningAttempt, attempt_here
from optilock._watched.session.record import SessionRecord
from optilock._watched.session.values import SentStatement
from optilock.conditions.write import Write
from optilock.errors import ConcurrencyError
from optilock.tables.names import scopes

#: So many transactions of an attempt are known in detail, and so many names are in a note.
_MOST, _MOST_NAMES = 100, 3


class StoredWork(NamedTuple):
    """The writes of one committed transaction."""

    #: The number of its transaction: later ones have higher numbers.
    number: int
    #: Its author, for the note.
    name: str
    sent: Sequence[Write] = ()
    stated: Sequence[SentStatement] = ()
    #: The rows without a version that it has compared and written.
    compared: frozenset[Place] = frozenset()

    def rows(self) -> Iterator[Place]:
        """Yield the rows of its flushes."""
        yield from self.compared
        for write in self.sent:
            yield from write.places()

    def names(self) -> Iterator[str]:
        """Yield what it has written, as far as that is known."""
        for root, identity in dict.fromkeys(self.rows()):
            yield f"{root.class_.__name__} {identity!r}"
        yield from sorted({one.mapper.class_.__name__ for one in self.stated})

    def has_written(self, rows: frozenset[Place], classes: frozenset[Mapper[Any]]) -> bool:
        """Return whether it wrote one of the rows, or sent a statement of one of the classes."""
        if any(one.mapper in classes for one in self.stated):
            return True
        return bool(rows) and not rows.isdisjoint(self.rows())


def note_commit(record: SessionRecord) -> None:
    """Note the work that a watched session has stored, with the attempt that runs here."""
    attempt, owner = attempt_here.get(), record.owner
    if attempt is None or record.goes_on() or (owner is not None and owner.has_key):
        return
    if len(attempt.stored_work) > _MOST:
        return
    name = "a session"
    if owner is not None:
        name = "a unit of work" if owner.name is None else f"the unit {owner.name!r}"
    compared = frozenset(place_of(state) for state in record.compared if state.key is not None)
    work = StoredWork(record.number, name, record.sent, record.stated, compared)
    attempt.stored_work.append(work)


def note_rollback(record: SessionRecord) -> None:
    """Note that the transaction of a session is rolled back; in AUTOCOMMIT mode it is stored."""
    attempt = attempt_here.get()
    if attempt is None:
        return
    if record.autocommitting and record.has_work:
        note_commit(record)
    if sys.exception() is not None:
        attempt.failed_in(record.number)


def note_sent(name: str) -> None:
    """Note work that has committed by itself, with the attempt that runs here."""
    attempt = attempt_here.get()
    if attempt is not None and len(attempt.stored_work) <= _MOST:
        attempt.stored_work.append(StoredWork(0, name))


def stored_by(attempt: RunningAttempt, error: BaseException) -> str | None:
    """Return the note on the work that another attempt would store again, or ``None``."""
    known: list[StoredWork] = attempt.stored_work
    if not known:
        return None
    rows, classes = _rows_of(error)
    entries = error.entries if isinstance(error, ConcurrencyError) else ()
    of_a_list = any(one.table == scopes.name for one in entries)  # it has no rows to compare
    since = attempt.failed_since
    work = [
        one
        for one in known
        if since is None or one.number < since or not (of_a_list or one.has_written(rows, classes))
    ]
    return _note(work) if work else None


def _rows_of(error: BaseException) -> tuple[frozenset[Place], frozenset[Mapper[Any]]]:
    """Return the rows on which the attempt has conflicted, and their classes."""
    entries = error.entries if isinstance(error, ConcurrencyError) else ()
    roots = [(facts(one.model.__mapper__).root, one.identity) for one in entries]
    return frozenset(roots), frozenset(root for root, _ in roots)


def _note(work: Iterable[StoredWork]) -> str:
    authors: dict[str, None] = {}
    names: dict[str, None] = {}
    for one in work:
        authors[one.name] = None
        names.update(dict.fromkeys(islice(one.names(), _MOST_NAMES + 1)))
    what = _listed(authors) + (f" ({_listed(names)})" if names else "")
    return (
        f"optilock: not run again, because this attempt had stored work before it failed: {what}."
        " Do all of it in one unit of work; or give each unit that is stored separately a key"
        " (exactly_once=key); or write idempotent=True for the retry, if that work may be stored"
        " again"
    )


def _listed(names: Iterable[str]) -> str:
    some = list(names)
    more = ["and others"] if len(some) > _MOST_NAMES else []
    return ", ".join(some[:_MOST_NAMES] + more)
