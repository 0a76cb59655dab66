"""All undocumented parts of SQLAlchemy that optilock uses, and nothing else.

============  ======================================================================================
mappers       mappings, their contents, and listeners to their rows; changes of an object
flushes       how a flush writes the rows of a class; sessions, transactions and their connections
statements    names, locks, joins and reads of statements and queries; names of older releases
connections   how they are made, and what they refuse; how dialects and types write SQL
names         names that a release may not have, for modules that need them at import
isolation     objects of the self-test, which the application's listeners do not notice
check         names that the self-test does not use, and functions of known releases
============  ======================================================================================

When a release of SQLAlchemy renames one of these, this is the folder to look at. The guarded flush
itself stands on events, and on the attributes that the unit of work reads of a result
(:mod:`optilock._watched.writes.answers`).
"""
