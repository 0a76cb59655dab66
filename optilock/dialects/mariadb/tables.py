"""Tables of MariaDB as they are read and changed."""

from __future__ import annotations

from optilock.dialects.mariadb.migrations import note_what_moves
from optilock.dialects.tables import Tables


class MariaDBTables(Tables):
    def name_reflected(self, found: str) -> str:
        """SQLAlchemy leaves a backtick doubled, as ``SHOW CREATE TABLE`` writes it."""
        return found.replace("``", "`")

    complete = staticmethod(note_what_moves)

    def as_script(self, statement: str) -> str | None:
        return f"DELIMITER //\n{statement}//\nDELIMITER ;\n" if ";" in statement else None
