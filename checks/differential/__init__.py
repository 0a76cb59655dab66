"""Random programs of one writer: a watched session means to them what a plain one means.

::

    python -m checks.differential                                  # some hundred seeds on SQLite
    python -m checks.differential --seeds 3000 --engine postgresql
    python -m checks.differential --first 1234 --seeds 1 --shrink  # one of them again, in short

*the mappings*
    :mod:`mappings` makes classes by chance, twice: once for plain sessions, once for watched ones.
    Columns under two attributes, other keys than the table's, columns that are no attributes,
    values that Python or the database makes, synonyms, composites, comparators that raise.
*the programs*
    :mod:`programs` makes a list of :mod:`steps` by chance, and runs it: edits, flushes,
    savepoints, reads with and without locks, pickles, listeners that come and go, errors in the
    middle.
*the oracle*
    SQLAlchemy itself. After each step both sessions must be in the same state, with the same
    objects, which hold the same; must have called the same listeners in the same order, and warned
    of the same; and have raised the same error. At the end both have stored the same rows.
    ``WANTED`` in :mod:`differences` names what is different by intention, and why.
"""
