"""UPDATE, DELETE and INSERT statements that a session sends itself, without a flush.

==================  ================================================================================
execute             receives each statement of a watched session, and chooses the module for it
call                one such ``session.execute()``: finds the rows of its statement
by_criteria         ``update(Model).where(...)``
by_key              rows by primary key
legacy_bulk         the same by ``Session.bulk_update_mappings()`` and others
by_table            ``update(table)``, also on the session's connection
demand_checks       compares the rows with the session's demands
version             moves or keeps their versions
given_versions      replaces versions that a program gives
rollback_effects    records what a rollback takes back
scopes              finds the scopes of the rows
written_rows        notes the rows for the event after COMMIT
refusals            raises for statements that would leave a version as it was, that no demand can
                    be compared with, or that a strict session refuses
sql_text            the tables that a SQL text writes
comparisons         the columns that a WHERE compares with values
silent_cascades     refuses deletes that change guarded rows without a trigger
requests            refuses writes that ignore the condition of a request
bulk                many rows by key in any session, with a report of each
unguarded           finds statements that bypass the version, in any session
unguarded_warnings  warns of them
==================  ================================================================================

:mod:`optilock.entities` writes one row by its key.
"""
