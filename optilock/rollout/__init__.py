"""Put a version on a table that is alive: while others write it, without stopping them.

::

    from optilock import Counter
    from optilock.rollout import roll_out

    roll_out(engine, "accounts", token=Counter())

or ``optilock migrate accounts --url postgresql+psycopg://…``. What happens, in steps that are each
a short transaction of their own:

1. the column is added, nullable, without a rewrite of the table; new rows get a default
2. rows that have no version are filled in the order of their keys, some at a time; rows that
   somebody has locked are left for later, so we wait for nobody while we have locks
3. the database checks that no row is without a version, beside the writers
4. the column becomes NOT NULL

A step that does not get its lock within ``lock_timeout`` gives up, waits, and tries again: a
statement that queued for a table lock would make every later statement queue behind it. Each step
looks at the table first and does only what is missing, so a roll-out that was interrupted, or
killed, is run again and goes on where it stood. Programs that know nothing of the version keep
writing; their rows get the default.

============  ======================================================================================
target        the table as it is now, the triggers it lacks, and columns that are refused
run           the steps, one after another
claim         one roll-out of a table at a time, said by a row that needs no session
nodes         the servers of a cluster, asked before and compared at the end
fill          rows filled batch after batch: how many at a time, and how long to rest
attempts      two connections, and short transactions that are tried again
dry           the SQL that it would send
abort         one that was not finished is taken back
report        what the roll-out reports, while it runs and when it is over
command       ``optilock migrate``
============  ======================================================================================
"""

from optilock.rollout.abort import abort
from optilock.rollout.dry import dry_run
from optilock.rollout.report import Report
from optilock.rollout.run import roll_out

__all__ = ["Report", "abort", "dry_run", "roll_out"]
