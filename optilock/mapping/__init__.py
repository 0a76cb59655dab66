"""What ``Versioned`` does to a class while it is being mapped, and what the mapping then knows.

:mod:`facts` is the record of what is known of a mapper. :mod:`checks` refuses what cannot carry a
version. :mod:`attribute` keeps the version loaded and unassigned. :mod:`makers` moves it,
:mod:`moves` looks whether it really moves, and :mod:`triggers` moves it in the database.
:mod:`compared` is the other way, without a version, and :mod:`originals` keeps what was read of
values that are changed in place. :mod:`columns` and :mod:`tables` are the words for attributes and
tables; :mod:`one_class` knows of tables with two classes, and :mod:`kinds` which of all that there
is at all.
"""
