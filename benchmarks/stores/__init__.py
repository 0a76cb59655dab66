"""The same piece of work through every library that is compared.

:mod:`rows` is what a piece of work may do, and :mod:`kinds` the tables that it does it to. Each
library has a file: :mod:`by_sqlalchemy` (optilock, ``version_id_col``, no version, FOR UPDATE,
SERIALIZABLE), :mod:`by_core`, :mod:`by_driver` (written by hand), :mod:`by_django`,
:mod:`by_peewee`. :mod:`again` is the retry loop of those who have none, and :mod:`peers` the list
of all: one more subject is one more line there.
"""
