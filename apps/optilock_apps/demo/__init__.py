"""``optilock demo``: several people edit the same few wiki pages, under six strategies.

The pages are the reference topics that every Python carries (``pydoc_data.topics``). Editor
*processes* read a page, pause as people do, and write it back. The same edits run under each
strategy; afterwards every edit is looked for in the stored pages::

    optilock demo
    optilock demo --url postgresql+psycopg://user:secret@localhost/test
    optilock demo --editors 8 --edits 50 --json

From Python::

    from optilock_apps.demo.run import Options, run

    outcomes = run(Options(editors=4, edits=25))

The files:

============  ==========================================================================
edits         what one edit changes, the plan of all, which are lost; pages and tables
strategies    six ways to write the same edit
run           all editors under all strategies, and the processes of the editors
report        the bar, the table, the JSON, the verdict, and one conflict, step by step
command       the command line
============  ==========================================================================

Only tables whose names begin with ``optilock_demo_`` are made, and they are dropped at the end.
"""
