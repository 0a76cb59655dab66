"""SQLite.

:mod:`database` lists the classes of the features that it answers differently: :mod:`locks`,
:mod:`waits`, :mod:`keys`, :mod:`forms`, :mod:`one_row`, :mod:`values`, :mod:`isolation`,
:mod:`ends`, :mod:`watching`, :mod:`queue_sql`, :mod:`tables`, :mod:`scope_triggers`, and
:mod:`migrations` with the triggers of versions, how a table in use gets a version, and the
catalogue. :mod:`causes` has the meaning of its result codes, and :mod:`rows` the form for many
rows.
"""

from optilock.dialects.sqlite.database import SQLite as SQLite
