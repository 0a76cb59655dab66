"""Units of work: how one is opened, which options it has, and which one is running.

:mod:`unit_of_work` and :mod:`async_unit` open a unit. By its :mod:`membership` it joins the unit
that is :mod:`running`, or has a :mod:`transaction` of its own, over :mod:`sessions` that are made
as the caller's factory makes them. :mod:`beside` compares a scope's other session, and warns of
units around that this one does not join. The :mod:`options` are checked once. An option is one of
the :mod:`parts`, such as :mod:`isolation`, the :mod:`conditions` that each row needs, the locks of
its :mod:`strategies`, or :mod:`short`, which sends the last writes with the end of the transaction.
:mod:`retry` runs the whole unit again; :mod:`next_attempt` is the state that a failed attempt hands
to the next one.
"""
