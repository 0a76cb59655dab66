"""SQLAlchemy's own ORM tests, run with every session watched.

::

    python -m checks.sqlalchemy_suite                           # SQLite and PostgreSQL
    python -m checks.sqlalchemy_suite --database sqlite
    python -m checks.sqlalchemy_suite --files test/orm/test_versioning.py test/orm/dml

The guard replaces ``execute`` on the connections of a flush. SQLAlchemy's ``test/orm`` covers the
behaviour that this must not change. So it runs unchanged, from the source distribution of the
installed SQLAlchemy, with ``watch(Session)``: every class with a ``version_id_col`` is guarded.

``known.toml`` names the tests that may fail, each with its reason;
``docs/contributing/sqlalchemy-suite.md`` shows the same list. The run fails when any other test
fails, when one of these passes, when no guarded statement was sent, and when a row with a version
passed the guard by.

``source``     gets the source distribution, by pip
``databases``  SQLite, and a PostgreSQL server of its own
``plugin``     the pytest plugin that watches, and counts
``counting``   what was to be guarded, and what was
``known``      the list of tests that may fail
``verdict``    what a run means
"""
