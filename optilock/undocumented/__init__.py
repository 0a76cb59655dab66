"""What optilock uses of SQLAlchemy without its being documented, and nothing else.

============  ======================================================================================
older         what older releases do not have
objects       what of an object has changed, and is to be read again
sessions      what they are to delete and to write
flushes       how a flush writes the rows of a class
transactions  what came of them, and their connections
mappers       which there are, what is kept in them, who listens
statements    what UPDATE, DELETE and INSERT name
queries       what they lock, join and read
connections   how they are made, and what they refuse
dialects      how they write SQL; and types
check         is all of it there, and does a flush go as it is known to?
============  ======================================================================================

When a release of SQLAlchemy renames one of these, this is the folder to look at. The guarded flush
itself stands on events, and on what the unit of work asks of a result
(:mod:`optilock.writes.answers`).
"""
