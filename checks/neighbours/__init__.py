"""Tests of other packages that build on SQLAlchemy's Session, run with optilock under them.

::

    python -m checks.neighbours                       # all of them, in three modes
    python -m checks.neighbours sqlmodel factory-boy

Each suite runs as it is (plain), with every session watched, and again with every declarative base
made ``Versioned``. The outcomes of the first run are compared with those of the others, test by
test. ``differences.toml`` names the tests that may differ, each with its reason;
``docs/contributing/sqlalchemy-suite.md`` shows the list. The run fails when another test differs,
when one of these does not, when no session was flushed, and when a row with a version passed the
guard by.

``neighbours.toml``   the packages, their versions, and which of their tests run
``environments``      gets the source distributions and what their tests need, by pip
``watch_sessions``    the pytest plug-in that watches, makes bases versioned, and reports
``runner``            one run: pytest in a process of its own
``comparison``        what two runs mean
"""
