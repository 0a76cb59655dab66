"""The guarded flush: rows are kept back, sent together, judged, and their conflicts settled.

The files, in the order of a flush:

==================  ================================================================================
records             the running flush, and the rows that missed: what the others fill in and read
installation        a session is watched: replaces the methods of its class
methods             the methods that replace them
session_events      what the session's transactions begin, commit and roll back
release             checks the installed SQLAlchemy, the first time in a process
self_test           tries all of it for that
flush               the whole flush: before, changed, write, after
own_flush           the conditions to do without SQLAlchemy's flush, and the plan of a class
refusals            raises for rows that may not be written; judges deleted rows
dependents          the dependents of a row (joined tables, children, link rows), and its parents
no_bump             raises for rows whose version cannot be kept
promises            rows whose version was promised, and their checks
local_locks         promised rows where locks do not reach all writers: written as they are
connection          gets each statement, from SQLAlchemy, the guard, or a listener
route               chooses how the unit of work's statements are sent
compared_values     rows whose values are compared
sums                rows that are added to, in any version
batch               keeps rows back, sends them, the last ones with COMMIT, and reads the missed
settlement          settles every conflict
decisions           asks the resolvers
corrections         writes their decisions, or keeps the edits of refused rows
ended_transactions  finds the rows that moved where the database ended the transaction
running_attempts    the running attempt of a retry, and the rows that it and earlier ones wanted
repeats             values that a later attempt wants again over an unseen change
stored_work         the work that an attempt has stored: then no later one follows
outside_edits       edits from before a unit, put back before its next attempt
own_statements      rows that a statement of the transaction has moved
written_rows        rows for the event after COMMIT
==================  ================================================================================
"""
