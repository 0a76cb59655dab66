"""SQLite.

==============  ====================================================================================
database        the list of the classes that answer differently
locks           rows are locked, and stay as they are
waits           how long another transaction's lock is waited for
keys            statements with the keys of rows
forms           the form in which many rows are written at once
one_row         statements that insert or change one row by its key
values          the form in which a column keeps a value, and SQL functions
isolation       how a transaction begins at a level, and what it meets there
ends            what ends a transaction before its COMMIT
watching        connections that wait for a lock, as tests ask for them
queue_sql       the statements of a queue
tables          what reflection and migrations need
scope_triggers  the triggers that move scopes for other programs
migrations      the triggers of versions, how a table in use gets one, the catalogue
causes          the meaning of error codes
rows            the form for many rows
==============  ====================================================================================
"""

from optilock.dialects.sqlite.database import SQLite as SQLite
