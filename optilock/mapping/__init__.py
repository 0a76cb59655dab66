"""The changes of ``Versioned`` to a class while SQLAlchemy maps it.

:mod:`checks` refuses a class that cannot carry a version, and options that do not fit it.
:mod:`attribute` keeps the version loaded and prevents assigning it. :mod:`moves` moves it, and
:mod:`triggers` do so in the database, where :mod:`first_versions` gives the column a default.
:mod:`original_values` keeps the values of an object as they were read: those that ``CompareValues``
compares, and copies of mutable ones. :mod:`tables` maps tables to the versions they carry.
:mod:`scopes` has the scopes of a class, and :mod:`scope_triggers` the triggers that move them for
other programs.
"""
