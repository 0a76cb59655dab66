"""A counter is increased over connections that are cut at COMMIT, and must be right at the end.

::

    python -m checks.exactly_once                                  # 2,000 increments, each engine
    python -m checks.exactly_once --increments 10000 --engine asyncpg --mode key
    python -m checks.exactly_once --engine psycopg --mode naive    # must be wrong

=========  =========================================================================================
true       ``exactly_once=True``
key        a key for each increment
pipelined  ``exactly_once=True, pipelined=True`` (psycopg)
naive      without: a unit whose outcome is unknown runs again. A test of the test: it counts too
           much
unfenced   as ``true``, and the question is rolled back. A test of the test, where COMMITs are late
=========  =========================================================================================

Each run says how often it was cut, what the counter is, how many bodies ran, and how many fences
are left. It is wrong if the counter, or any result, is.
"""
