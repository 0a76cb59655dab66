"""``optilock demo``: several people edit the same few wiki pages, under six strategies.

The pages are the reference topics that every Python carries (``pydoc_data.topics``). Editor
*processes* read a page, pause as people do, and write it back. The same edits run under each
strategy; afterwards every edit is looked for in the stored pages::

    optilock demo
    optilock demo --url postgresql+psycopg://user:secret@localhost/test
    optilock demo --editors 8 --edits 50 --json

From Python::

    from optilock.demo.run import Options, run

    outcomes = run(Options(editors=4, edits=25))

Which file is about what:

============  ==========================================================================
wiki          the pages, their tables with and without a version, and the database
edits         what one edit changes, the plan of all, and which are lost (values only)
strategies    six ways to write the same edit
editors       the editor processes, and the conflicts and retries that they count
run           all editors under all strategies, one after the other
report        the bar, the table, the JSON, the verdict, and one conflict, step by step
command       the command line
============  ==========================================================================

Only tables whose names begin with ``optilock_demo_`` are made, and they are dropped at the end.
"""
