"""The guarded flush: rows are kept back, sent together, judged, and their conflicts settled.

The files in the order of a flush. :mod:`records` holds what the others fill in and read: the
running flush, and the rows that missed.

*the flush begins*
    :mod:`watching` wraps the session class. :mod:`connection` replaces ``execute`` on the session's
    connections for the length of the flush.
*some rows are refused at once*
    :mod:`refusals` raises for rows that were never read, for connections in AUTOCOMMIT mode, and
    for two classes over one table. :mod:`no_bump` raises for rows whose version cannot be kept.
*some rows are judged before anything is sent*
    :mod:`deletes`, with their :mod:`dependents`, and rows under :mod:`promises`, which are written
    as they are where a lock is not enough.
*the rows are handed over*
    SQLAlchemy plans the order of the rows. Where nothing but columns of stored rows has changed,
    no plan is needed, and the guard hands the rows over itself (:mod:`columns_only`).
*a statement is sent*
    :mod:`route` chooses how the statement is sent. Some need a treatment of their own: rows whose
    values are compared (:mod:`compares`), rows that are added to (:mod:`commuting`), link rows
    (:mod:`dependents`), and statements of the application's :mod:`listeners`, which are called for
    a row once it was written.
*the guard sends rows together*
    :mod:`batch` keeps rows back, sends them, and reads those that missed.
    :mod:`writes_with_commit` sends the last ones of a transaction together with COMMIT.
*the flush ends*
    :mod:`settle` settles every conflict: :mod:`decide` asks the resolvers, and :mod:`corrections`
    are written, or the edits of refused rows are kept. Where the database has :mod:`ended` the
    transaction, perhaps at COMMIT, the rows that moved are found. In a later attempt of a retry,
    values that :mod:`repeats` has recorded are compared first.

Next to the flush, :mod:`releases` checks the installed SQLAlchemy.
"""

from optilock.watched.guard.ended import capture, conflict_after_rollback
from optilock.watched.guard.promises import check_before_commit
from optilock.watched.guard.watching import watch
from optilock.watched.session.watched import is_watched, options

__all__ = [
    "capture",
    "check_before_commit",
    "conflict_after_rollback",
    "is_watched",
    "options",
    "watch",
]
