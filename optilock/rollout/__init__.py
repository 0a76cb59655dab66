"""Put a version on a table while other programs write it, without stopping them.

::

    from optilock.tokens import Counter
    from optilock.rollout import roll_out

    roll_out(engine, "accounts", token=Counter())

or ``optilock migrate accounts --url postgresql+psycopg://…``. Its steps are short transactions:

1. add the column, nullable, without a rewrite of the table; new rows get a default
2. fill rows without a version in the order of their keys, some at a time; rows that other
   transactions have locked are filled later, so no step waits while it holds locks
3. let the database check that every row has a version, while other programs write
4. make the column NOT NULL

A step that does not get its lock within ``lock_timeout`` gives up, waits, and tries again: a
statement in the queue for a table lock would make every later statement queue behind it. Each step
looks at the table first and does only its missing part, so run an interrupted or killed roll-out
again to continue. Programs without the version keep writing; their rows get the default.

============  ======================================================================================
target        the table as it is now, the triggers it lacks, and columns that are refused
run           ``roll_out`` and ``abort``: the steps, one after another
claim         the row that lets one process at a time roll out a table
fill          filling of rows: how many at a time, and how long to rest
attempts      connections, nodes of a cluster, and short transactions that are tried again
dry           the SQL that a roll-out would send
report        reports during a roll-out and at its end
command       ``optilock migrate``
============  ======================================================================================
"""

from optilock.rollout.dry import dry_run
from optilock.rollout.report import Progress, Report
from optilock.rollout.run import abort, roll_out

__all__ = ["Progress", "Report", "abort", "dry_run", "roll_out"]
