"""The guarded flush: watching sessions, holding writes, judging rows, settling conflicts.

The files in the order of a flush:

*begin*
    :mod:`watching` wraps the session class, :mod:`counting` asks for row counts. :mod:`flush`
    is one flush; :mod:`arming` covers its connections.
*refused at once*
    :mod:`unread` and :mod:`unversioned` rows, the blocks of :mod:`no_bump` where :mod:`still`
    cannot be kept; connections in :mod:`autocommit` mode, and two classes over one table
    (:mod:`one_class`).
*judged before anything is sent*
    :mod:`before`: deletes with :mod:`dependents`, and :mod:`check_promises`: rows under
    promises. :mod:`look` locks and compares.
*each statement*
    :mod:`routing` decides; :mod:`shapes`: what it is; :mod:`answers`: what
    SQLAlchemy is told; :mod:`onupdate` fills in. Special ways: :mod:`apart` (joined tables),
    :mod:`ignored` columns, compared :mod:`values`, :mod:`links`, a listener's own UPDATE
    :mod:`by_hand`. :mod:`listeners` are told when the row was written.
*sent together*
    :mod:`batch`, in the form that ``optilock/dialects`` knows.
*rows that missed*
    :mod:`misses` reads them, :mod:`missed` is one of them; those on which others depend are settled
    at once: :mod:`restore`, :mod:`children` of :mod:`doomed` parents.
*the end*
    :mod:`settle`: :mod:`decide` asks the resolvers, :mod:`corrections` are written,
    :mod:`refresh` makes the objects equal to them, and :mod:`kept_orphans` go back to their
    parents; or :mod:`keep` makes them dirty again, and the error has SQLAlchemy's :mod:`words`.
    :mod:`listeners` hear of what was written. :mod:`aftermath`: the database ended the transaction,
    perhaps at COMMIT (:mod:`commits`).

Beside the flush: :mod:`orphans`, :mod:`merging` with :mod:`members`, :mod:`locked_reads` and the
:mod:`later_reads` of what was locked, :mod:`statements` (also those on the session's connection,
:mod:`following`), :mod:`undone`, objects that left the session, and :mod:`natives`, classes with
only a ``version_id_col``.
"""

from optilock.guard.aftermath import capture, clear, conflict_after_rollback
from optilock.guard.check_promises import check_before_commit
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
