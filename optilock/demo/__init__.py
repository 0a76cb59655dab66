"""``optilock demo``: several people edit the same few wiki pages, under five strategies.

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
pages         the text, and whose it is
edits         what one edit changes, and the plan of all edits
losses        which edits are not in the stored pages (values only)
models        the two tables: with and without a version
databases     the database behind ``--url``, or a temporary SQLite file
strategies    five ways to write the same edit
tally         conflicts and retries, counted from ``optilock.events``
editors       what an editor process does
run           all editors under all strategies, one after the other
report        the table, the JSON, the verdict
story         one conflict, told step by step
command       the command line
============  ==========================================================================

Only tables whose names begin with ``optilock_demo_`` are made, and they are dropped at the end.
"""
