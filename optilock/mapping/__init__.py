"""What ``Versioned`` does to a class while it is being mapped.

:mod:`checks` refuses what cannot carry a version. :mod:`attribute` keeps the version loaded and
unassigned, :mod:`moves` moves it, and :mod:`triggers` do so in the database. :mod:`compared` is the
other way, without a version, and :mod:`originals` keeps what was read of values that are changed in
place. :mod:`tables` says which tables carry a version.
"""
