"""Random histories of a few writers, judged by a model, and of many clients, judged by a checker.

::

    python -m checks.history                                    # a few hundred seeds on SQLite
    python -m checks.history --seeds 2000 --engines sqlite-wal postgresql mariadb
    python -m checks.history --first 1234 --seeds 1 --engines mariadb --shrink   # one of them again
    python -m checks.history --clients 16 --seconds 60 --faults # many clients at once, with faults
    python -m checks.history --clients 16 --soak                # a server ends every 30 seconds

**Seeds.** Nothing here is left to chance but the program: a seed makes a history
(:mod:`histories`), which is a list of steps, and the steps of all writers run one after the other
in one thread (:mod:`runner`). A writer that would have to wait for a lock is told so at once by the
database; that is a legal end of its transaction.

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

**Clients.** With ``--clients`` many threads or tasks append to lists for some seconds, and nothing
but the seed of their plans is decided beforehand.

*what they do*
    :mod:`appends`: units of work that read lists and append to them; what they have read, and how
    they ended, goes to a file.
*faults*
    :mod:`load` arms those of :class:`optilock.testing.Faults`, one after the other; :mod:`soak`
    ends the server.
*the judge*
    :mod:`cycles` finds lost and doubled appends, and cycles of transactions that cannot have run
    one after the other, in the spirit of Elle.
"""
