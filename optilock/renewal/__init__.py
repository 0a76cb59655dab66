"""What must be renewed or ends: kept alive for its holder while a ``with`` block runs.

:mod:`renewed` is what is held and how it is renewed, once; a lease (:mod:`optilock.leases.held`)
and a handle (:mod:`optilock.shares.held`) say the rest. :mod:`threads` renews it by a thread,
:mod:`tasks` by a task; both tell the holder at once when it is lost, and end it with the block.
"""
