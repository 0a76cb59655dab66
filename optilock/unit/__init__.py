"""Units of work: how one is opened, which options it has, and which one is running.

:mod:`unit_of_work` and :mod:`async_unit` open one. By its :mod:`membership` it joins the unit that
is :mod:`running`, or has a :mod:`transaction` of its own, over :mod:`sessions` that are made as the
caller's factory makes them. :mod:`beside` it there may be a session, or a unit, that it does not
join. Its :mod:`options` are checked once. An option is one of the :mod:`parts`, such as
:mod:`isolation`, the :mod:`conditions` that each row needs, the locks of its :mod:`strategies`, or
:mod:`pipelined` and :mod:`short`, of which :mod:`ending` says what they have in common.
:mod:`retry` runs the whole unit again, after the waits of :mod:`backoff`; :mod:`relay` is what one
attempt leaves to the next.
"""
