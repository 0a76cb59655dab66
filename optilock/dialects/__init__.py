"""Every difference between databases; features ask :func:`database_of`.

A database (:class:`Database`) lists the classes of its features: each has the answers for a
database that optilock does not know. These files have one such class:

================  ==================================================================================
locks             rows are locked, and stay as they are
waits             how long another transaction's lock is waited for
keys              statements with the keys of rows
forms             the form in which many rows are written at once
one_row           statements that insert or change one row by its key
values            the form in which a column keeps a value, names and texts, SQL functions
isolation         how a transaction begins at a level, and what it meets there
ends              what ends a transaction before its COMMIT
trips             BEGIN and COMMIT that go with other statements
servers           servers that write the same rows, and their settings
watching          connections that wait for a lock, as tests ask for them
commit_tokens     the rows by which a unit finds out whether it is stored
scope_rows        the rows with the versions of scopes
queue_sql         the statements of a queue; a folder, with a file for each use of messages
tables            what reflection and migrations need beside SQLAlchemy and Alembic
catalogue         the columns, keys and weaknesses of tables, read for all of them together
scope_triggers    the triggers that move scopes for other programs
change_notices    the triggers that notify of changed rows
migrations        the triggers that versions depend on, and how a table in use gets a version
causes            the meaning of an error's codes
refusals          what a database refuses, by the same codes
================  ==================================================================================

An engine with more than codes has a folder: ``postgresql``, ``mariadb``, ``sqlite``. Its
``database`` lists the classes that answer differently, each in the file of its feature's name; all
its triggers and roll-outs are in ``migrations``. These files are the same for every engine:

================  ==================================================================================
base              the list of the features, and the class of engines known by their codes
feature           the base of the features' classes
registry          the databases that are known; each is imported when it is met
rows              rows found, locked, compared and written by their keys
at_once           one row locked or written without a wait
quoting           comments, literals and quoted names in SQL text
connections       notes on a connection: statements to undo it with, and the error that lost it
transaction_ends  transactions that end before their COMMIT, which is then refused
residue           what a statement leaves behind in its transaction
transient         errors after which another run may succeed
engines           an engine from a URL, and work done on a sync or an async engine
commands          the engine of a command's --url, and the exit codes of commands
known_by_codes    engines that are known by their error codes alone
================  ==================================================================================
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
