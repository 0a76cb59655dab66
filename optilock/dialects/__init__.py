"""Every difference between databases; features ask :func:`database_of`.

================  ==================================================================================
base              all questions, with the answers for a database that optilock does not know
registry          the databases that are known; each is imported when it is met
causes            the meaning of an error's codes
rows              rows found, locked, compared and written by their keys
queue_sql         the statements of a queue; a folder, with a file for each use of messages
commit_tokens     the rows by which a unit finds out whether it is stored
scope_rows        the rows with the versions of scopes
scope_triggers    the triggers that move scopes for other programs
catalogue         the columns, keys and weaknesses of tables, read for all of them together
migrations        the triggers that versions depend on, and how a table in use gets a version
locks             rows are locked; how long another transaction's lock is waited for
waits             connections that wait for a lock, and how much a statement locks
values            rows by their keys, the form in which a column keeps a value, names and texts
quoting           comments, literals and quoted names in SQL text
connections       notes on a connection: statements to undo it with, and the error that lost it
transaction_ends  transactions that end before their COMMIT, which is then refused
residue           what a statement leaves behind in its transaction
transient         errors after which another run may succeed
engines           an engine from a URL, and work done on a sync or an async engine
commands          the engine of a command's --url, and the exit codes of commands
known_by_codes    engines that are known by their error codes alone
================  ==================================================================================

An engine with more than codes has a folder: ``postgresql``, ``mariadb``, ``sqlite``. Its
answers are in ``database``, next to the forms for many rows and the statements of migrations.
"""

from optilock.dialects.base import Database, KnownByCodes
from optilock.dialects.causes import Cause
from optilock.dialects.registry import database_of, database_of_error, register, unwrapped_errors

__all__ = [
    "Cause",
    "Database",
    "KnownByCodes",
    "database_of",
    "database_of_error",
    "register",
    "unwrapped_errors",
]
