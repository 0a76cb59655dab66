"""Find places in an application's models and database where a lost update would stay silent.

::

    $ optilock check shop.models --url postgresql+psycopg://me@host/shop

    from optilock.check import check

    findings = check(Base, engine)

    findings = check_routes(app)            # or: optilock check --app shop.web:app

Nothing is changed. Each :class:`Finding` has a severity, a subject, a message and an advice. The
command's exit code is 1 if there is an error among them.

============  ======================================================================================
subjects      classes, their tables, and what the database has of these tables
findings      a finding and its severity
classes       checks of each class, of its values, and of the versions in its rows
tables        checks of each table, and of the column that holds a version
triggers      checks of a table's triggers, and of foreign keys that fire none
scopes        checks of scopes: their table, their triggers, cascades
revisions     checks of Alembic's revisions
routes        checks of the routes of a web application
run           all of them, and the driver's settings
command       ``optilock check``
============  ======================================================================================
"""

from optilock.check.findings import Finding, Severity
from optilock.check.routes import check_routes
from optilock.check.run import check

__all__ = ["Finding", "Severity", "check", "check_routes"]
