"""The last writes of a transaction may be sent together with its end.

Who has asked for it has put an :class:`~optilock.watched.session.watched.Ending` on the session's
record, and says when the last flush begins: inside of ``session.commit()``. The guard then keeps a
single row back, too, and hands over at the end of the flush what is still held. What has been sent
before that, or is to be settled first, makes the flush one like any other.
"""

from __future__ import annotations

from optilock.dialects import database_of
from optilock.undocumented.connections import has_commit_listeners
from optilock.undocumented.flushes import nested_transaction
from optilock.watched.guard.batch import missed_of
from optilock.watched.guard.commuting import LastSum, refused_sums
from optilock.watched.guard.promises import hold_by_locks
from optilock.watched.guard.records import Flush
from optilock.watched.session.watched import Watched


def is_last(flush: Flush) -> bool:
    """May what this flush holds go with COMMIT?"""
    known = flush.known
    return known.ending is not None and known.ending_now and len(known.connections) == 1


def send_last(flush: Flush) -> bool:
    """Send what is held with COMMIT; False: it is still to be sent, and then to be committed."""
    known, ending = flush.known, flush.known.ending
    if ending is None or not _is_all(flush, known):
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
    known.ending_now = False
    locked = all(map(known.has_locked, together))
    before = len(known.sent)
    known.sent.extend(write for writes in together for write in writes)
    del flush.waiting[connection]
    database = database_of(connection.dialect)
    if last is None:
        missed = ending.send(connection, together, database, locked=locked)
    else:
        with refused_sums(flush, together[0]):
            missed = ending.send(connection, together, database, last.alone)
    if locked and missed != []:  # a trigger, say: the transaction may have begun anew
        known.locked = None
    if missed is None:
        flush.waiting[connection] = held
        del known.sent[before:]
        return False
    if missed:
        missed_of(flush, connection, missed, sent=len(known.sent) - before)
    elif last is not None:
        last.moves_on()
    return True


def _is_all(flush: Flush, known: Watched) -> bool:
    """Does nothing come after it but COMMIT?"""
    return (
        is_last(flush)
        and len(flush.waiting) == 1
        and not (flush.misses or flush.skipped or flush.gone_links or known.announced)
        # A listener of before_flush may make some, which are looked at afterwards.
        and hold_by_locks(flush.session)
        and nested_transaction(flush.session) is None
    )
