"""Look at an application's models and its database: would a lost update be noticed everywhere?

::

    $ optilock check shop.models --url postgresql+psycopg://me@host/shop

    from optilock.check import check

    findings = check(Base, engine)

    findings = check_routes(app)            # or: optilock check --app shop.web:app

Nothing is changed. Each :class:`Finding` says how bad it is, what it is about, what was found, and
what to do. The command's exit code is 1 when there is an error among them.

============  ======================================================================================
subjects      classes, their tables, and what the database has of these tables
findings      what is found, and how bad it is
classes       what is asked of each class
tables        what is asked of each table
versions      what is asked of the column that holds a version
triggers      what is asked of a table's triggers, and of foreign keys that fire none
rows          what is asked of the rows
revisions     what is asked of Alembic's revisions
routes        what is asked of the routes of a web application
run           all of it, and the driver's settings
command       ``optilock check``
============  ======================================================================================
"""

from optilock.check.findings import Finding, Severity
from optilock.check.routes import check_routes
from optilock.check.run import check

__all__ = ["Finding", "Severity", "check", "check_routes"]
