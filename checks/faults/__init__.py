"""The n-th call of the driver fails, for every n, and nothing may be half written or stored twice.

::

    python -m checks.faults                       # 400 trials, SQLite and PostgreSQL
    python -m checks.faults --trials 2000 --engine sqlite
    python -m checks.faults --engine psycopg-async --work merge --kind lost --seed 7

A trial is a piece of work (:mod:`works`) on a new engine with one connection, of which one call
fails: connect, cursor, execute, executemany, a fetch, commit or rollback. First it is counted how
many calls the work makes; then one of them is chosen, with what happens to it (:mod:`drivers`):

=========  =========================================================================================
lost       the connection is lost, before the call was sent, or after: the answer is lost. On SQLite
           it is an error of the disk
full       the disk is full: an answer of the database, and the transaction is over
timeout    a statement has taken too long; on SQLite the file is locked
interrupt  Ctrl-C, before or after, where no event loop runs
cancel     the task is cancelled, before or after, where one does
=========  =========================================================================================

The work runs under ``retry`` or ``unit_of_work``, as in a program. Afterwards :mod:`trials` asks:
is all of it stored or nothing, and once; was the outcome what was raised; is it the first error,
and of the type that is documented; can the same engine do the same work again; is the pool whole.
"""
