"""Tables as they are read and changed: asked by roll-outs, migrations and commands."""

from __future__ import annotations

import sqlalchemy as sa

from optilock.dialects.feature import Feature


class Tables(Feature):
    """What one database needs beside SQLAlchemy's reflection and Alembic's operations."""

    def name_reflected(self, found: str) -> str:
        """Return a column's name, from that of SQLAlchemy's inspector."""
        return found

    def complete(self, connection: sa.Connection, table: sa.Table) -> None:
        """Add to a reflected table what SQLAlchemy has not reflected."""

    def as_script(self, statement: str) -> str | None:
        """The statement for the database's own client, if that would cut it at a ``;``."""
        return None

    def missing_file(self, url: sa.URL) -> str | None:
        """The file of a database that connecting would make; ``None`` if nothing would be made."""
        return None
