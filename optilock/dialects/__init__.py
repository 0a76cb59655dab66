"""Every difference between databases; features ask :func:`database_of`.

==============  ====================================================================================
base            all questions, with the answers for a database that nobody knows
causes          what the codes of an error mean
rows            rows found, locked, judged and written by their keys
keys            several keys in one WHERE
counted         the rows of one ``executemany``, each with its count
messages        the statements of a queue; a folder, with a file for each thing done to messages
catalogue       what the database has of tables, read for all of them together
weaknesses      what a database says of itself that makes the check weaker
migrations      the triggers that versions depend on, and how a table that is alive gets a version
locks           rows are locked; waiting: how long somebody else's lock is waited for
values          what a column keeps of a value
connections     what is noted on a connection: what to undo, and how its transaction was ended
plain           does a statement only read? switch: from autocommit into a transaction, once
transient       is an error worth another run?
quoting         names and texts in SQL that is sent as it is
known_by_codes  engines of which only the codes of their errors are known
==============  ====================================================================================

An engine with more than codes has a folder: ``postgresql``, ``mariadb``, ``sqlite``. There are its
answers (``database``), its way to write many rows, and what a migration does there.
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
