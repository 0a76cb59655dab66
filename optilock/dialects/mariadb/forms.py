"""The form of MariaDB for many rows."""

from __future__ import annotations

import sqlalchemy as sa

from optilock.conditions.write import Write
from optilock.dialects.forms import Form, Forms
from optilock.dialects.mariadb.rows import joined_rows


class MariaDBForms(Forms):
    def form(self, writes: list[Write], dialect: sa.Dialect, *, locked: bool = False) -> Form:
        form = joined_rows(self.database, writes, dialect)
        return form or super().form(writes, dialect, locked=locked)
