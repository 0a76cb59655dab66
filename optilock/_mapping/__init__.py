"""The changes of ``Versioned`` to a class while SQLAlchemy maps it.

===============  ===================================================================================
checks           refuses a class that cannot carry a version, and options that do not fit it
attribute        keeps the version loaded, and prevents assigning it
moves            moves the version
triggers         the triggers of a ``RowVersion`` and of a guard, made with their tables
first_versions   the default of a version in CREATE TABLE
original_values  values as they were read: for ``CompareValues``, and copies of mutable ones
tables           tables and the versions that they carry
scopes           the scopes of a class
scope_triggers   the triggers that move scopes for other programs
change_notices   the triggers that notify of changed rows
===============  ===================================================================================
"""
