"""What ``Versioned`` does to a class while it is being mapped.

:mod:`checks` refuses what cannot carry a version. :mod:`attribute` keeps the version loaded and
unassigned. :mod:`makers` moves it, :mod:`moves` looks whether it really moves, and :mod:`triggers`
moves it in the database. :mod:`compared` is the other way, without a version, and :mod:`originals`
keeps what was read of values that are changed in place. :mod:`tables` says which tables carry a
version, :mod:`one_class` which have two classes, and :mod:`kinds` which of all that there is at
all.
"""
