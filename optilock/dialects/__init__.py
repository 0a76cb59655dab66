"""Every difference between databases; features ask :func:`database_of`.

==============  ====================================================================================
base            all questions, with the answers for a database that optilock does not know
causes          the meaning of an error's codes
rows            rows found, locked, compared and written by their keys
keys            several keys in one WHERE
queue_sql       the statements of a queue; a folder, with a file for each use of messages
catalogue       the columns, keys and triggers that the database has, read for all tables together
weaknesses      settings of a database that make the check weaker
migrations      the triggers that versions depend on, and how a table in use gets a version
locks           rows are locked; how long another transaction's lock is waited for
values          the form in which a column keeps a value; names and texts in SQL
connections     notes on a connection: statements to undo it with, and how its transaction ended
switch          from autocommit into a transaction, once; the effects of a statement
transient       errors after which another run may succeed
engines         an engine from a URL, and work done on a sync or an async engine
known_by_codes  engines of which only the codes of their errors are known
==============  ====================================================================================

An engine with more than codes has a folder: ``postgresql``, ``mariadb``, ``sqlite``. Its
answers are in ``database``, next to the forms for many rows and the statements of migrations.
"""

# Importing an engine's file, or folder, makes it known.
from optilock.dialects import known_by_codes as known_by_codes
from optilock.dialects import mariadb as mariadb
from optilock.dialects import postgresql as postgresql
from optilock.dialects import sqlite as sqlite
from optilock.dialects.base import (
    Database,
    database_of,
    database_of_error,
    register,
    unwrapped,
)
from optilock.dialects.causes import Cause
from optilock.dialects.known_by_codes import KnownByCodes

__all__ = [
    "Cause",
    "Database",
    "KnownByCodes",
    "database_of",
    "database_of_error",
    "register",
    "unwrapped",
]
