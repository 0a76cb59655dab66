"""Random histories of two or three writers, judged by a model of what each of them had read.

::

    python -m tests.history                                    # a few hundred seeds on SQLite
    python -m tests.history --seeds 2000 --engines sqlite-wal postgresql mariadb
    python -m tests.history --first 1234 --seeds 1 --engines mariadb --shrink   # one of them again

Nothing here is left to chance but the program: a seed makes a history (:mod:`histories`), which is
a list of steps, and the steps of all writers run one after the other in one thread
(:mod:`runner`). A writer that would have to wait for a lock is told so at once by the database;
that is a legal end of its transaction.

*the judge*
    :mod:`model` is plain Python without SQLAlchemy and without optilock. It knows each committed
    revision of each row, what every author held when it made an edit, and what every transaction
    should have stored. Every value that is written is unique, so a value says who wrote it; of the
    columns that authors add to, it knows what the sum must be.
*what authors do*
    :mod:`operations`, one short function for each, which says what the program does and tells the
    model of it. What an author has *read* is not predicted but seen: after each step
    :mod:`authors` looks at what the objects hold, and a column that holds another Python object
    than before has been read.
*on what*
    :mod:`mappings`: rows, rows that authors add to, aggregates, joined tables, children and links;
    with each token.
*a finding*
    :mod:`shrink` drops steps and settings as long as the history still fails in the same way, and
    prints it as a short program.
"""
