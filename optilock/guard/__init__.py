"""The guarded flush: watching sessions, holding writes, judging rows, settling conflicts.

The files in the order of a flush, with :mod:`records` of it and of the rows that it missed:

*begin*
    :mod:`watching` wraps the session class; :mod:`connection` lets the session's connections answer
    for the flush.
*refused at once*
    :mod:`refusals`: rows that nobody has read, connections in AUTOCOMMIT mode, and two classes
    over one table; rows under :mod:`no_bump` whose version cannot be kept.
*judged before anything is sent*
    :mod:`deletes` with :mod:`dependents`, and rows under :mod:`promises`.
*each statement*
    :mod:`route` decides which way it goes. Special ways: rows of which something else
    :mod:`compares`, :mod:`links`, and :mod:`listener_updates`. :mod:`listeners` are told when the
    row was written.
*sent together*
    :mod:`pipeline` holds rows, sends them, and reads those that missed.
*the end*
    :mod:`settle`: :mod:`decide` asks the resolvers, :mod:`corrections` are written; or the
    :mod:`edits` of refused rows are kept. Where the database has :mod:`ended` the transaction,
    perhaps at COMMIT, the rows that moved are found.

Beside the flush: :mod:`mapped_classes`, also those with only a ``version_id_col``, come with their
versions.
"""

from optilock.guard.ended import capture, clear, conflict_after_rollback
from optilock.guard.promises import check_before_commit
from optilock.guard.watching import watch
from optilock.session.watched import is_watched, options

__all__ = [
    "capture",
    "check_before_commit",
    "clear",
    "conflict_after_rollback",
    "is_watched",
    "options",
    "watch",
]
