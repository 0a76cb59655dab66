"""The triggers that notify of changed rows, made and dropped with the table of their class."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from optilock.dialects import database_of
from optilock.dialects.change_notices import ChangeNotice
from optilock.dialects.values import plain_ddl


def create_with_table(table: sa.Table) -> None:
    """Make the triggers when ``table`` is created, and drop them before the table is."""

    def run(kind: str, made: sa.Table, connection: Any) -> None:
        schema = getattr(connection, "schema_for_object", lambda one: one.schema)(made)
        notices = database_of(connection.dialect).change_notices(connection.dialect)
        for statement in getattr(notices, kind)(ChangeNotice(made.name, schema)):
            connection.execute(plain_ddl(statement))

    event.listen(table, "after_create", lambda made, c, **_: run("create", made, c))
    event.listen(table, "before_drop", lambda made, c, **_: run("drop", made, c))
