"""MariaDB."""

from __future__ import annotations

from optilock.dialects.base import Database


class MariaDB(Database):
    names = ("mysql", "mariadb")
