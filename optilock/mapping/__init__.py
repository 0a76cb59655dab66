"""What ``Versioned`` does to a class while SQLAlchemy maps it.

:mod:`checks` refuses a class that cannot carry a version. :mod:`attribute` keeps the version loaded
and lets nobody assign it. :mod:`moves` moves it, and :mod:`triggers` do so in the database.
:mod:`compared` knows which values of an object are compared, in a class with ``CompareValues``.
:mod:`originals` keeps what was read of values that are changed in place. :mod:`tables` says which
tables carry a version, and :mod:`commuting` which columns writers add to.
"""
