"""The guarded flush: rows are kept back, sent together, judged, and their conflicts settled.

The files in the order of a flush. :mod:`records` holds what the others fill in and read: the
running flush, and the rows that missed.

*a session is watched*
    :mod:`installation` replaces :mod:`methods` of the session class. :mod:`session_events` records
    what the session's transactions begin, commit and roll back. The first time in a process,
    :mod:`release` checks the installed SQLAlchemy: :mod:`self_test` tries all of it.
*the flush begins*
    :mod:`flush` has the whole flush: before, changed, write, after. Where nothing but columns of
    stored rows has changed, the guard carries it out without SQLAlchemy's (:mod:`own_flush` has the
    conditions for that, and the plan of a class).
*some rows are refused, or judged, before anything is sent*
    :mod:`refusals` raises for rows that were never read, for connections in AUTOCOMMIT mode, and
    for two classes over one table; it judges deleted rows, with their :mod:`dependents`.
    :mod:`no_bump` raises for rows whose version cannot be kept. Rows under :mod:`promises` that
    come first are checked; where locks do not reach all writers (:mod:`local_locks`), they are
    written as they are at the end.
*a statement is sent*
    :mod:`connection` gets it, from SQLAlchemy, from the guard, or from a listener of the
    application. :mod:`route` chooses how the unit of work's are sent. Some need a treatment of
    their own: rows whose values are compared (:mod:`compared_values`), rows that are added to
    (:mod:`sums`), and link rows (:mod:`dependents`).
*the guard sends rows together*
    :mod:`batch` keeps rows back, sends them, the last ones of a transaction together with COMMIT,
    and reads those that missed.
*the flush ends*
    :mod:`settlement` settles every conflict: :mod:`decisions` asks the resolvers, and
    :mod:`corrections` are written, or the edits of refused rows are kept. Where the database ended
    the transaction, perhaps at COMMIT, :mod:`ended_transactions` finds the rows that moved. In a
    later one of :mod:`running_attempts`, values that :mod:`repeats` has recorded are compared
    first. An attempt that has committed anything (:mod:`stored_work`) has no later one, and
    :mod:`outside_edits` are put back before it. A row that a statement of the transaction has moved
    (:mod:`own_statements`) is no other transaction's.
    :mod:`written_rows` notes the rows for the event after COMMIT.
"""
