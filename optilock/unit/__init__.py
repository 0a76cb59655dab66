"""A unit of work: how it is opened, what it may be told, and which one is running.

:mod:`unit_of_work` and :mod:`async_unit` are the ways to open one, each a :mod:`membership`:
a unit joins the one that is :mod:`running`, or has a :mod:`transaction` of its own, over
:mod:`sessions` of the caller's factory. :mod:`beside` it may be others that it does not join.
:mod:`options` are checked once, and most are :mod:`parts`, such as :mod:`isolation` and
:mod:`verify_reads`. :mod:`retry` runs it again, after the waits of :mod:`backoff`.
"""
