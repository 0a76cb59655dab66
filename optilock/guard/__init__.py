"""The guarded flush: rows are kept back, sent together, judged, and their conflicts settled.

The files in the order of a flush. The :mod:`records` of it, and of the rows that missed, are what
the others fill in and read.

*the flush begins*
    :mod:`watching` wraps the session class. :mod:`connection` lets the session's connections answer
    for the flush.
*some rows are refused at once*
    :mod:`refusals` has the reasons: nobody has read the row, its connection is in AUTOCOMMIT mode,
    or two classes have one table. :mod:`no_bump` refuses rows whose version cannot be kept.
*some rows are judged before anything is sent*
    :mod:`deletes`, with their :mod:`dependents`, and rows under :mod:`promises`, which are written
    as they are where a lock is not enough (:mod:`certified`).
*the rows are handed over*
    SQLAlchemy plans which row goes when. Where nothing but columns of stored rows has changed there
    is nothing to plan, and the guard hands them over itself (:mod:`columns_only`).
*a statement is sent*
    :mod:`route` decides which way the statement goes. Some have a way of their own: rows whose
    values are compared (:mod:`compares`), rows that are added to (:mod:`commuting`), link rows
    (:mod:`dependents`), and what :mod:`listeners` of the application send. These hear of a row when
    it was written.
*the guard sends rows together*
    :mod:`pipeline` keeps rows back, sends them, and reads those that missed. The :mod:`last` ones
    of a transaction may go together with COMMIT.
*the flush ends*
    :mod:`settle` brings every conflict to its end: :mod:`decide` asks the resolvers,
    :mod:`corrections` are written, or :mod:`edits` of refused rows are kept. Where the database has
    :mod:`ended` the transaction, perhaps at COMMIT, the rows that moved are found. In a later
    attempt of a retry, values that :mod:`repeats` knows are looked at first.

Beside the flush, :mod:`mapped_classes` lets the version come with its row, also in classes that
have only a ``version_id_col``, and :mod:`releases` looks at the installed SQLAlchemy.
"""

from optilock.guard.ended import capture, conflict_after_rollback
from optilock.guard.promises import check_before_commit
from optilock.guard.watching import watch
from optilock.session.watched import is_watched, options

__all__ = [
    "capture",
    "check_before_commit",
    "conflict_after_rollback",
    "is_watched",
    "options",
    "watch",
]
