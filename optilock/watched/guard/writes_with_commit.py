"""The last writes of a transaction go with COMMIT, if nothing comes between them.

A unit that wants this (:mod:`optilock.unit.round_trips`) has put an
:class:`~optilock.watched.session.record.Ending` on the session's record, and marks the last flush,
which runs inside of ``session.commit()``. The guard then defers a single row, too
(:mod:`~optilock.watched.guard.batch`), and at the end of the flush hands all deferred rows to the
Ending. If the flush has sent anything before, or has conflicts to settle, it is a usual flush. The
Endings are :class:`optilock.dialects.switch.OneStatement`, and one of PostgreSQL
(``dialects/postgresql/last_writes.py``).
"""

from __future__ import annotations

from sqlalchemy import Connection

from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.undocumented.connections import has_commit_listeners
from optilock.undocumented.flushes import nested_transaction
from optilock.watched.guard.batch import settle_missed
from optilock.watched.guard.promises import hold_by_locks
from optilock.watched.guard.records import Flush
from optilock.watched.guard.sums import LastSum, refused_sums
from optilock.watched.session.record import Ending


def may_go_with_commit(flush: Flush) -> bool:
    """Return whether the deferred rows of this flush may go with COMMIT."""
    record = flush.record
    return record.ending is not None and record.ending_now and len(record.connections) == 1


def send_with_commit(flush: Flush) -> bool:
    """Send the deferred rows with COMMIT; False if they are still to be sent, and committed."""
    ending = flush.record.ending
    if ending is None or not _only_commit_follows(flush):
        return False
    ((connection, held),) = flush.waiting.items()
    together = [list(writes.values()) for writes in held.values()]
    if not all(writes[0].shape.exact for writes in together):
        return False
    if has_commit_listeners(connection):  # they are called before it
        return False
    last = None
    if flush.adding is not None and len(together) == 1 and len(together[0]) == 1:
        last = LastSum.of(flush, connection, together[0][0])
        if last is None:
            return False
    return _hand_over(flush, ending, connection, together, last)


def _hand_over(
    flush: Flush,
    ending: Ending,
    connection: Connection,
    together: list[list[Write]],
    last: LastSum | None,
) -> bool:
    record = flush.record
    record.begin_last_writes()
    locked = all(map(record.has_locked, together))
    before = len(record.sent)
    record.sent.extend(write for writes in together for write in writes)
    held = flush.waiting.pop(connection)
    database = database_of(connection.dialect)
    if last is None:
        missed = ending.send(connection, together, database, locked=locked)
    else:
        with refused_sums(flush, together[0]):
            missed = ending.send(connection, together, database, last.alone)
    if locked and missed != []:  # of a trigger, perhaps: another transaction may have begun
        record.forget_locked()
    if missed is None:
        flush.waiting[connection] = held
        del record.sent[before:]
        return False
    if missed:
        settle_missed(flush, connection, missed, sent=len(record.sent) - before)
    elif last is not None:
        last.moves_on()
    return True


def _only_commit_follows(flush: Flush) -> bool:
    """Return whether the deferred rows are all that is left before COMMIT."""
    return (
        may_go_with_commit(flush)
        and len(flush.waiting) == 1
        and not (flush.misses or flush.skipped or flush.gone_links or flush.record.announced)
        # A listener of before_flush may make promises, which are checked afterwards.
        and hold_by_locks(flush.session)
        and nested_transaction(flush.session) is None
    )
